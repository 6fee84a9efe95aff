# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line in a process that is forked from the test's process.

It runs the command's own code, with its own descriptors, output and exit status. Python's start and
the imports, which take seconds under emulation, are done only once. The tests of the documents'
transcripts, and all that use `EFUSE` of `tests.commands`, show that ``efuse`` starts by itself.
Other threads may exist at the time of a fork, but must not hold locks.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from efuse import features
from efuse.cli.main import main

# Modules that commands import only when they mount or print a table.
for late in ("efuse.fs", "rich.table"):
    importlib.import_module(late)


def efuse(*words: str | os.PathLike[str]) -> str:
    """Run ``efuse`` with *words* and no standard input; return its standard output."""
    return run_efuse(*words).stdout


def run_efuse(*words: str | os.PathLike[str], status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``efuse`` with *words* and no standard input; return its output.

    :param status: the expected exit status.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = _begin(words, out.fileno(), err.fileno())
        returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read())
    done = subprocess.CompletedProcess(["efuse", *words], returncode, *printed)
    assert returncode == status, done
    return done


class Beside:
    """``efuse`` in the background. It must not print more than a pipe holds.

    :ivar out: its standard output.
    :ivar err: its standard error.
    """

    def __init__(self, *words: str | os.PathLike[str]) -> None:
        (read_out, out), (read_err, err) = os.pipe(), os.pipe()
        self.out, self.err = os.fdopen(read_out), os.fdopen(read_err)
        self._pid = _begin(words, out, err)
        os.close(out)
        os.close(err)

    def running(self) -> bool:
        """Return whether it still runs."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end; return exit status, remaining standard output, and standard error."""
        _, status = os.waitpid(self._pid, 0)
        with self.out, self.err:
            return os.waitstatus_to_exitcode(status), self.out.read(), self.err.read()

    def end(self, number: int) -> tuple[int, str, str]:
        """Send a signal and wait for its end; returns what `ended` returns."""
        os.kill(self._pid, number)
        return self.ended()


def _begin(words: Sequence[str | os.PathLike[str]], out: int, err: int) -> int:
    texts = [os.fspath(word) for word in words]
    importlib.import_module(f"efuse.cli.{texts[0]}")
    pid = os.fork()
    if pid == 0:
        _be_efuse(texts, out, err)
    return pid


def _be_efuse(words: list[str], out: int, err: int) -> NoReturn:
    """Undo what pytest and the tests have set up in this process, run the command, and exit."""
    status = 1
    try:
        # Finalizers of the parent's objects must not close new descriptors with the same numbers.
        gc.freeze()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((null, out, err)):
            os.dup2(fd, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        logging.root.handlers.clear()
        warnings.simplefilter("ignore")
        sys.unraisablehook = sys.__unraisablehook__
        features.feature.cache_clear()
        main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - it must never return into pytest's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
