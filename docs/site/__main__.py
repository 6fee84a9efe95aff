# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the site: ``python -m docs.site [DIRECTORY]``, by default into build/site."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from docs.site.assemble import ROOT, assemble


def main(output: Path) -> int:
    """Build the site into *output*, and return 0 if there were no errors and no warnings."""
    with tempfile.TemporaryDirectory(prefix="efuse-site-") as scratch:
        source = Path(scratch) / "source"
        assemble(source)
        options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-d", f"{scratch}/doctrees"]
        configuration = ["-c", str(Path(__file__).parent)]
        return build_main([*options, *configuration, str(source), str(output)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
