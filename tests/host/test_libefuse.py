# SPDX-License-Identifier: LGPL-2.1-or-later
"""A C daemon with the installed libefuse, which pkg-config finds, on plain FUSE."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from efuse.fs.mountpoint import unmount
from tests.conftest import Eventually
from tests.libefuse.installed import Installed


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("libefuse"))


@dataclass
class Hello:
    process: subprocess.Popen[str]
    mountpoint: Path

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """End the daemon by a signal, and return its exit status and its standard error."""
        self.process.send_signal(number)
        output = self.process.communicate(timeout=60)[1]
        return self.process.returncode, output


@pytest.fixture
def hello(installed: Installed, tmp_path: Path, eventually: Eventually) -> Iterator[Hello]:
    """A process of docs/examples/hello.c, mounted on plain FUSE."""
    program = installed.compiled("docs/examples/hello.c", tmp_path / "hello")
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    words = [program, "-f", mountpoint]
    process = subprocess.Popen(words, env=installed.environment, stderr=subprocess.PIPE, text=True)
    eventually(lambda: os.path.ismount(mountpoint) or process.poll() is not None, what="a mount")
    yield Hello(process, mountpoint)
    if process.poll() is None:
        process.kill()
        unmount(str(mountpoint), lazy=True)
        process.communicate()


def test_example_on_plain_fuse_reports_why_it_has_no_channels(hello: Hello) -> None:
    assert os.listdir(hello.mountpoint) == ["hello"]
    assert (hello.mountpoint / "hello").read_text() == "Hello, world!\n"
    assert not (hello.mountpoint / "other").exists()
    status, output = hello.end(signal.SIGTERM)
    assert status == 1  # libfuse's loop was ended by a signal
    assert output.startswith("efuse: no channels: ")
    assert output.count("\n") == 1


def test_example_without_channels_reports_nothing(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(installed.environment, "EFUSE_CHANNELS", "0")
    hello: Hello = request.getfixturevalue("hello")
    assert (hello.mountpoint / "hello").read_text() == "Hello, world!\n"
    assert hello.end(signal.SIGTERM) == (1, "")


def test_library_exports_only_its_function(installed: Installed) -> None:
    library = installed.prefix / "lib" / "libefuse.so.0"
    words = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", library]
    assert subprocess.check_output(words, text=True).split() == ["efuse_session_loop_mt"]
    dynamic = subprocess.check_output(["readelf", "--dynamic", library], text=True)
    assert "soname: [libefuse.so.0]" in dynamic


def test_header_compiles_as_c_and_cplusplus(installed: Installed, tmp_path: Path) -> None:
    for language in ("c", "c++"):
        source = tmp_path / "program"
        source.write_text("#include <efuse.h>\nint main(void) { return 0; }\n")
        words = ["gcc", "-x", language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source]
        subprocess.run([*words, *installed.flags("--cflags")], check=True)
