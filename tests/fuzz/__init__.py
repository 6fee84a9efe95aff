# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fuzzer of the module: of what a daemon replies, of notifications, of ioctls and of sysfs.

It runs in a guest: ``scripts/fuzz``, and for a short time ``tests/guest/test_fuzz.py``.
docs/verification.md describes it.
"""
