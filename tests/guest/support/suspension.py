# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep a task at the start of a function of the module while another task makes a change.

A BPF program runs there. It looks again and again whether the change has been made, but not for
ever, because no program may run for long: `Suspension.cross` tells whether it has given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from efuse.bpf.compile import compile_text
from efuse.bpf.members import TRACING
from efuse.bpf.tracing import Hook, Tracer
from efuse.closing import Closing
from tests.guest.support.daemons import running

_TEXT = """
#include "tracing.bpf.h"

/* The verifier follows each turn. A turn copies, which takes from 0.1 to some ms. */
#define MOST_TURNS	1000

struct large {
	u8 bytes[2 << 20];
};

BPF_TABLE("array", int, u64, task, 1);
BPF_TABLE("array", int, u64, state, 1);
BPF_TABLE("array", int, struct large, copied, 1);

int at(u64 *ctx)
{
	int i, zero = 0;
	u64 *wanted = task.lookup(&zero), *now = state.lookup(&zero);
	struct large *large = copied.lookup(&zero);

	if (!wanted || !now || !large || *wanted != (u32)bpf_get_current_pid_tgid() || *now != 1)
		return 0;
	*now = 2;
	for (i = 0; i < MOST_TURNS; i++) {
		if (*(volatile u64 *)now == 3)
			break;
		bpf_probe_read_kernel(large, sizeof(*large), large);
	}
	*now = *(volatile u64 *)now == 3 ? 4 : 5;
	return 0;
}
"""
_ARMED, _REACHED, _CHANGED, _CROSSED = range(1, 5)


class Suspension(Closing):
    """The program at a function, until it is closed. A context manager.

    :param function: a function of the module that has BTF, so not an inlined one.
    """

    def __init__(self, function: str) -> None:
        spec = compile_text(_TEXT, "suspension.c", interface=TRACING)
        self._tracer = Tracer(spec, {"at": Hook("fentry", function)}, module="efuse")

    def _state(self) -> int:
        return int(self._tracer.maps["state"][0])

    def cross(self, call: Callable[[], object], change: Callable[[], object]) -> bool:
        """Make *call* in another task, and *change* while that task is at the function.

        :returns: whether the task stayed there until the change had been made.
        :raises AssertionError: the call does not come to the function.
        :raises OSError: the call fails.
        """
        self._tracer.maps["state"][0] = 0
        ready, go = os.pipe()

        def wait_and_call() -> None:
            os.read(ready, 1)
            call()

        try:
            with running(wait_and_call) as calling:
                self._tracer.maps["task"][0] = calling.pid
                self._tracer.maps["state"][0] = _ARMED
                os.write(go, b"g")
                while self._state() == _ARMED and not calling.done():
                    pass
                reached = self._state() != _ARMED
                if reached:
                    change()
                    if self._state() == _REACHED:
                        self._tracer.maps["state"][0] = _CHANGED
                calling.result()
        finally:
            os.close(ready)
            os.close(go)
        assert reached, "the call does not come to the function"
        return self._state() == _CROSSED

    def close(self) -> None:
        self._tracer.close()
