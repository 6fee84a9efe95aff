# SPDX-License-Identifier: LGPL-2.1-or-later

SHELL := /bin/bash
JSON ?=
TESTS ?=
K ?=
export JSON K

.PHONY: help setup check lint test test-unit test-host test-guest test-perf test-debug test-mutants test-zoo test-package test-debian13 conformance fuzz schedules crash-replay soak withstand man docs lint-kernel demo pictures clean

help: ## list what can be made
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## packages, a kernel for the guest, .venv: all that the other targets need (Debian 12 or 13)
	@scripts/setup

demo: setup ## real programs on a real source tree, plain FUSE next to eFuse (JSON=FILE)
	@scripts/demo

test: ## set up, then unit, host and guest tests (in CI too); K=7: all guest tests on that kernel
	@scripts/test

test-unit: ## tests that need no root
	@.venv/bin/python -m pytest -q tests/unit

test-host: ## tests on plain FUSE mounts of this machine (root)
	@.venv/bin/python -m pytest -v tests/host

test-guest: ## tests in a guest with the module loaded (root); K=7: on that kernel
	@scripts/test-guest

test-perf: ## instruction counts of the fast paths against the checked-in baseline
	@scripts/test-perf

test-debug: ## the guest tests (or TESTS=...) in a kernel that checks itself (slow)
	@scripts/test-debug $(TESTS)

test-mutants: ## break one rule of the module at a time: the guest tests must notice (slow)
	@.venv/bin/python -m tests.mutants

fuzz: ## ten minutes of wrong replies, notifications and ioctls, in a kernel that finds data races (slow)
	@scripts/fuzz --seconds 600 --kernel kcsan

schedules: ## random interleavings of calls and answers in a guest, from a random seed (SECONDS=300)
	@scripts/schedules --seconds $(or $(SECONDS),300)

test-zoo: ## daemons of Debian and PyPI in a guest, plain and on eFuse, compared (root; slow)
	@scripts/test-zoo

test-package: ## build the Debian package, install it by DKMS in a clean root (root; cached)
	@scripts/test-package

test-debian13: ## set up a root of Debian 13, and run guest tests in a guest of it (root; cached)
	@scripts/test-debian13

crash-replay: ## crashes below eFuse mounts: what fsync(2) acknowledged must be there (root; slow)
	@scripts/crash-replay

soak: ## eight emulated hours of mixed load: nothing may grow (root; slow; JSON=FILE)
	@scripts/soak

withstand: ## daemons are killed 1000 times each while programs use their mounts (root; slow; K=7)
	@scripts/withstand

conformance: setup ## test suites of other projects on ext4, plain FUSE and eFuse, compared (slow)
	@scripts/conformance

lint: ## ruff and mypy
	@.venv/bin/ruff check efuse tests docs/model docs/site
	@.venv/bin/mypy

check: lint test-unit ## lint, types, unit tests

man: ## the manual pages, into build/man
	@.venv/bin/efuse man build/man

docs: ## these documents as a site, into build/site: no network, no warning
	@.venv/bin/python -m docs.site

pictures: ## the pictures of docs/watching.md and docs/design.md, and the frames that tests compare
	@.venv/bin/python -m docs.site.diagrams
	@.venv/bin/python -m tests.pictures

lint-kernel: ## checkpatch, sparse and W=1 on the modules, for both kernels
	@scripts/lint-kernel

clean: ## remove .venv, build and Python's compiled files; the cache in ~/.cache/efuse stays
	rm -rf .venv .mypy_cache .ruff_cache build
	find . -name __pycache__ -prune -exec rm -rf {} +
