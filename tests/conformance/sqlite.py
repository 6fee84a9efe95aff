# SPDX-License-Identifier: LGPL-2.1-or-later
"""SQLite, whose writer is killed: what it has acknowledged is there, and nothing half done.

A process commits one transaction after the other, and tells the number of each one after COMMIT has
returned. It is killed at a random moment, also within a transaction. Another connection then finds
a sound database with each acknowledged transaction, byte for byte. The transaction that was not yet
acknowledged is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import sqlite3
import struct
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.conformance.outcome import FAILED, PASSED, Amount, Outcome, Place

SEED = 20261128
JOURNALS = ("delete", "wal")

_ACKNOWLEDGED = struct.Struct("<Q")
_LIMIT_S = 120
_MANY = 10
"""So many kills leave at least one transaction to be undone."""


def rows(number: int) -> list[bytes]:
    """Return what the transaction *number* inserts: rows of up to three pages."""
    rng = random.Random(number)
    return [rng.randbytes(rng.randint(1, 12_000)) for _ in range(rng.randint(1, 4))]


def connected(path: Path, journal: str) -> sqlite3.Connection:
    """Connect to the database, in which each COMMIT reaches the disk."""
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    (mode,) = db.execute(f"PRAGMA journal_mode = {journal}").fetchone()
    if mode != journal:
        raise ValueError(f"the journal is {mode}, not {journal}")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 20")
    return db


def commit(db: sqlite3.Connection, number: int) -> None:
    """Carry out the transaction *number*, which changes two tables."""
    db.execute("BEGIN IMMEDIATE")
    for position, data in enumerate(rows(number)):
        db.execute("INSERT INTO data VALUES (?, ?, ?)", (number, position, data))
    db.execute("UPDATE last SET number = ?", (number,))
    db.execute("COMMIT")


def wrong(db: sqlite3.Connection, acknowledged: int) -> str:
    """Return what is wrong with the database; empty: nothing."""
    (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    if verdict != "ok":
        return f"integrity_check: {verdict}"
    (last,) = db.execute("SELECT number FROM last").fetchone()
    if last not in (acknowledged, acknowledged + 1):
        return f"the last transaction is {last}, but {acknowledged} is acknowledged"
    found = db.execute("SELECT number, position, data FROM data ORDER BY 1, 2").fetchall()
    expected = [(n, p, data) for n in range(1, last + 1) for p, data in enumerate(rows(n))]
    if found != expected:
        return f"the rows of the transactions up to {last} are not those that were inserted"
    return ""


def _writer(path: Path, journal: str, first: int, pipe: int) -> NoReturn:
    """Commit transactions in this forked process until it is killed."""
    try:
        db = connected(path, journal)
        for number in itertools.count(first):
            commit(db, number)
            os.write(pipe, _ACKNOWLEDGED.pack(number))
    finally:
        traceback.print_exc()
        os._exit(1)


def killed_writer(path: Path, journal: str, last: int, rng: random.Random) -> int:
    """Let a process commit transactions after *last*, and kill it.

    :returns: the number of the last transaction that it has acknowledged.
    :raises ValueError: it ended by itself, or did not commit.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(receive)
        _writer(path, journal, last + 1, send)
    os.close(send)
    times = [time.monotonic()]
    try:
        for _ in range(rng.randint(2, 8)):
            if not select.select([receive], [], [], _LIMIT_S)[0]:
                raise ValueError(f"the writer commits nothing within {_LIMIT_S} s")
            if not (told := os.read(receive, _ACKNOWLEDGED.size)):
                raise ValueError("the writer has failed")
            (last,) = _ACKNOWLEDGED.unpack(told)
            times.append(time.monotonic())
        # A part of a transaction later: the first one takes longer, since it opens the database.
        mean_s = (times[-1] - times[1]) / (len(times) - 2)
        time.sleep(rng.random() * mean_s)
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        rest = os.read(receive, 1 << 16)
        os.close(receive)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise ValueError(f"the writer has ended by itself with {status:#x}")
    return _ACKNOWLEDGED.unpack(rest[-_ACKNOWLEDGED.size :])[0] if rest else last


def crashes(path: Path, journal: str, kills: int) -> tuple[int, int]:
    """Kill a writer *kills* times, and check the database each time.

    :returns: the number of transactions, and how many kills left a transaction to be undone.
    :raises ValueError: something is wrong.
    """
    rng = random.Random(SEED)
    with contextlib.closing(connected(path, journal)) as db:
        db.execute("CREATE TABLE data (number INTEGER, position INTEGER, data BLOB)")
        db.execute("CREATE TABLE last (number INTEGER)")
        db.execute("INSERT INTO last VALUES (0)")
    last = undone = 0
    for kill in range(kills):
        acknowledged = killed_writer(path, journal, last, rng)
        undone += path.with_name(f"{path.name}-journal").exists()
        with contextlib.closing(connected(path, journal)) as db:
            if fault := wrong(db, acknowledged):
                raise ValueError(f"after kill {kill + 1} of {kills}: {fault}")
            (last,) = db.execute("SELECT number FROM last").fetchone()
    return last, undone


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Kill writers with each kind of journal."""
    for journal in JOURNALS:
        path = place.root / f"{journal}.db"
        name = f"{journal} journal"
        try:
            last, undone = crashes(path, journal, amount.kills)
            if journal == "delete" and amount.kills >= _MANY and not undone:
                raise ValueError("no kill was within a transaction")
            if path.read_bytes() != (place.lower / path.name).read_bytes():
                raise ValueError("the database differs from the file below")
        except (OSError, sqlite3.Error, ValueError) as error:
            yield Outcome(name, FAILED, repr(error))
            continue
        done = f"{amount.kills} kills, {last} transactions, {undone} journals rolled back"
        yield Outcome(name, PASSED, done)
