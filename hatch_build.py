# SPDX-License-Identifier: LGPL-2.1-or-later
"""Put into the wheel what the package needs besides Python: sources and compiled handlers.

The handlers are compiled if the building machine has BCC and allows it to create maps (as root).
Otherwise they are compiled when they are first used.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DataBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Fill ``efuse/_data``."""

    _specs: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """List the files that go into the wheel.

        :param version: ``standard``, or ``editable``, which needs no files.
        :param build_data: receives the files in its ``force_include``.
        """
        if version == "editable":
            return
        root = Path(self.root)
        included = build_data["force_include"]
        for name in ("bpf_programs", "csd", "kernel_patches", "libefuse"):
            if (root / name).is_dir():
                included[str(root / name)] = f"efuse/_data/{name}"
        self._specs = tempfile.TemporaryDirectory()
        compiler = subprocess.run(
            [sys.executable, "-m", "efuse.bpf.build", self._specs.name],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if compiler.returncode == 0:
            included[self._specs.name] = "efuse/_data/specs"
        else:
            self.app.display_warning(f"no compiled handlers in the wheel: {compiler.stderr}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory with the compiled handlers."""
        if self._specs is not None:
            self._specs.cleanup()
