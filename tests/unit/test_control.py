# SPDX-License-Identifier: LGPL-2.1-or-later
import os
import shutil
from pathlib import Path

import pytest

from efuse.control import Connection, ExitInfo, connections, find, module_version, mounts
from efuse.control.mounts import of_device, parse
from efuse.errors import ControlError
from efuse.opcodes import COUNTED
from efuse.stats.channels import CHANNEL_COUNTERS, CHANNEL_STATE
from efuse.stats.model import COUNTERS
from efuse.stats.paths import PATH_COUNTERS
from tests import sysfs_document
from tests.unit.fake_sysfs import VALUES, FakeSysfs
from tests.unit.symlinks import link_chain


@pytest.fixture
def sysfs(memory_path: Path) -> FakeSysfs:
    return FakeSysfs(memory_path)


def test_attributes_have_their_types(sysfs: FakeSysfs) -> None:
    sysfs.add(41, consistency="cto", lazy_atime="1", exit_info="replace -5 went away twice")
    conn = Connection(41, root=sysfs.root)
    assert conn.consistency == "cto"
    assert conn.lazy_atime is True
    assert conn.no_open is False
    assert conn.epoch == 7
    assert conn.exit_info == ExitInfo("replace", -5, "went away twice")
    assert str(conn.exit_info) == "replace -5 went away twice"


def test_attributes_are_all_files_of_the_tree() -> None:
    assert set(Connection.attributes()) == {*VALUES, "invalidate", "abort"}
    for attribute in Connection.attributes().values():
        assert attribute.doc
        assert attribute.mode in (0o400, 0o444, 0o644, 0o200)


def test_set_writes_the_file(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    conn.stable_nodeids = True
    conn.consistency = "exclusive"
    assert (path / "stable_nodeids").read_text().strip() == "1"
    assert (path / "consistency").read_text().startswith("exclusive")


def test_set_of_a_wrong_word_fails_before_writing(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    with pytest.raises(ControlError) as caught:
        Connection.attributes()["consistency"].set_text(Connection(41, root=sysfs.root), "loose")
    assert "strict or ttl or cto or exclusive" in (caught.value.hint or "")
    assert (path / "consistency").read_text() == "ttl\n"


def test_set_of_a_read_only_attribute_fails(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    with pytest.raises(ControlError, match="waiting can only be read"):
        Connection.attributes()["waiting"].set_text(Connection(41, root=sysfs.root), "3")


def test_invalidate_and_abort_write_one(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    conn.invalidate()
    assert (path / "invalidate").read_text() == "1"
    assert (path / "abort").read_text() == ""
    conn.abort()
    assert (path / "abort").read_text() == "1"


def test_attribute_with_a_malformed_value_fails(sysfs: FakeSysfs) -> None:
    sysfs.add(41, epoch="-3")
    with pytest.raises(ControlError, match="epoch holds '-3'"):
        _ = Connection(41, root=sysfs.root).epoch


def test_read_of_an_ended_connection_fails_with_enoent(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    (path / "waiting").unlink()
    with pytest.raises(ControlError, match="ENOENT"):
        _ = conn.waiting


def test_pinned_connection_is_not_the_next_one_of_its_number(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    conn.pin()
    path.rename(path.with_name("gone"))
    sysfs.add(41, consistency="cto")
    conn.stable_nodeids = True
    assert conn.consistency == "ttl"
    assert Connection(41, root=sysfs.root).stable_nodeids is False


def test_error_of_a_pinned_connection_names_its_path(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    conn.pin()
    shutil.rmtree(path)
    with pytest.raises(ControlError, match=rf"cannot read {path}/waiting: .*ENOENT"):
        _ = conn.waiting


def test_pin_of_a_connection_that_has_gone_fails(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    conn = Connection(41, root=sysfs.root)
    shutil.rmtree(path)
    with pytest.raises(ControlError, match=r"connection 41 is gone: .*ENOENT"):
        conn.pin()


def test_connections_are_in_order(sysfs: FakeSysfs) -> None:
    for number in (100, 9, 41):
        sysfs.add(number)
    assert connections(root=sysfs.root) == (9, 41, 100)
    assert module_version(root=sysfs.root) == "0.1.0"


def test_connections_without_the_module_fails(tmp_path: Path) -> None:
    with pytest.raises(ControlError) as caught:
        connections(root=tmp_path / "nothing")
    assert caught.value.hint == "load the module: efuse module load"


def test_connection_that_does_not_exist_fails(sysfs: FakeSysfs) -> None:
    with pytest.raises(ControlError, match="no eFuse connection 5"):
        Connection(5, root=sysfs.root)


TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:41 / /mnt/e rw,nosuid - efuse.sshfs host:/x rw,user_id=0
41 22 0:42 / /mnt/plain rw - fuse.sshfs host:/y rw
42 22 0:43 / /mnt/two\\040words rw - efuse src rw
43 40 0:44 / /mnt/e/inner rw shared:2 master:1 - tmpfs none rw
44 43 0:45 / /mnt/e/inner/deep rw - efuse deep rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


def test_mounts_are_efuse_only_unless_asked(table: Path) -> None:
    assert [m.connection for m in mounts(mountinfo=table)] == [41, 43, 45]
    assert [m.connection for m in mounts(fuse=True, mountinfo=table)] == [41, 42, 43, 45]


def test_mounts_of_a_device_are_found_in_a_table_with_names_of_any_bytes(table: Path) -> None:
    with table.open("ab") as f:
        f.write(b"50 22 0:50 / /mnt/\xff rw - tmpfs \xfe rw\n")
        f.write(b"51 22 8:1 / /srv/\xfd\\040x rw - ext4 /dev/sda1 rw\n")
    found = of_device(os.makedev(8, 1), mountinfo=table)
    assert [os.fsencode(m.mountpoint) for m in found] == [b"/", b"/srv/\xfd x"]


def test_mounts_have_mountpoint_type_and_source(table: Path) -> None:
    mount = mounts(mountinfo=table)[0]
    assert (mount.mountpoint, mount.fstype, mount.source) == ("/mnt/e", "efuse.sshfs", "host:/x")
    assert mounts(mountinfo=table)[1].mountpoint == "/mnt/two words"


@pytest.mark.parametrize(
    ("path", "connection"),
    [
        ("/mnt/e", 41),
        ("/mnt/e/a/b", 41),
        ("/mnt/e/inner/deep/x", 45),
        ("/mnt/two words/x", 43),
        ("/mnt/other/../e/x", 41),
    ],
)
def test_find_takes_the_innermost_mount(table: Path, path: str, connection: int) -> None:
    assert find(path, mountinfo=table).connection == connection


@pytest.mark.parametrize(
    ("path", "what"),
    [("/mnt/e/inner/x", "tmpfs"), ("/mnt/plain/x", "fuse.sshfs"), ("/mnt/ee", "ext4")],
)
def test_find_of_a_path_outside_fuse_fails(table: Path, path: str, what: str) -> None:
    with pytest.raises(ControlError, match=f"it lies on a {what} mount"):
        find(path, mountinfo=table)


def test_find_in_a_chroot_without_root_mount(table: Path) -> None:
    table.write_text("".join(TABLE.splitlines(keepends=True)[1:]))
    assert find("/mnt/e/inner/deep", mountinfo=table).connection == 45
    with pytest.raises(ControlError, match="no mount that is visible"):
        find("/etc", mountinfo=table)


def test_find_sees_the_upper_of_stacked_mounts(table: Path) -> None:
    with table.open("a") as f:
        f.write("50 40 0:50 / /mnt/e rw - efuse upper rw\n")
    assert find("/mnt/e/x", mountinfo=table).connection == 50


def test_find_sees_a_mount_that_hides_deeper_ones(table: Path) -> None:
    with table.open("a") as f:
        f.write("51 22 0:51 / /mnt rw - tmpfs none rw\n")
    with pytest.raises(ControlError, match="tmpfs"):
        find("/mnt/e/x", mountinfo=table)


def test_find_follows_links_up_to_the_mount(tmp_path: Path) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    (mountpoint / "inside").symlink_to("/etc")
    (tmp_path / "to").symlink_to("mnt/sub")
    (tmp_path / "loop").symlink_to("loop")
    info = tmp_path / "mountinfo"
    info.write_text(f"60 22 0:60 / {os.path.realpath(mountpoint)} rw - efuse src rw\n")
    assert find(tmp_path / "to" / "x", mountinfo=info).connection == 60
    assert find(mountpoint / "inside" / "passwd", mountinfo=info).connection == 60
    with pytest.raises(ControlError, match="ELOOP"):
        find(tmp_path / "loop", mountinfo=info)


def test_find_follows_as_many_links_as_the_kernel(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    (tmp_path / "mnt").mkdir()
    info.write_text(f"60 22 0:60 / {os.path.realpath(tmp_path / 'mnt')} rw - efuse src rw\n")
    chain = link_chain(Path(os.path.realpath(tmp_path)), "mnt", 41)
    assert chain[39].is_dir()
    assert find(chain[39], mountinfo=info).connection == 60
    with pytest.raises(OSError, match="symbolic links"):
        chain[40].stat()
    with pytest.raises(ControlError, match="ELOOP"):
        find(chain[40], mountinfo=info)


def test_parse_skips_malformed_lines() -> None:
    assert parse("\nnonsense\n") == ()


def test_attributes_agree_with_the_document() -> None:
    described = sysfs_document.files("A connection")
    assert list(described) == list(Connection.attributes())
    for name, attribute in Connection.attributes().items():
        row = described[name]
        assert (row.mode, row.unit, row.range, row.default, row.what) == (
            attribute.mode,
            attribute.unit,
            attribute.range,
            attribute.default,
            attribute.doc,
        ), name


def test_counters_agree_with_the_document() -> None:
    assert sysfs_document.lines("Counters") == COUNTERS
    assert set(sysfs_document.opcodes()) == set(COUNTED)
    assert sysfs_document.lines("Channels") == (*CHANNEL_STATE, *CHANNEL_COUNTERS)
    assert set(sysfs_document.lines("Paths")) == {*PATH_COUNTERS, "latency"}


def test_counts_are_the_lines_of_a_file(sysfs: FakeSysfs) -> None:
    sysfs.add(41, nodes=(0, 1, 0))
    sysfs.count(41, "read", requests=7, hits=5)
    sysfs.count_path(41, "direct", {3: 5}, requests=5)
    sysfs.count_channel(41, 2, sent=9)
    conn = Connection(41, root=sysfs.root)
    assert conn.cpus() == (0, 1, 2)
    assert set(conn.opcodes()) == set(COUNTED)
    read = conn.counts("stats/read")
    assert tuple(read) == COUNTERS
    assert (read["requests"], read["hits"], read["daemon"]) == (7, 5, 0)
    assert conn.counts("paths/direct")["requests"] == 5
    assert conn.counts("channels/2")["sent"] == 9


def test_counts_of_a_malformed_file_fail(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    for line in ("hits", "hits x", "hits -1", "hits 1 2"):
        (path / "stats/read").write_text(f"requests 4\n{line}\n")
        with pytest.raises(ControlError, match="stats/read has no number hits"):
            Connection(41, root=sysfs.root).counts("stats/read")
