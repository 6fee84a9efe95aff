# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the filter of `efuse run` costs the system calls that it is not about.

The kernel runs a filter on each number of a system call when it is installed. Where the result is
to allow the call, and nothing but the number and the architecture was looked at, it notes this in a
bitmap, and never runs the filter for this number again (seccomp_cache_prepare_bitmap()).
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from efuse.supervisor import notifications as n

_MOST_NUMBERS = 700
# Of ioctl(2), which no bitmap can have, as its request counts.
_MOST_INSTRUCTIONS = 16


def _run(
    machine: str, data: Mapping[int, int], *, unmounting: bool = True
) -> tuple[int, int, set[int]]:
    """Run the filter as the kernel does.

    :param data: the words of struct seccomp_data, by their offset.
    :returns: the result, the number of instructions, and the offsets that were looked at.
    """
    program, at, value, looked = n._filter(machine, unmounting=unmounting), 0, 0, set()
    for steps in range(1, len(program) + 1):
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == n._RET:
            return constant, steps, looked
        if code == n._LD:
            value = data.get(constant, 0)
            looked.add(constant)
        elif code == n._AND:
            value &= constant
        else:
            assert code == n._JEQ
            at += if_true if value == constant else if_false
    raise AssertionError("the filter does not end")


def _watched(arch: int) -> dict[int, str]:
    return {**n._NAMES[arch], **n._NEWER, **n._UNMOUNTING[arch]}


_PAIRS = [(machine, arch) for machine, arches in n._OF_MACHINE.items() for arch in arches]


@pytest.mark.parametrize(("machine", "arch"), _PAIRS)
def test_kernel_never_runs_the_filter_for_other_calls(machine: str, arch: int) -> None:
    watched = _watched(arch)
    for number in set(range(_MOST_NUMBERS)) - set(watched):
        result, _, looked = _run(machine, {n._NR_AT: number, n._ARCH_AT: arch})
        assert (result, looked) == (n._ALLOW, {n._NR_AT, n._ARCH_AT})


@pytest.mark.parametrize(("machine", "arch"), _PAIRS)
def test_other_request_of_ioctl_takes_few_instructions(machine: str, arch: int) -> None:
    for number, name in n._NAMES[arch].items():
        if name == "ioctl":
            data = {n._NR_AT: number, n._ARCH_AT: arch, n._REQUEST_AT: 0x541B}
            result, steps, _ = _run(machine, data)
            assert result == n._ALLOW
            assert steps <= _MOST_INSTRUCTIONS


@pytest.mark.parametrize(("machine", "arch"), _PAIRS)
def test_calls_that_mount_wait_for_the_supervisor(machine: str, arch: int) -> None:
    for number, name in _watched(arch).items():
        for request in (n.FUSE_DEV_IOC_CLONE, n.FUSE_DEV_IOC_SYNC_INIT):
            data = {n._NR_AT: number, n._ARCH_AT: arch, n._REQUEST_AT: request}
            assert _run(machine, data)[0] == n._USER_NOTIF, name


@pytest.mark.parametrize(("machine", "arch"), _PAIRS)
def test_calls_that_unmount_pass_if_the_mounts_end_with_the_daemon(machine: str, arch: int) -> None:
    for number in n._UNMOUNTING[arch]:
        data = {n._NR_AT: number, n._ARCH_AT: arch}
        result, _, looked = _run(machine, data, unmounting=False)
        assert (result, looked) == (n._ALLOW, {n._NR_AT, n._ARCH_AT})
