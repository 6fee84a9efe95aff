# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line as tests start it: by the interpreter that they run in."""

import sys

EFUSE = (sys.executable, "-c", "from efuse.cli.main import main; main()")
