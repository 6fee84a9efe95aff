# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the load and the samples of ``make soak``, and that a leak is noticed."""

from __future__ import annotations

import os

from efuse.bpf import libbpf
from tests.soak.growth import BOUNDS
from tests.soak.run import soaked

_ROUNDS = 4
_ARRAY = 2
_OF_EFUSE = {"bpf_programs", "bpf_maps", "bpf_links", "connections", "module_references", "pins"}
"""Counts that nothing else in the guest changes."""


def test_leaks_are_noticed_and_nothing_else_grows() -> None:
    """A map and a descriptor leak in each round."""
    leaked: list[int] = []

    def leak() -> None:
        leaked.append(libbpf.map_create(_ARRAY, "leaked", 4, 8, 1))

    try:
        soak = soaked(0, _ROUNDS, also=leak)
    finally:
        for fd in leaked:
            os.close(fd)
    print(soak)
    assert soak.series.keys() == BOUNDS.keys()
    assert all(len(samples) == _ROUNDS for samples in soak.series.values())
    grown = {line.split()[0] for line in soak.grown}
    assert {"bpf_maps", "soak_fds"} <= grown
    counts = {name for name in BOUNDS if name.endswith("_fds") or name in _OF_EFUSE}
    assert grown & counts == {"bpf_maps", "soak_fds"}, soak.grown
    assert soak.missing(_ROUNDS) == []
