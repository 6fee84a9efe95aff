# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why the requests of a mount do not pass through channels, from what /proc shows of its daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse.control.transport import why_no_channels
from efuse.stats.model import Sample
from efuse.tables import words

_OLD, _NEW = "/lib/libfuse3.so.3.10.5", "/lib/libfuse3.so.3.14.0"


def _daemon(
    proc: Path, pid: int, *names: str, environ: str = "A=B\0", serves: int | None = None
) -> None:
    """Make what /proc shows of a process with /dev/efuse open, in which files are mapped."""
    process = proc / str(pid)
    for name in ("fd", "fdinfo"):
        (process / name).mkdir(parents=True)
    (process / "fd/5").symlink_to("/dev/efuse")
    told = "" if serves is None else f"fuse_connection:\t{serves}\n"
    (process / "fdinfo/5").write_text(f"pos:\t0\n{told}")
    (process / "environ").write_text(environ)
    lines = [f"7f00-7f01 r-xp 00000000 fe:00 12      {name}\n" for name in names]
    (process / "maps").write_text("7f00-7f01 rw-p 00000000 00:00 0\n" + "".join(lines))


@pytest.mark.parametrize(
    ("names", "environ", "reason"),
    [
        ((), "", "its daemon does not use libfuse 3 as a shared library"),
        (("/lib/libfuse.so.2.9.9",), "", "its daemon does not use libfuse 3 as a shared library"),
        ((_OLD,), "", "its daemon uses libfuse 3.10; they take 3.14 or later"),
        ((f"{_OLD} (deleted)",), "", "its daemon uses libfuse 3.10; they take 3.14 or later"),
        ((_NEW,), "EFUSE_CHANNELS=0\0", "they were turned off (EFUSE_CHANNELS=0)"),
        ((_NEW,), "", "its daemon was not started by `efuse run`"),
        (
            ("/lib/libfuse3.so.4.17.2", "/run/libefuse-preload.so"),
            "",
            "its daemon serves requests in a single thread, or could not make them",
        ),
    ],
)
def test_reason_is_what_the_process_lacks(
    tmp_path: Path, names: tuple[str, ...], environ: str, reason: str
) -> None:
    _daemon(tmp_path, 10, *names, environ=environ)
    assert why_no_channels(3, proc=tmp_path) == reason


def test_daemon_of_another_connection_is_left_out(tmp_path: Path) -> None:
    _daemon(tmp_path, 10, _OLD, serves=3)
    _daemon(tmp_path, 11, serves=4)
    assert (
        why_no_channels(3, proc=tmp_path) == "its daemon uses libfuse 3.10; they take 3.14 or later"
    )


def test_daemons_that_cannot_be_told_apart_are_all_named(tmp_path: Path) -> None:
    _daemon(tmp_path, 10, _OLD)
    _daemon(tmp_path, 11)
    assert why_no_channels(3, proc=tmp_path) == (
        "one of: its daemon does not use libfuse 3 as a shared library;"
        " its daemon uses libfuse 3.10; they take 3.14 or later"
    )


def test_daemon_that_is_not_visible_is_reported(tmp_path: Path) -> None:
    (tmp_path / "10/fd").mkdir(parents=True)
    (tmp_path / "10/fd/0").symlink_to("/dev/null")
    (tmp_path / "self").mkdir()
    assert why_no_channels(3, proc=tmp_path) == "its daemon is not visible here"


def test_reason_is_looked_for_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`efuse top` shows it in each frame, and there may be many processes."""
    asked: list[int] = []

    def why(connection: int) -> str:
        asked.append(connection)
        return f"reason {len(asked)}"

    words._why.cache_clear()
    monkeypatch.setattr(words, "why_no_channels", why)
    shown = [
        words.transport_words(Sample(c, at * 10**9)) for c, at in [(3, 0), (3, 9), (4, 9), (3, 10)]
    ]
    words._why.cache_clear()
    assert asked == [3, 4, 3]
    assert shown == [f"/dev/efuse: reason {n}" for n in (1, 1, 2, 3)]
