# SPDX-License-Identifier: LGPL-2.1-or-later
"""Delay tasks at functions of the module, by a seed, with BPF programs.

A program runs at the start of each function of `POINTS`. It delays only tasks that have a number in
the map ``tasks``, each by numbers that follow from its own. So the same seed delays a task that
does the same in the same places for the same time.
"""

from __future__ import annotations

from efuse.bpf.compile import compile_text
from efuse.bpf.members import TRACING
from efuse.bpf.spec import Spec
from efuse.bpf.tracing import Hook, Tracer
from efuse.closing import Closing

POINTS = (
    "efuse_send",
    "efuse_changes_begin",
    "efuse_changes_end",
    "efuse_learn",
    "efuse_answer_attrs",
    "efuse_answer_entry",
    "efuse_blocks_read",
    "efuse_file_read",
    "efuse_file_try_write",
    "efuse_through_begin",
    "efuse_through_end",
    "efuse_pages_void",
    "fuse_change_attributes_common",
    "fuse_write_update_attr",
)
"""The functions of the module at which tasks are delayed."""

_HEAD = """
#include "tracing.bpf.h"

#define ONE_IN		4
#define LONGEST_US	1024
/* The verifier follows each turn of the loop, which reads the clock. */
#define TURNS		400

BPF_TABLE("hash", u32, u64, tasks, 64);
BPF_TABLE("array", int, u64, delayed, 1);

static inline int delay(void)
{
	u32 task = bpf_get_current_pid_tgid();
	u64 *state = tasks.lookup(&task), *count, x, end;
	int i, zero = 0;

	if (!state)
		return 0;
	x = *state;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*state = x;
	if ((x >> 32) % ONE_IN)
		return 0;
	count = delayed.lookup(&zero);
	if (count)
		lock_xadd(count, 1);
	end = bpf_ktime_get_ns() + (x >> 40) % LONGEST_US * 1000;
	for (i = 0; i < TURNS; i++)
		if (bpf_ktime_get_ns() >= end)
			break;
	return 0;
}
"""
_ONE = "int at_{}(u64 *ctx) {{ return delay(); }}\n"
TEXT = _HEAD + "".join(_ONE.format(number) for number in range(len(POINTS)))


def programs() -> Spec:
    """Return the compiled programs."""
    return compile_text(TEXT, "delays.c", interface=TRACING)


class Delays(Closing):
    """The programs at their functions, until it is closed. A context manager."""

    def __init__(self) -> None:
        hooks = {f"at_{n}": Hook("fentry", name) for n, name in enumerate(POINTS)}
        self._tracer = Tracer(programs(), hooks, module="efuse")

    @property
    def count(self) -> int:
        """How often a task was delayed."""
        return int(self._tracer.maps["delayed"][0])

    def add(self, task: int, number: int) -> None:
        """Delay a task from now on, by numbers that follow from *number*, which is not 0."""
        self._tracer.maps["tasks"][task] = number

    def remove(self, task: int) -> None:
        """Delay a task no more."""
        del self._tracer.maps["tasks"][task]

    def close(self) -> None:
        self._tracer.close()
