# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the command line in tests, with the interpreter that runs the tests."""

import subprocess
import sys
from typing import Any

EFUSE = (sys.executable, "-c", "from efuse.cli.main import main; main()")

_READS = "-all,+dac_read_search"
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={_READS}", f"--ambient-caps={_READS}", f"--bounding-set={_READS}"),
)
"""A command that runs another command as another user, who may only read this checkout."""


def run_output(*command: object, status: int = 0, **more: Any) -> str:
    """Run a command; return what it printed to standard output and standard error.

    :param status: expected exit status; a traceback is an error in any case.
    :param more: arguments of `subprocess.run`.
    """
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **more,
    )
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout
