# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands print of mounts, files and program sets whose names other users chose."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from efuse import bpf
from efuse.bpf.attach import Attached
from efuse.cli import advise, trace
from efuse.cli.main import cli, main
from efuse.control.mounts import Mount
from efuse.errors import CompileError
from efuse.stats.files import DataCacheUsage, FileCache
from efuse.tracing import Request
from tests.nasty_names import NASTY, is_safe
from tests.unit.fake_sysfs import FakeSysfs
from tests.unit.recorded_requests import entry, request

pytestmark = pytest.mark.parametrize("name", NASTY)
both = pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])


def _printed(words: Sequence[str], as_json: bool) -> str:
    """Run a command; return what it printed to standard output, which is safe."""
    done = CliRunner().invoke(cli, [*words, *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    assert is_safe(done.stdout_bytes.decode())
    assert is_safe(done.stderr_bytes.decode())
    return done.stdout_bytes.decode()


@both
def test_maps_files_prints_the_name_of_a_file_escaped(
    name: bytes, as_json: bool, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add(7)
    sysfs.everywhere(monkeypatch)
    cache = DataCacheUsage(8, 1, 0, (FileCache(2, os.fsdecode(b"d/" + name), 1, 3, 4),))
    monkeypatch.setattr("efuse.cli.maps.watch", lambda number: cache)
    printed = _printed(["maps", "files", "7"], as_json)
    if as_json:
        assert os.fsencode(json.loads(printed)["files"][0]["path"]) == b"d/" + name
    else:
        assert [line.split()[-4:] for line in printed.splitlines()[2:]] == [
            ["1", "3", "4", "42.9%"]
        ]


@both
def test_top_prints_the_name_of_a_mount_escaped(
    name: bytes, as_json: bool, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add(7)
    sysfs.count(7, "lookup", requests=4, hits=3, daemon=1)
    written = name.replace(b"\n", b"\\012")  # the kernel's escape
    sysfs.mountinfo.write_bytes(b"107 1 0:7 / /%s rw - efuse.x source rw\n" % written)
    sysfs.everywhere(monkeypatch)
    monkeypatch.setattr("efuse.cli.top.pause", lambda seconds: None)
    monkeypatch.setattr("efuse.stats.maps.usage", lambda connection: ())
    printed = _printed(["top", "--once"], as_json)
    if as_json:
        (mount,) = json.loads(printed)["mounts"]
        assert os.fsencode(mount["after"]["mountpoint"]) == b"/" + name
    else:
        assert len([line for line in printed.splitlines() if "#7" in line]) == 1


class _Recorded:
    """A fake Watch with a few requests about one name."""

    lost = 0

    def __init__(self, name: bytes) -> None:
        self._requests = [
            request("lookup", 1, name, answer=entry(2), comm=name[:15]),
            request("getattr", 2, comm=name[:15]),
        ]

    def __enter__(self) -> _Recorded:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> bool:
        return bool(self._requests)

    def read(self) -> Iterator[Request]:
        while self._requests:
            yield self._requests.pop(0)

    def stop(self) -> None:
        """Do nothing: all requests are recorded already."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _watch(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount(1, 0, 40, os.fsdecode(b"/" + name), "fuse.x", "host:", "rw")
    for module in (trace, advise):
        monkeypatch.setattr(module, "watched_mount", lambda where: mount)
        monkeypatch.setattr(module, "Watch", lambda mount, **more: _Recorded(name))


@both
def test_advise_prints_the_name_of_a_mount_escaped(
    name: bytes, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _watch(name, monkeypatch)
    printed = _printed(["advise", "40", "--seconds", "0.1"], as_json)
    if as_json:
        assert os.fsencode(json.loads(printed)["mount"]) == b"/" + name
    else:
        assert "  fuse  watched for " in printed.splitlines()[0]


@both
def test_trace_prints_the_names_of_files_and_programs_escaped(
    name: bytes, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _watch(name, monkeypatch)
    printed = _printed(["trace", "40", "--count", "2"], as_json)
    if as_json:
        found = [json.loads(text) for text in printed.splitlines()]
        assert [os.fsencode(one["about"]) for one in found] == [name, b"/" + name]
    else:
        assert len(printed.splitlines()) == 3


@both
def test_prog_prints_the_name_of_a_set_escaped(
    name: bytes, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toolkit gives no such name to a set. Another program may."""
    text = os.fsdecode(name)
    attached = Attached(7, text, ("lookup",), ("entries",), 3)
    monkeypatch.setattr(bpf, "list_attached", lambda: [attached])
    held = SimpleNamespace(connection=7, name=text, detach=lambda: None)
    monkeypatch.setattr(bpf.Attachment, "open", lambda number: held)
    listed, detached = (
        _printed(["prog", "list"], as_json),
        _printed(["prog", "detach", "7"], as_json),
    )
    if as_json:
        (found,) = json.loads(listed)
        assert found["name"] == json.loads(detached)["name"] == text
    else:
        assert len(listed.splitlines()) == 2
        assert len(detached.splitlines()) == 1


@pytest.mark.parametrize("given", ["", "lookup="])
def test_prog_prints_the_name_of_a_handler_escaped(
    name: bytes,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)

    def refuses(text: str, name: str) -> None:
        raise CompileError(f"cannot compile {name}: 1 error", hint=name)

    monkeypatch.setattr("efuse.cli.prog.compile_text", refuses)
    monkeypatch.setattr(
        bpf, "compile_handlers", lambda texts, names, **more: refuses("", names["lookup"])
    )
    for exists in (False, True):
        if exists:
            Path(path).write_text("int lookup;")
        with pytest.raises(SystemExit) as caught:
            main(["prog", "check", "--handler", f"{given}{path}"])
        assert caught.value.code != 0
        printed = capfd.readouterr()
        assert printed.out == ""
        assert is_safe(printed.err)
        assert ("cannot compile" if exists else "cannot read the handler") in printed.err
