// SPDX-License-Identifier: GPL-2.0
/*
 * A histogram of the time that GETATTR and LOOKUP take at the daemon, in powers of two of
 * nanoseconds: slot n of `latency` counts times from 2^n to 2^(n+1) ns.
 *
 * A task makes one such request at a time, so the start is stored under the id of the task.
 */
#include <linux/fuse.h>
#include "efuse.bpf.h"

BPF_TABLE("lru_hash", u64, u64, started, 4096);
BPF_ARRAY(latency, u64, 64);

static inline int start(void)
{
	u64 task = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_ns();

	started.update(&task, &now);
	return EFUSE_PASS;
}

int lookup(struct efuse_req *req)
{
	return start();
}

int getattr(struct efuse_req *req)
{
	return start();
}

int reply(struct efuse_reply_ctx *ctx)
{
	u64 task = bpf_get_current_pid_tgid();
	u32 opcode = efuse_req_opcode(ctx->req);
	u64 *then = started.lookup(&task);
	u64 *count;
	int slot;

	if (!then || (opcode != FUSE_LOOKUP && opcode != FUSE_GETATTR))
		return 0;
	slot = bpf_log2l(bpf_ktime_get_ns() - *then) - 1;
	started.delete(&task);
	count = latency.lookup(&slot);
	if (count)
		lock_xadd(count, 1);
	return 0;
}
