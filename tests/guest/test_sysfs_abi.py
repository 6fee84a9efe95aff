# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the live tree with docs/sysfs.md: files, modes and values are the same."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control import PATHS, ROOT, Connection, ExitInfo, connections, find
from efuse.errors import ControlError
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from efuse.stats.paths import LATENCIES
from tests import documents, sysfs_document
from tests.guest.support.shell import run
from tests.sysfs_document import File


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """Yield a mount whose daemon replies to nothing, not even to INIT."""
    mountpoint = tmp_path / "silent"
    mountpoint.mkdir()
    fd = mount_efuse(str(mountpoint), MountOptions.parse([]))
    try:
        yield Connection(find(mountpoint).connection)
    finally:
        os.close(fd)
        unmount(str(mountpoint))


DIRECTORIES = {"Counters": "stats", "Paths": "paths", "Channels": "channels"}
"""Subdirectory of a connection whose files of counters a section describes."""


def modes(directory: Path) -> dict[str, int]:
    return {
        path.name: stat.S_IMODE(path.lstat().st_mode)
        for path in directory.iterdir()
        if not path.is_dir()
    }


def counted(connection: Connection) -> dict[str, set[str]]:
    """Return the names of the files of counters, by section."""
    return {
        "Counters": set(connection.opcodes()),
        "Paths": set(PATHS),
        "Channels": {str(cpu) for cpu in connection.cpus()},
    }


def settings(connection: Connection) -> dict[str, int]:
    """Return the modes of the files in subdirectories that the document lists with the others."""
    return {
        f"{DIRECTORIES[section]}/{name}": mode
        for section, counters in counted(connection).items()
        for name, mode in modes(connection.path / DIRECTORIES[section]).items()
        if name not in counters
    }


def described(section: str) -> dict[str, int]:
    return {name: file.mode for name, file in sysfs_document.files(section).items()}


def test_module_files_are_as_documented() -> None:
    assert modes(ROOT) == described("The module")
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} == {"connections"}


def test_connection_files_are_as_documented(connection: Connection) -> None:
    assert modes(connection.path) | settings(connection) == described("A connection")
    directories = {p for p in connection.path.rglob("*") if p.is_dir()}
    assert directories == {connection.path / name for name in DIRECTORIES.values()}


def test_files_of_counters_are_those_of_opcodes_paths_and_cpus(connection: Connection) -> None:
    assert set(connection.opcodes()) == set(sysfs_document.opcodes())
    possible = Path("/sys/devices/system/cpu/possible").read_text().strip()
    assert f"{connection.cpus()[0]}-{connection.cpus()[-1]}" == possible


@pytest.mark.parametrize("section", DIRECTORIES)
def test_files_of_counters_are_as_documented(connection: Connection, section: str) -> None:
    directory = connection.path / DIRECTORIES[section]
    for name in counted(connection)[section]:
        assert modes(directory)[name] == sysfs_document.mode(section), name
        text = (directory / name).read_text()
        lines = [line.split(" ") for line in text.splitlines()]
        assert text.endswith("\n"), name
        assert tuple(words[0] for words in lines) == sysfs_document.lines(section), name
        for word, *values in lines:
            assert len(values) == (LATENCIES if word == "latency" else 1), (name, word)
            assert all(value.isdecimal() for value in values), (name, word)


def test_every_other_file_holds_one_value(connection: Connection) -> None:
    files = [f for f in sysfs_document.files("A connection").values() if f.mode & 0o400]
    for path in [ROOT / "version", *(connection.path / file.name for file in files)]:
        text = path.read_text()
        assert text.endswith("\n"), path
        assert text.count("\n") == 1, path


def test_shell_shows_a_counter_of_all_opcodes(connection: Connection) -> None:
    test = "tests/guest/test_sysfs_abi.py::test_shell_shows_a_counter_of_all_opcodes"
    (block,) = documents.named("test", test)
    commands = [line.removeprefix("# ") for line in block.text.splitlines()]
    assert commands[0] == f"cd {ROOT}/connections/41"
    script = "\n".join([f"cd {connection.path}", *commands[1:]])
    assert run("sh", "-ec", script).stdout.splitlines() == [
        *(f"{name} 0" for name in sysfs_document.lines("Counters")),
        *(f"stats/{opcode}:hits 0" for opcode in connection.opcodes()),
        "0",
    ]


def test_defaults_are_as_documented(connection: Connection) -> None:
    documented = sysfs_document.files("A connection")
    for name, attribute in Connection.attributes().items():
        if attribute.readable and documented[name].default != "any":
            text = (connection.path / name).read_text().rstrip("\n")
            if name != "waiting":  # The INIT of the mount is waiting.
                assert text == documented[name].default, name
            attribute.parse(text)


OUT_OF_RANGE = {
    "recovery": ("86401",),
    "paths/max_request": ("4095", "8392704"),
    "paths/max_readdir": ("0", "4097", "135168"),
    "paths/round": ("0", "1000000001"),
    "paths/probes": ("1001",),
    "channels/threshold": ("0", "65537"),
    "channels/spin_ns": ("1000001",),
}

WRITABLE = [f for f in sysfs_document.files("A connection").values() if f.mode & 0o200]


@pytest.mark.parametrize("file", WRITABLE, ids=lambda file: file.name)
def test_values_out_of_range_are_refused_and_change_nothing(
    connection: Connection, file: File
) -> None:
    path = connection.path / file.name
    before = path.read_text() if file.mode & 0o400 else None
    epoch = connection.epoch
    for word in ("", "wrong", *OUT_OF_RANGE.get(file.name, ("2",)), "-7"):
        with pytest.raises(OSError, match="Invalid argument"):
            write(path, word)
    assert before is None or path.read_text() == before
    assert connection.epoch == epoch


@pytest.mark.parametrize("file", WRITABLE, ids=lambda file: file.name)
def test_values_in_the_range_are_accepted(connection: Connection, file: File) -> None:
    if file.name in ("invalidate", "abort"):
        write(connection.path / file.name, "1")
        return
    words = file.range.split(" or ")
    if " to " in file.range:
        found = [int(w) for w in file.range.replace(",", "").split() if w.isdigit()]
        words = [str(number) for number in sorted(found) if number]  # Some values never decrease.
    for word in words:
        write(connection.path / file.name, word + "\n")
        assert (connection.path / file.name).read_text() == word + "\n"


def write(path: Path, word: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, word.encode() or b"\n")
    finally:
        os.close(fd)


def test_write_to_a_rule_or_invalidate_voids_the_learned_values(connection: Connection) -> None:
    seen = [connection.epoch]
    connection.consistency = "exclusive"
    seen.append(connection.epoch)
    connection.no_open = True
    seen.append(connection.epoch)
    connection.invalidate()
    seen.append(connection.epoch)
    assert seen == sorted(set(seen))


def test_directory_of_a_connection_exists_while_it_is_mounted(tmp_path: Path) -> None:
    before = connections()
    fd = mount_efuse(str(tmp_path), MountOptions.parse([]))
    number = find(tmp_path).connection
    assert set(connections()) - set(before) == {number}
    os.close(fd)
    unmount(str(tmp_path))
    assert connections() == before
    with pytest.raises(ControlError, match=f"no eFuse connection {number}"):
        Connection(number)


def test_open_sysfs_files_fail_with_enodev_after_unmount(tmp_path: Path) -> None:
    device = mount_efuse(str(tmp_path), MountOptions.parse([]))
    path = Connection(find(tmp_path).connection).path
    held = [os.open(path / name, os.O_RDONLY) for name in ("state", "stats/lookup")]
    os.close(device)
    unmount(str(tmp_path))
    for fd in held:
        with pytest.raises(OSError, match="No such device"):
            os.read(fd, 100)
        os.close(fd)


def test_exit_info_of_a_mount_that_had_no_programs_is_none(connection: Connection) -> None:
    assert connection.exit_info == ExitInfo("none")
    assert connection.state == "plain"
    assert connection.ops == "none"
