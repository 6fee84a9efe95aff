# SPDX-License-Identifier: LGPL-2.1-or-later
"""A daemon that lies: threads that answer the requests of a mount, many of them wrongly.

However wrong its first reply is, each request is finished in the end, so that the callers go on.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from collections import Counter, deque
from random import Random

from tests.fuzz import tree
from tests.fuzz.counts import Counts
from tests.fuzz.mutations import ReplyMutator
from tests.fuzz.threads import ENDED, Fuzzer, Shared, attempt
from tests.fuzz.tree import Answer, Tree
from tests.guest.support import wire
from tests.guest.support.channel import NO_SLOT, Channel
from tests.guest.support.wire import Request

_NO_REPLY = ("forget", "batch_forget", "notify_reply")
_LONGEST_LATE = 16
_LATE_S = 0.03
# What read(2) fails with if another thread took the request, if the request ended meanwhile, or if
# the reply to INIT has promised a larger buffer than this daemon has.
_UNREADABLE = (errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.EIO, errno.EINVAL)


class Worker(Fuzzer):
    """Reads requests and answers them.

    :param fd: a descriptor of the mount, non-blocking.
    :param channel: a channel to use in place of read(2) and write(2).
    :param share: share of the replies that are mutated.
    :ivar requests: number of the requests of each opcode.
    """

    def __init__(
        self,
        shared: Shared,
        answers: Tree,
        chance: Random,
        fd: int,
        channel: Channel | None,
        share: float,
    ) -> None:
        super().__init__(shared, chance)
        self._answers = answers
        self._fd, self._channel, self._share = fd, channel, share
        self._late: deque[tuple[int, list[bytes], int]] = deque()
        self._slot = NO_SLOT
        self._buffer = bytearray(1 << 18)
        self.mutator = ReplyMutator(chance, lambda: shared.another(chance))
        self.requests: Counter[str] = Counter()

    def add_to(self, counts: Counts) -> None:
        counts.requests += self.requests
        counts.mutated += self.mutator.done
        counts.fields += self.mutator.fields

    def step(self) -> bool:
        """Answer a request; return whether the connection goes on."""
        try:
            request = self._next()
        except OSError as error:
            if error.errno in ENDED:
                return False
            assert error.errno in _UNREADABLE, error
            request = None
        except struct.error:  # Another thread freed the slot, which is being filled again.
            return True
        if request:
            self.requests[request.opcode] += 1
            self._check(request)
            if request.opcode == "interrupt":
                self._interrupted(request)
            elif request.opcode not in _NO_REPLY:
                self._answer(request)
            self._return_slot()
        while self._late and (
            not request or len(self._late) > self._chance.randrange(_LONGEST_LATE)
        ):
            unique, messages, error_number = self._late.popleft()
            self._finish(unique, messages, error_number)
        return True

    def _next(self) -> Request | None:
        self._slot = NO_SLOT
        if self._channel:
            message = self._channel.next()
            self._slot = message.slot
            return message.request
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        # Late replies are sent if no request comes meanwhile.
        if not poll.poll(20):
            return None
        length = os.readv(self._fd, [self._buffer])
        return wire.parse(bytes(memoryview(self._buffer)[:length]))

    def _check(self, request: Request) -> None:
        """Check that the kernel sends only bytes of the file that the request is about."""
        if request.opcode in ("write", "notify_reply"):
            strange = tree.foreign(request.nodeid, request.rest)
            if strange:
                what = f"{request.opcode} of {request.nodeid} at {request.offset}"
                self._shared.faults.append(f"{what} has bytes {set(strange)}")
        elif request.opcode == "poll":
            self._shared.polled.append(request.kh)

    def _interrupted(self, request: Request) -> None:
        """Answer an interrupt, mostly by ending the request that is interrupted."""
        if self._chance.random() < 0.3:
            number = self._chance.choice((errno.EAGAIN, errno.ENOSYS, errno.EIO))
            self._send(wire.reply(request.unique, number))
        self._send(wire.reply(request.target, errno.EINTR))

    def _answer(self, request: Request) -> None:
        try:
            answer = self._answers.answer(request)
        except OSError as error:
            self._finish(request.unique, [], error.errno or errno.EIO)
            return
        # The first reply to each opcode is always mutated, since some requests are rare.
        is_first = self.requests[request.opcode] == 1
        if self._chance.random() >= self._share and not is_first:
            self._finish(request.unique, [wire.reply(request.unique, 0, answer.encode())], 0)
            return
        self._mutate(request, answer)

    def _mutate(self, request: Request, answer: Answer) -> None:
        open_ended = not (answer.is_data or answer.settled)
        if open_ended:
            self._shared.begin(request.unique)
        messages, late = self.mutator.mutated(request, answer)
        number = self._chance.choice((errno.EIO, errno.ENOENT, errno.EINTR))
        if late and self._channel:  # No other request may come that would end the delay.
            self._shared.stop.wait(_LATE_S)
        elif late:
            self._late.append((request.unique, messages, number))
            return
        self._finish(request.unique, messages, number)

    def _finish(self, unique: int, messages: list[bytes], number: int) -> None:
        """Send messages, then an error in case that none of them has answered the request."""
        for raw in messages:
            self._send(raw)
        if number or not messages:
            self._send(wire.reply(unique, number or errno.EIO))
        self._return_slot()
        self._shared.end(unique)

    def _return_slot(self) -> None:
        """Give the request's slot back without a reply in it."""
        if self._channel and self._slot != NO_SLOT:
            slot, self._slot = self._slot, NO_SLOT
            attempt(lambda: self._reply_by(slot, 0))

    def _reply_by(self, slot: int, length: int) -> None:
        assert self._channel
        self._channel.reply(slot, length)

    def _send(self, raw: bytes) -> None:
        if self._channel and self._slot != NO_SLOT and len(raw) <= self._channel.slot_size:
            slot, self._slot = self._slot, NO_SLOT
            self._channel.put(slot, raw)
            attempt(lambda: self._reply_by(slot, len(raw)))
            return
        fd = self._channel.fd if self._channel else self._fd
        how = self._chance.random()
        if how < 0.05:
            at = self._chance.randrange(len(raw) + 1)
            attempt(lambda: os.writev(fd, [raw[:at], raw[at:]]))
        elif how < 0.1 and 0 < len(raw) <= 1 << 16:
            attempt(lambda: self._splice(fd, raw))
        else:
            attempt(lambda: os.write(fd, raw))

    @staticmethod
    def _splice(fd: int, raw: bytes) -> None:
        """Send a message by splice(2)."""
        read, write = os.pipe()
        try:
            os.write(write, raw)
            os.splice(read, fd, len(raw))
        finally:
            os.close(read)
            os.close(write)
