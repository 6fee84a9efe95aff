# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count the instructions of requests, in a guest whose clock counts them. Writes JSON.

Each figure is the cost of one call from Python, with the few thousand instructions of the caller,
which are always the same. The kernel's own counters verify that each call was answered in the
intended place.
"""

import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from efuse import bpf
from efuse.bench.lower import ext4
from efuse.bench.systems import mounted
from efuse.control import Connection
from efuse.stats import Counters, read
from tests.guest.support import daemons

ROUNDS = 5
AT_FDCWD, AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, STATX_SIZE = -100, 0x1000, 0x2000, 0x200
EMPTY = "int {member}(struct efuse_req *req) {{ return 0; }}\n"
EMPTY_MEMBERS = ("lookup", "getattr", "getxattr", "open", "flush")

_libc = ctypes.CDLL(None, use_errno=True)


def count(call: Callable[[], object], times: int) -> int:
    """Return the number of instructions of a *call*: the least of the means of some rounds."""
    best = None
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(times):
            call()
        mean = (time.perf_counter_ns() - begin) / times
        best = mean if best is None else min(best, mean)
    assert best is not None
    return round(best)


def answered(
    connection: Connection, opcode: str, call: Callable[[], object], times: int, by: str
) -> int:
    """Count the instructions of *call*, each of which must be one request of *opcode*.

    All these requests must be answered in the same place. At most one other request per round may
    be answered elsewhere, for example a GETATTR after a READ: the least mean does not show it.

    :param by: the counter of the place: ``hits`` or ``daemon``.
    """
    call()
    before = read(connection, timing=False).opcodes
    found = count(call, times)
    after = read(connection, timing=False).opcodes
    change = {name: n - before.get(name, Counters()) for name, n in after.items()}
    others = sum(n.requests - getattr(n, by) for n in change.values())
    assert change[opcode].requests == getattr(change[opcode], by) == ROUNDS * times, change
    assert others <= ROUNDS, change
    return found


def measure(connection: Connection, root: Path) -> dict[str, int]:
    """Measure requests that the built-in handlers answer, then the cost of passing a request."""
    file, directory = os.fsencode(root / "file"), root / "sub"
    buffer = ctypes.create_string_buffer(256)

    def lookup() -> None:
        with suppress(FileExistsError):
            os.mkdir(directory)

    def getattr_() -> None:
        if _libc.statx(AT_FDCWD, file, AT_STATX_FORCE_SYNC, STATX_SIZE, buffer):
            raise OSError(ctypes.get_errno(), "statx")

    def getxattr() -> None:
        os.getxattr(file, "user.present")

    def open_() -> None:
        os.close(os.open(file, os.O_RDONLY))

    here = functools.partial(answered, connection, times=500, by="hits")
    found = {
        "lookup": here("lookup", lookup),
        "getattr": here("getattr", getattr_),
        "getxattr": here("getxattr", getxattr),
        "open_flush": here("open", open_),
    }
    # With a descriptor, because without programs each component of a path costs a request.
    fd = os.open(file, os.O_RDONLY)
    flags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC

    def by_descriptor() -> None:
        if _libc.statx(fd, b"", flags, STATX_SIZE, buffer):
            raise OSError(ctypes.get_errno(), "statx")

    passed = functools.partial(answered, connection, "getattr", by_descriptor, 200, "daemon")
    bpf.Attachment.open(connection.id).detach()
    found["passed"] = passed()
    text = '#include "efuse.bpf.h"\n' + "".join(EMPTY.format(member=m) for m in EMPTY_MEMBERS)
    with bpf.attach(connection.id, dict.fromkeys(EMPTY_MEMBERS, text), with_builtin=False):
        found["passed_by_program"] = passed()
    os.close(fd)
    return found


def moved(path: Path, ran: Callable[[], int] | None, *, write: bool = True) -> dict[str, int]:
    """Count the instructions of reads and writes of parts of a file, with buffers made before.

    :param ran: returns how many of them have been answered in the intended place.
    :param write: whether to measure writes as well.
    """
    small, large = bytearray(4 << 10), bytearray(128 << 10)
    fd = os.open(path, os.O_RDWR)
    calls = {
        "read_4k": lambda: os.preadv(fd, [small], 4096),
        "read_128k": lambda: os.preadv(fd, [large], 0),
    }
    if write:
        calls["write_4k"] = lambda: os.pwritev(fd, [small], 4096)
    found = {}
    for name, call in calls.items():
        call()
        before = ran() if ran else 0
        found[name] = count(call, 100)
        assert not ran or ran() - before == ROUNDS * 100, name
    os.close(fd)
    return found


def measure_data(lower: Path, base: Path) -> dict[str, int]:
    """Measure READs and WRITEs of a warm file: ext4's, FUSE's own passthrough's, and eFuse's."""
    file = lower / "data"
    file.write_bytes(bytes(1 << 20))
    found = {"ext4": moved(file, None)}
    with daemons.mounted(_made(base / "passthrough"), passthrough=str(file)) as m:
        m.model.create("f", bytes(1 << 20))
        found["passthrough"] = moved(Path(m / "f"), None)
        assert {"read", "write"}.isdisjoint(m.asked())
    for path in ("direct", "cache"):
        with daemons.mounted(_made(base / path), consistency="exclusive", path=path) as m:
            m.model.create("f", bytes(1 << 20))
            os.stat(m / "f")
            m.call("map_extent", "f", str(file), os.O_RDWR, write=True)
            ran = functools.partial(_requests, m.connection, path)
            found[path] = moved(Path(m / "f"), ran, write=path == "direct")
    return {f"{kind}_{name}": n for kind, calls in found.items() for name, n in calls.items()}


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _requests(connection: Connection, path: str) -> int:
    return connection.counts(f"paths/{path}")["requests"]


def main() -> None:
    with (
        ext4(64) as lower,
        tempfile.TemporaryDirectory(prefix="efuse-perf-") as base,
    ):
        (lower / "sub").mkdir()
        (lower / "file").write_bytes(b"data")
        os.setxattr(lower / "file", "user.present", b"value")
        with mounted("efuse", lower, Path(base) / "mnt") as system:
            assert system.connection is not None
            found = measure(Connection(system.connection), system.root)
        found |= measure_data(lower, Path(base))
    kernel = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout
    Path(sys.argv[1]).write_text(json.dumps({"kernel": kernel.strip(), "instructions": found}))


if __name__ == "__main__":
    main()
