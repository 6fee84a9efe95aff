# SPDX-License-Identifier: LGPL-2.1-or-later
"""Policies for the place of storage functions."""

from __future__ import annotations

_SAYS = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{{
	return {};
}}
"""


def says(answer: str) -> str:
    """Return a policy that always chooses the same: a place, or a number."""
    return _SAYS.format(answer)


TOLD = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{
	int count = batch->function[0] == 'c' && !batch->function[5];
	int whole = batch->blocks && batch->resident <= batch->blocks && batch->place;
	/* There may never have been as few as are left at the end. */
	int known = batch->blocks < 64 || (batch->kernel_ns && batch->device_ns > batch->queue_ns);
	return count && whole && known ? CSD_KERNEL : CSD_DEVICE;
}
"""
"""A policy that chooses by its arguments."""

WRITES = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{
	batch->blocks = 0;
	return CSD_AUTO;
}
"""
"""A policy that the verifier rejects, because it writes to its argument."""

POLICIES = (*map(says, ("CSD_AUTO", "CSD_DEVICE", "CSD_KERNEL", "3", "-1")), TOLD, WRITES)
"""All of these policies that tests use."""
