# SPDX-License-Identifier: LGPL-2.1-or-later
from dataclasses import replace

from efuse.stats import Change, History
from efuse.stats.history import LENGTH
from efuse.stats.snapshot import change
from tests.unit.watched import CONNECTION, sample

CHANGE = change(sample(1), sample(2))


def test_history_has_a_series_for_each_row() -> None:
    found = History().after(CHANGE)
    (demo, archive, plain) = CHANGE.mounts
    assert found.of("mount", CONNECTION) == (demo.total.per_second,)
    for mount in (demo, archive, plain):
        owner = mount.after.connection
        for opcode in mount.opcodes:
            rate = opcode.per_second
            assert found.of("opcode", owner, opcode.opcode) == ((rate,) if rate else ())
        for path in mount.paths:
            assert found.of("path", owner, path.path) == (path.per_second,)
    for cpu in demo.channels:
        assert found.of("cpu", CONNECTION, cpu.group.cpus[0]) == (cpu.per_second,)
    for node in demo.nodes:
        assert node.group.node is not None
        assert found.of("node", CONNECTION, node.group.node) == (node.per_second,)
    assert found.of("device", "one") == (CHANGE.devices[0].requests_per_second,)
    assert found.of("device", "spare") == ()


def test_history_keeps_the_latest_rates() -> None:
    known = History()
    for _ in range(LENGTH + 5):
        known = known.after(CHANGE)
    assert len(known.of("mount", CONNECTION)) == LENGTH
    known = known.after(change(sample(2), sample(3)))
    first, *_, before, last = known.of("mount", CONNECTION)
    assert first == before == CHANGE.mounts[0].total.per_second
    assert last != before


def test_history_of_an_idle_opcode_is_zero_and_then_dropped() -> None:
    known = History().after(CHANGE)
    mount = replace(CHANGE.mounts[0], opcodes=())
    for _ in range(LENGTH - 1):
        known = known.after(Change((mount,)))
    rates = known.of("opcode", CONNECTION, "lookup")
    assert (len(rates), any(rates[1:])) == (LENGTH, False)
    assert known.after(Change((mount,))).of("opcode", CONNECTION, "lookup") == ()


def test_history_of_an_ended_mount_is_dropped() -> None:
    known = History().after(CHANGE).after(Change(CHANGE.mounts[:1]))
    assert {owner for _, owner, _ in known.series} == {CONNECTION}
