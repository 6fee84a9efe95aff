# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line as tests start it: by the interpreter that they run in."""

import subprocess
import sys
from typing import Any

EFUSE = (sys.executable, "-c", "from efuse.cli.main import main; main()")

_READS = "-all,+dac_read_search"
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={_READS}", f"--ambient-caps={_READS}", f"--bounding-set={_READS}"),
)
"""What runs a command as another user, who may read this checkout, and no more."""


def run_said(*command: object, status: int = 0, **more: Any) -> str:
    """Run a command, and return what it printed to both of its outputs.

    :param status: with which it has to end, and without a traceback.
    :param more: of `subprocess.run`.
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
