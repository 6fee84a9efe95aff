# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the one decisive line in a verifier's log."""

from __future__ import annotations

import re

from efuse import locations
from efuse.bpf.spec import Line, ProgramSpec
from efuse.errors import VerifierError, reason

__all__ = ["explain", "verifier_error"]

_INSTRUCTION = re.compile(r"^\s*(\d+): (?:\([0-9a-f]{2}\)|R\d|frame\d)")
# Lines that do not give the reason: register states, summaries, the verifier's own notes.
_NOISE = re.compile(
    r"^(?:\d+: |from \d+ |processed \d+ insns|verification time|stack depth|arg#\d+ reg|"
    r"max_states|mark_precise|; |func#\d+|Func#\d+|caller:|callee:|returning from|to caller|"
    r"func '\w+' arg\d+ has btf_id|\s*(?:frame\d+: )?R\d+(?:_\w+)?=|$)"
)
# Newer kernels end the log with a report, which repeats the reason and adds suggestions.
_REPORT = re.compile(r"^Verification failed: .*\n(?:\s*\nReason:\s*(.*))?", re.MULTILINE)


def explain(log: str, program: ProgramSpec) -> tuple[str, Line | None]:
    """Return why the verifier refused *program*, and the source line, or None if it is unknown.

    :param log: log of the verifier, at level 1.
    """
    where: Line | None = None
    report = _REPORT.search(log)
    why = (report[1] or "") if report else ""
    for line in log[: report.start() if report else None].splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            where = program.line_of(int(match[1])) or where
        elif not _NOISE.match(line):
            why = line.strip()
    match = re.search(r"\binsn (\d+)\b", why)
    if match and (line_of := program.line_of(int(match[1]))):
        where = line_of
    return why, where


def verifier_error(member: str, program: ProgramSpec, number: int, log: str) -> VerifierError:
    """Save the verifier's log to a file and return the exception for a refused program.

    :param number: errno of BPF_PROG_LOAD, positive.
    """
    why, where = explain(log, program)
    place = f" at {where.file}:{where.number}" if where else ""
    hint = None
    if log:
        # One file per member: the latest log is the one to read.
        path = locations.write(locations.cache() / "verifier" / f"{member}.log", log)
        hint = f"read the verifier's whole log in {path}"
    return VerifierError(
        f"the kernel refused the handler of {member}{place}: {why or reason(number)}",
        hint=hint,
        log=log,
    )
