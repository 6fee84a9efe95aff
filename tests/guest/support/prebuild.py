# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile what the guest tests run, at the host's full speed.

Run it by ``python -m tests.guest.support.prebuild``. Everything goes into the cache, keyed by
content, where the tests find it. The tests compile what is missing there, which takes up to a
minute each under emulation. The handlers are the examples, and the constants of test modules that
hold C text.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from efuse import locations
from efuse.bench.load import load_program, stamp_library
from efuse.bench.lookup import lookup_program
from efuse.bench.programs import COMPILED, URING, built
from efuse.bpf.compile import builtin, compile_text
from efuse.bpf.members import CSD_FUNCTION, CSD_POLICY, EFUSE_OPS, Interface
from efuse.bpf.requests import request_programs
from efuse.bpf.tracing import shipped
from efuse.libefuse import library
from tests.guest.support import delays
from tests.guest.support.channel_daemon import hello, loop_daemon, passthrough_fh
from tests.guest.support.policies import POLICIES
from tests.libefuse.sanitizers import ADDRESS, THREAD

_TESTS = Path(__file__).parents[1]
_ROOT = locations.package().parent
LIBRARIES = ("preload", "publish", "python")


def handlers(interface: Interface) -> Iterator[str]:
    """Yield the C texts that the tests attach or load."""
    directories = {EFUSE_OPS: "examples", CSD_FUNCTION: "functions"}
    for path in sorted((locations.data(interface.data) / directories[interface]).glob("*.c")):
        yield path.read_text()
    for path in sorted(_TESTS.rglob("test_*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for value in vars(importlib.import_module(name)).values():
            # Leave out a common head of several texts, which has no function.
            begins = f'#include "{interface.header}"'
            if isinstance(value, str) and begins in value and "\nint " in value:
                yield value


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(built, name) for name in (*COMPILED, URING)]
        made += [pool.submit(each) for each in (load_program, stamp_library, lookup_program)]
        made += [pool.submit(each) for each in (loop_daemon, ADDRESS.preload_library)]
        made += [pool.submit(THREAD.preload_library), pool.submit(hello)]
        made += [pool.submit(passthrough_fh, Path())]
        made += [pool.submit(library, f"libefuse-{name}.so") for name in LIBRARIES]
        made += [pool.submit(builtin), pool.submit(request_programs), pool.submit(delays.programs)]
        made += [pool.submit(shipped, name) for name in ("copied", "trace")]
        for interface in (EFUSE_OPS, CSD_FUNCTION):
            for text in set(handlers(interface)):
                made.append(pool.submit(compile_text, text, "a test's own", interface=interface))
        for text in POLICIES:
            made.append(pool.submit(compile_text, text, "a test's own", interface=CSD_POLICY))
        for each in made:
            each.result()


if __name__ == "__main__":
    main()
