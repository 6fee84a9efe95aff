# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands ``efuse mount``, ``mount.efuse`` and ``efuse run``."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control.mounts import all_mounts, is_mounted, number_at
from efuse.fs.mountpoint import detach
from tests.nasty_names import NASTY, is_safe

_HERE = Path(__file__).parent
_libc = ctypes.CDLL(None, use_errno=True)


class Places:
    """A source and a mount point, and methods that run the commands on them."""

    def __init__(self, place: Path) -> None:
        self.source, self.mountpoint = place / "source", place / "mountpoint"
        self.source.mkdir()
        self.mountpoint.mkdir()

    def run(
        self, module: str, *arguments: object, status: int = 0, device: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        script = f"from {module} import main; main()"
        if device is not None:
            change = f"mountpoint.DEVICE = Path({device!r})"
            script = (
                f"from pathlib import Path; from efuse.fs import mountpoint; {change}; {script}"
            )
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=_HERE,
            check=False,
        )
        assert done.returncode == status, done.stderr + done.stdout
        return done

    def efuse(
        self, *arguments: object, status: int = 0, device: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.run("efuse.cli.main", *arguments, status=status, device=device)

    def helper(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("efuse.cli._mount_helper", *arguments, status=status)

    def unmount(self) -> None:
        subprocess.run(["umount", self.mountpoint], check=True)


@pytest.fixture
def places(place: Path) -> Iterator[Places]:
    made = Places(place)
    yield made
    _libc.umount2(os.fsencode(made.mountpoint), 2)


def test_mount_command_returns_once_mounted_and_the_daemon_stays(places: Places) -> None:
    done = places.efuse("mount", "passthrough", places.source, places.mountpoint, "--plain")
    assert done.stdout == f"{places.mountpoint}: not accelerated: plain FUSE was requested\n"
    (places.mountpoint / "f").write_bytes(b"x")
    assert (places.source / "f").read_bytes() == b"x"
    places.unmount()


def test_mount_prints_json(places: Places) -> None:
    done = places.efuse(
        "mount", "passthrough", places.source, places.mountpoint, "--plain", "--json"
    )
    told = json.loads(done.stdout)
    assert told["mountpoint"] == str(places.mountpoint)
    assert (told["type"], told["accelerated"]) == ("fuse", False)
    assert Path(f"/proc/{told['pid']}").exists()
    places.unmount()


@pytest.fixture(params=NASTY, ids=ascii)
def nasty(places: Places, request: pytest.FixtureRequest) -> Places:
    """Places whose names hold escape sequences or bytes that are no UTF-8."""
    name = os.fsdecode(request.param)
    places.source = places.source.rename(places.source.with_name(f"source {name}"))
    places.mountpoint = places.mountpoint.rename(places.mountpoint.with_name(f"mount {name}"))
    return places


@pytest.mark.parametrize("where", ["background", "foreground"])
@pytest.mark.parametrize("kind", ["text", "json"])
def test_mount_prints_a_name_escaped(nasty: Places, kind: str, where: str) -> None:
    words = [sys.executable, "-c", "from efuse.cli.main import main; main()", "mount", "--plain"]
    words += ["passthrough", str(nasty.source), str(nasty.mountpoint)]
    words += ["--json"] * (kind == "json") + ["--foreground"] * (where == "foreground")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while all(mount.mountpoint != str(nasty.mountpoint) for mount in all_mounts()):
            assert not process.poll()
            threading.Event().wait(0.005)
        (nasty.mountpoint / "f").write_bytes(b"data")
        assert (nasty.source / "f").read_bytes() == b"data"
        nasty.unmount()
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    assert process.returncode == 0
    assert is_safe(printed)
    if kind == "json":
        assert json.loads(printed)["mountpoint"] == str(nasty.mountpoint)
    else:
        assert len(printed.splitlines()) == 1


def test_error_of_mount_prints_a_name_escaped(nasty: Places) -> None:
    nasty.mountpoint.rmdir()
    words = ["mount", "--plain", "passthrough", nasty.source, nasty.mountpoint]
    assert is_safe(nasty.efuse(*words, status=1).stderr)
    assert is_safe(nasty.efuse(*words, "--json", status=1).stderr)
    nasty.source.rmdir()
    assert is_safe(nasty.efuse(*words, status=1).stderr)
    assert is_safe(nasty.helper(nasty.source, nasty.mountpoint, "-o", "plain", status=32).stderr)


def test_run_prints_a_name_escaped(nasty: Places) -> None:
    words = [*_PYTHON, _DAEMON, nasty.source, nasty.mountpoint]
    done = nasty.efuse("run", "--", *words, device="/dev/null")
    assert len(done.stderr.splitlines()) == 1
    assert is_safe(done.stderr)
    nasty.unmount()
    done = nasty.efuse("run", "--", *words, device="/no/such")
    assert len(done.stderr.splitlines()) == 1
    assert is_safe(done.stderr)
    nasty.unmount()
    missing = nasty.source / "daemon"
    assert is_safe(nasty.efuse("run", "--", missing, status=1, device="/dev/null").stderr)


def test_mount_of_a_class_by_module_name_works(places: Places) -> None:
    places.efuse("mount", "filesystems:Faulty", places.mountpoint, "--consistency", "exclusive")
    assert (places.mountpoint / "file").stat().st_size == 10
    places.unmount()


def test_mount_passes_arguments_to_the_class(places: Places) -> None:
    places.efuse(
        "mount", "filesystems:Invalidating", places.mountpoint, "--arg", "invalidate=False"
    )
    assert (places.mountpoint / "file").stat().st_size == 1
    places.unmount()


def test_mount_options_reach_the_kernel(places: Places) -> None:
    places.efuse("mount", "passthrough", places.source, places.mountpoint, "-o", "ro,allow_other")
    with pytest.raises(OSError, match="Read-only"):
        (places.mountpoint / "f").touch()
    options = _mount_line(places.mountpoint)
    assert "allow_other" in options
    assert "default_permissions" in options
    places.unmount()


def _mount_line(mountpoint: Path) -> str:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next(line for line in lines if f" {mountpoint} " in line)


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        (("passthrough", "{mountpoint}"), 2, "takes 2 paths"),
        (("passthrough", "/no/such", "{mountpoint}"), 1, "cannot be passed through"),
        (("passthrough", "{source}", "/no/such"), 1, "not a directory"),
        (("no.such.module", "{mountpoint}"), 2, "cannot be imported"),
        (("filesystems", "{mountpoint}"), 2, "defines 4 file systems instead of one"),
        (("filesystems:None", "{mountpoint}"), 2, "has no class"),
        (("filesystems:Faulty", "{mountpoint}", "--arg", "x=1"), 2, "cannot be created"),
        (("filesystems:Faulty", "{mountpoint}", "--arg", "x"), 2, "NAME=VALUE"),
        (("filesystems:Faulty", "{mountpoint}", "-o", "consistency=no"), 2, "consistency"),
    ],
)
def test_mount_that_fails_reports_why(
    places: Places, arguments: tuple[str, ...], status: int, printed: str
) -> None:
    words = [a.format(source=places.source, mountpoint=places.mountpoint) for a in arguments]
    done = places.efuse("mount", *words, status=status)
    assert printed in done.stderr
    assert "Traceback" not in done.stderr
    assert not os.path.ismount(places.mountpoint)


def test_mount_in_the_foreground_ends_with_its_mount(places: Places) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from efuse.cli.main import main; main()"),
            *("mount", "-f", "--json", "--plain"),
            *("passthrough", str(places.source), str(places.mountpoint)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    with contextlib.suppress(json.JSONDecodeError):
        while not text.endswith("}\n"):
            text += process.stdout.readline()
    assert json.loads(text)["type"] == "fuse"
    places.unmount()
    assert process.wait(timeout=120) == 0
    process.stdout.close()


def test_mount_helper_accepts_the_options_of_fstab(places: Places) -> None:
    options = "rw,noauto,nofail,x-systemd.automount,consistency=exclusive,plain,allow_other"
    places.helper(places.source, places.mountpoint, "-n", "-o", options, "-t", "efuse")
    (places.mountpoint / "f").touch()
    assert (places.source / "f").exists()
    assert "allow_other" in _mount_line(places.mountpoint)
    places.unmount()


def test_mount_helper_with_fake_option_mounts_nothing(places: Places) -> None:
    places.helper(places.source, places.mountpoint, "-f")
    assert not os.path.ismount(places.mountpoint)


def test_mount_helper_that_fails_exits_with_32(places: Places) -> None:
    done = places.helper("/no/such", places.mountpoint, status=32)
    assert done.stderr.startswith("mount.efuse: ")


def test_run_without_efuse_runs_the_daemon_unaccelerated(places: Places) -> None:
    done = places.efuse("run", "--", "sh", "-c", "echo ran; exit 7", status=7, device="/no/such")
    assert done.stdout == "ran\n"
    assert "not accelerated: the kernel has no eFuse" in done.stderr
    done = places.efuse("run", "--require", "--", "true", status=3, device="/no/such")
    assert "cannot be accelerated" in done.stderr


def test_run_of_a_missing_command_fails(places: Places) -> None:
    done = places.efuse("run", "--", "/no/such/daemon", status=1)
    assert "cannot be started" in done.stderr


@pytest.mark.parametrize("below", ["", "below"])
def test_mount_on_a_dead_mount_point_fails_with_a_hint(places: Places, below: str) -> None:
    with _foreground(places) as process:
        process.kill()
    done = places.efuse(
        "mount", "passthrough", places.source, places.mountpoint / below, "--plain", status=1
    )
    assert "cannot be mounted on: Transport endpoint is not connected (ENOTCONN)" in done.stderr
    assert f"try: umount -l {places.mountpoint}\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_mount_of_a_dead_source_names_the_source(places: Places) -> None:
    with _foreground(places) as process:
        process.kill()
    done = places.efuse(
        "mount", "passthrough", places.mountpoint, places.source, "--plain", status=1
    )
    assert "Transport endpoint is not connected (ENOTCONN)" in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def _foreground(places: Places, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a daemon in the foreground once its file system is mounted, and wait for its end."""
    words = ["mount", "-f", "--plain", "passthrough", str(places.source), str(places.mountpoint)]
    script = f"{';'.join(before)}\nfrom efuse.cli.main import main; main()"
    with subprocess.Popen([sys.executable, "-c", script, *words]) as process:
        table = Path("/proc/self/mountinfo")
        while f" {places.mountpoint} " not in table.read_text() and process.poll() is None:
            threading.Event().wait(0.005)
        yield process
        process.wait(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("where", ["before", "after"])
def test_signal_during_mounting_leaves_no_mount(
    places: Places, number: signal.Signals, where: str
) -> None:
    kill = f"os.kill(os.getpid(), {int(number)})"
    before, after = (kill, "None") if where == "before" else ("None", kill)
    change = (
        "import os, pyfuse3; real = pyfuse3.init",
        f"pyfuse3.init = lambda *a: ({before}, real(*a), {after})",
    )
    with _foreground(places, *change):
        pass
    assert f" {places.mountpoint} " not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_command_while_its_daemon_mounts_leaves_no_mount(
    places: Places, number: signal.Signals
) -> None:
    """The parent waits for its child, which reports the mount once it exists."""
    kill = f"os.kill(os.getppid(), {int(number)})"
    change = (
        f"import os, pyfuse3; real = pyfuse3.init; pyfuse3.init = lambda *a: (real(*a), {kill})"
    )
    words = ["mount", "--plain", "passthrough", str(places.source), str(places.mountpoint)]
    script = f"{change}\nfrom efuse.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *words], timeout=120)
    assert done.returncode == -number
    assert f" {places.mountpoint} " not in Path("/proc/self/mountinfo").read_text()


_TAKES_SIGNALS = """
import os, signal, sys
import efuse, pyfuse3
from efuse.errors import MountError
real = pyfuse3.init
pyfuse3.init = lambda *a: (real(*a), os.kill(os.getppid(), signal.SIGTERM))
signal.signal(signal.SIGTERM, lambda *_: print("taken"))
try:
    with efuse.mount(efuse.Passthrough(sys.argv[1]), sys.argv[2], plain=True):
        print("mounted")
except MountError as error:
    print(error)
"""


def test_program_with_its_own_signal_handler_gets_an_error_instead_of_a_mount(
    places: Places,
) -> None:
    words = [sys.executable, "-c", _TAKES_SIGNALS, places.source, places.mountpoint]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "taken\nit is not mounted: SIGTERM arrived meanwhile (EINTR)\n"
    assert f" {places.mountpoint} " not in Path("/proc/self/mountinfo").read_text()


_FAILS_TO_MAKE = """
import os, sys
from efuse.errors import MountError
from efuse.fs import start
def make():
    raise RuntimeError("no such file system")
parent = os.getpid()
try:
    start(make, sys.argv[1], plain=True)
except BaseException as error:
    print(os.getpid() == parent, error, flush=True)
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_failure_of_the_constructor_is_reported_by_the_parent_alone(
    places: Places, is_read: bool
) -> None:
    """If no process reads its standard error, the child cannot print its failure."""
    reading, writing = os.pipe()
    words = [sys.executable, "-c", _FAILS_TO_MAKE, str(places.mountpoint)]
    with open(reading, "rb") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=writing, text=True)
        os.close(writing)
        if not is_read:
            errors.close()
        printed, _ = process.communicate(timeout=60)
        if is_read:
            assert b"RuntimeError: no such file system" in errors.read()
    ended = f"{places.mountpoint} cannot be mounted: its process ended with 1"
    assert printed == f"True {ended}\n"


# A program that mounts without the preloaded library, like a statically linked daemon.
_PYTHON = [sys.executable, "-c"]
_DAEMON = """
import sys
from efuse.cli.main import main
sys.argv[0] = "efuse"
main(["mount", "passthrough", *sys.argv[1:], "--plain"])
"""


def test_run_reports_a_plain_mount_when_the_daemon_forks(places: Places) -> None:
    """The command returns once the daemon has gone into the background."""
    words = [*_PYTHON, _DAEMON, places.source, places.mountpoint]
    done = places.efuse("run", "--", *words, device="/dev/null")
    assert f"{places.mountpoint}: not accelerated: its mount has flags" in done.stderr
    (places.mountpoint / "f").touch()
    assert (places.source / "f").exists()
    places.unmount()


def test_required_run_ends_a_daemon_that_mounts_plain_fuse(places: Places) -> None:
    words = [*_PYTHON, _DAEMON, places.source, places.mountpoint, "-f"]
    done = places.efuse("run", "--require", "--", *words, status=3, device="/dev/null")
    assert "cannot be accelerated: its mount has flags" in done.stderr
    assert "Traceback" not in done.stderr
    assert not os.path.ismount(places.mountpoint)


def test_required_run_leaves_the_mount_of_another_daemon(places: Places) -> None:
    """The mount exists before the run, on a directory that the command names."""
    places.efuse("mount", "passthrough", places.source, places.mountpoint, "--plain")
    words = ["sh", "-c", "exit 0", str(places.mountpoint)]
    done = places.efuse("run", "--require", "--", *words, status=1, device="/dev/null")
    assert "mounted nothing" in done.stderr
    assert os.path.ismount(places.mountpoint)
    places.unmount()


def test_run_accepts_any_arguments_of_a_command(places: Places) -> None:
    loop = places.source / "loop"
    loop.symlink_to(loop)
    words = ["sh", "-c", "exit 7", loop, "x" * 5000, "-o", "a=b=c", ""]
    done = places.efuse("run", "--", *words, status=1, device="/dev/null")
    assert "ended with status 7 and mounted nothing" in done.stderr


def test_mount_numbers_are_not_reused(places: Places) -> None:
    numbers = set()
    for _ in range(3):
        subprocess.run(["mount", "-t", "tmpfs", "x", places.mountpoint], check=True)
        number = number_at(str(places.mountpoint))
        assert number is not None
        device = places.mountpoint.stat().st_dev
        assert is_mounted(number) == os.major(device) << 20 | os.minor(device)
        places.unmount()
        assert is_mounted(number) is None
        numbers.add(number)
    assert len(numbers) == 3


@contextlib.contextmanager
def _fuse_mounted(mountpoint: Path) -> Iterator[int]:
    """Mount a file system that no process serves, and yield its number. Do not unmount it."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
    try:
        where = os.fsencode(mountpoint)
        assert _libc.mount(b"x", where, b"fuse", ctypes.c_ulong(0), options) == 0
        number = number_at(str(mountpoint))
        assert number is not None
        yield number
    finally:
        os.close(device)


def test_unmount_by_number_keeps_a_later_mount(places: Places) -> None:
    with _fuse_mounted(places.mountpoint) as first:
        assert _libc.umount2(os.fsencode(places.mountpoint), 0) == 0
    with _fuse_mounted(places.mountpoint) as second:
        detach(str(places.mountpoint), first)
        assert is_mounted(second) is not None
        detach(str(places.mountpoint), second)
        assert is_mounted(second) is None


def test_unmount_by_number_keeps_a_mount_of_another_type(places: Places) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "x", places.mountpoint], check=True)
    number = number_at(str(places.mountpoint))
    assert number is not None
    detach(str(places.mountpoint), number)
    assert is_mounted(number) is not None


def test_unmount_by_number_keeps_a_mount_on_top(places: Places) -> None:
    where = os.fsencode(places.mountpoint)
    with _fuse_mounted(places.mountpoint) as below:
        # mount(8) would access the file system that no process serves, and hang.
        assert _libc.mount(b"x", where, b"tmpfs", ctypes.c_ulong(0), None) == 0
        over = number_at(str(places.mountpoint))
        assert over is not None
        try:
            detach(str(places.mountpoint), below)
            assert is_mounted(over) is not None
        finally:
            _libc.umount2(where, 0)
        detach(str(places.mountpoint), below)
        assert is_mounted(below) is None


@pytest.mark.parametrize("name", ["a b", "a:b", "$LIB"])
def test_shim_is_copied_if_ld_preload_cannot_name_its_path(places: Places, name: str) -> None:
    cache = places.source / name
    done = subprocess.run(
        [sys.executable, "-c", "from efuse.fs.preload import *; print(preload_library())"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    environment = {**os.environ, "LD_PRELOAD": done.stdout.strip()}
    maps = subprocess.run(["cat", "/proc/self/maps"], env=environment, capture_output=True)
    assert b"libefuse-preload.so" in maps.stdout
    assert maps.stderr == b""


_LEAVES_ORPHANS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.1)
        os._exit(0)
    os.wait()
run = os.getppid()
for _ in range(100):
    with open(f"/proc/{run}/task/{run}/children") as file:
        if len(file.read().split()) == 2:
            raise SystemExit(5)
    time.sleep(0.1)
raise SystemExit(4)
"""


def test_run_reaps_processes_that_its_daemon_leaves(places: Places) -> None:
    """The daemon goes on, and checks that the command has one child besides: it looks at calls."""
    daemon = [sys.executable, "-c", _LEAVES_ORPHANS]
    done = places.efuse("run", "--", *daemon, status=1, device="/dev/null")
    assert "ended with status 5 and mounted nothing" in done.stderr


_LEAVES_A_PROCESS = """
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print("in the background", file=sys.stderr, flush=True)
time.sleep(20)
print("still there", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_run_forwards_signals_to_a_background_process_that_may_mount(
    number: signal.Signals,
) -> None:
    """The process that was started has ended. It has left another one, which may mount soon."""
    change = "from pathlib import Path; from efuse.fs import mountpoint; mountpoint.DEVICE = Path"
    script = f"{change}('/dev/null'); from efuse.cli.main import main; main()"
    daemon = [sys.executable, "-c", _LEAVES_A_PROCESS]
    words = [sys.executable, "-c", script, "run", "--", *daemon]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        assert command.stderr.readline() == "in the background\n"
        command.send_signal(number)
        # The end of the output shows that both processes have ended.
        printed = command.stderr.read()
    assert command.returncode == 1, printed
    assert "mounted nothing" in printed
    assert "still there" not in printed
