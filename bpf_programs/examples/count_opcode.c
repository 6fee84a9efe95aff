// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the daemon's answers by opcode, and how many of them are errors.
 *
 *	attachment.maps["answers"][opcodes.number("getattr")]
 */
#include "efuse.bpf.h"

BPF_ARRAY(answers, u64, 64);
BPF_ARRAY(failures, u64, 64);

int reply(struct efuse_reply_ctx *ctx)
{
	u32 opcode = efuse_req_opcode(ctx->req);
	u64 *count = answers.lookup(&opcode);

	if (count)
		lock_xadd(count, 1);
	if (!(u32)ctx->error)
		return 0;
	count = failures.lookup(&opcode);
	if (count)
		lock_xadd(count, 1);
	return 0;
}
