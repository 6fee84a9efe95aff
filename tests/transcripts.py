# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transcripts in the documents: parse them, and run them again.

In a transcript, ``# `` or ``$ `` precedes a command. The lines after it are its output, or the text
of a here-document. ``...`` stands for any lines.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT

__all__ = ["Step", "World", "agrees", "steps"]

_DEADLINE_S = 240

_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_APART = """\
mount -t tmpfs tmpfs /media
for directory in mnt srv opt; do mount -t tmpfs tmpfs /$directory || exit 1; done
for directory in /etc /usr /var "$PWD"; do
	upper=/media/$directory/upper work=/media/$directory/work
	mkdir -p "$upper" "$work"
	mount -t overlay -o "lowerdir=$directory,upperdir=$upper,workdir=$work" overlay "$directory" ||
		exit 1
done
cd "$PWD"
"""
# A message that file systems print if the module is not loaded.
_PLAIN = re.compile(r"^/\S+ is plain FUSE: .* its module is not loaded \(ENOENT\)\n", re.MULTILINE)
_ERROR = re.compile(
    r"^try: |: (?:Operation not permitted|No such file or directory)$", re.MULTILINE
)
_COMMENT = re.compile(r"\s{2,}# .*$")
# A number with its parts, or a digest.
_FIGURE = re.compile(r"\b[0-9a-f]{32,40}\b|\d[\d.,]*(?:e\+\d+)?(?![\w])|\d[\d.]*(?=[A-Z]\b)")


@dataclass(frozen=True)
class Step:
    """A command, and the lines after it."""

    command: str
    printed: tuple[str, ...]


def steps(text: str) -> list[Step]:
    """Split a transcript into its steps."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(("# ", "$ ")):
            found.append((_COMMENT.sub("", line[2:]), []))
        else:
            assert found, f"nothing is typed before {line!r}"
            found[-1][1].append(line)
    return [Step(command, tuple(printed)) for command, printed in found]


def _like(printed: str) -> str:
    """Return printed text without its figures and its alignment."""
    lines = [" ".join(_FIGURE.sub("0", line).split()) for line in printed.splitlines()]
    return "\n".join(line for line in lines if line)


def agrees(wanted: str, printed: str) -> bool:
    """Return whether *printed* is what a document shows, apart from figures."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else f"{re.escape(line)}\n"
        for line in _like(wanted).splitlines()
    )
    return re.fullmatch(pattern, f"{_like(printed)}\n".lstrip("\n")) is not None


class World:
    """A bash in a mount namespace in which a test may change anything. A context manager.

    /mnt, /srv and /opt are empty. Writes below /etc, /usr, /var and in the repository are not
    visible outside.

    :ivar instead: replacements for words of transcripts that are different here.
    """

    def __init__(self) -> None:
        self.instead: dict[str, str] = {}
        binaries = Path(sys.executable).parent
        self._process = subprocess.Popen(
            # Commands in a guest start with SIGINT ignored, which the typed commands would inherit.
            ["env", "--default-signal", *_UNSHARE, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "TIMEFORMAT": "%R s"},
            cwd=ROOT,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._proc = Path("/proc") / str(self._process.pid)
        self.type(_APART)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            # Daemons end with their mounts; /mnt itself is unmounted last.
            self.type("cd /; umount --recursive --lazy /mnt; wait")
        finally:
            self._input.close()
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._output.close()

    def path(self, name: str) -> Path:
        """Return the path by which this process reaches the file *name* in the namespace."""
        return Path(f"{self._proc}/root{name}")

    def made(self, name: str) -> Path:
        """Make the directory *name* in the namespace."""
        path = self.path(name)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def play(self, text: str, *, endless: Iterable[str] = ()) -> None:
        """Type a transcript, and fail if the output differs from it.

        A command must fail if and only if the transcript shows an error of it.

        :param endless: commands that are to be interrupted when they have printed their output.
        """
        for step in steps(text):
            command = step.command
            for old, new in self.instead.items():
                command = command.replace(old, new)
            wanted = "\n".join(step.printed)
            if step.command in endless:
                self._interrupt(command, wanted)
                continue
            if command.startswith("cat >"):
                command, wanted = f"{command} <<'--END--'\n{wanted}\n--END--", ""
            printed = self.type(command, fails=bool(_ERROR.search(wanted)))
            assert agrees(wanted, printed), f"{command} printed\n{printed}\ninstead of\n{wanted}"

    def type(self, text: str, *, fails: bool = False) -> str:
        """Type *text*, and return its output. If it ends with `&`, wait until it has mounted.

        :param fails: whether the command must fail.
        """
        before = self._mounts()
        self._write(text)
        printed, status = self._answer()
        assert (status != 0) == fails, f"{text}: status {status}\n{printed}"
        if text.rstrip().endswith("&"):
            self._until(lambda: self._mounts() > before, f"a mount by {text}")
        return printed

    def _interrupt(self, command: str, wanted: str) -> None:
        log = self.made("/media/endless") / "output"
        log.touch()
        self.type(f"set -m; {{ {command}; }} >/media/endless/output 2>&1 & endless=$!; set +m")

        def shown(received: str) -> bool:
            return received != "" and agrees(wanted, received)

        self._until(lambda: shown(log.read_text()), f"{wanted!r} of {command}")
        printed = self.type("kill -INT -$endless; wait $endless || true")
        assert printed == "", printed

    def _write(self, text: str) -> None:
        self._mark = f"--{secrets.token_hex(8)}--"
        self._input.write(f"{text}\necho {self._mark}$?\n".encode())
        self._input.flush()

    def _answer(self) -> tuple[str, int]:
        received = ""

        def is_whole() -> bool:
            nonlocal received
            piece = self._output.read()
            assert piece != b"", f"the shell ended after {received}"
            received += (piece or b"").decode()
            return re.search(rf"{self._mark}\d+\n$", received) is not None

        self._until(is_whole, f"{self._mark}")
        printed, _, status = _PLAIN.sub("", received).rpartition(self._mark)
        return printed, int(status)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            select.select([self._output], [], [], 0.02)

    def _mounts(self) -> int:
        return len((self._proc / "mountinfo").read_text().splitlines())
