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
from tests import sysfs_document
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


def modes(directory: Path) -> dict[str, int]:
    return {
        path.name: stat.S_IMODE(path.lstat().st_mode)
        for path in directory.iterdir()
        if not path.is_dir()
    }


def forced(directory: Path) -> dict[str, int]:
    """Return the modes of the files of paths/ and channels/.

    The document lists them with the files of the connection.
    """
    return {
        f"{part}/{name}": mode
        for part in ("paths", "channels")
        for name, mode in modes(directory / part).items()
    }


def described(section: str) -> dict[str, int]:
    return {name: file.mode for name, file in sysfs_document.files(section).items()}


def test_module_files_are_as_documented() -> None:
    assert modes(ROOT) == described("The module")
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} == {"connections"}


def test_connection_files_are_as_documented(connection: Connection) -> None:
    assert modes(connection.path) | forced(connection.path) == described("A connection")
    assert {p.name for p in connection.path.iterdir() if p.is_dir()} == {
        "channels",
        "paths",
        "stats",
    }


def test_path_files_are_as_documented(connection: Connection) -> None:
    assert {p.name for p in (connection.path / "paths").iterdir() if p.is_dir()} == set(PATHS)
    for name in PATHS:
        assert modes(connection.path / "paths" / name) == described("Paths"), name


def test_channel_files_are_as_documented(connection: Connection) -> None:
    possible = Path("/sys/devices/system/cpu/possible").read_text().strip()
    channels = sorted(p.name for p in (connection.path / "channels").iterdir() if p.is_dir())
    assert f"{channels[0]}-{channels[-1]}" == possible
    for name in channels:
        assert modes(connection.path / "channels" / name) == described("Channels"), name


def test_counters_are_as_documented(connection: Connection) -> None:
    assert set(connection.opcodes()) == set(sysfs_document.opcodes())
    for opcode in connection.opcodes():
        assert modes(connection.path / "stats" / opcode) == described("Counters"), opcode


def test_every_file_holds_one_value(connection: Connection) -> None:
    files = [p for p in connection.path.rglob("*") if p.is_file() and p.stat().st_mode & 0o400]
    assert len(files) > 700
    for path in [ROOT / "version", *files]:
        text = path.read_text()
        assert text.endswith("\n"), path
        assert text.count("\n") == 1, path
        if path.parent.parent.name == "stats":
            assert text[:-1].isdigit(), path


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
    held = [os.open(path / name, os.O_RDONLY) for name in ("state", "stats/lookup/hits")]
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
