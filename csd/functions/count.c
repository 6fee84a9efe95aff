// SPDX-License-Identifier: GPL-2.0
/*
 * count: lines, and how often a pattern occurs.
 *
 * The pattern is looked for by Shift-And (Baeza-Yates and Gonnet, "A new approach to text
 * searching", CACM 35(10), 1992): bit N of `match` says that the last N + 1 bytes are the
 * pattern's first N + 1. A byte costs one look-up, and a match may lie across blocks.
 */
#include "csd.bpf.h"

struct count_args {
	u64 accept[256];	/* by byte: bit N: the pattern's byte N may be it */
	u64 last;		/* the bit of the pattern's last byte; 0: there is no pattern */
};

struct count_state {
	u64 lines;
	u64 matches;
	u64 bytes;
	u64 match;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct count_args *args = csd_args(run, sizeof(*args));
	struct count_state *state = csd_scratch(run, sizeof(*state));
	u64 lines = 0, matches = 0, match, last;
	u64 len = csd_len(run);
	u64 i;

	if (!block || !args || !state)
		return -EPROTO;
	match = state->match;
	last = args->last;
	for (i = 0; i < CSD_BLOCK_SIZE; i++) {
		lines += csd_below(i, len) & csd_equal(block[i], '\n');
		match = (match << 1 | 1) & args->accept[block[i]];
		matches += csd_below(i, len) & csd_any(match & last);
	}
	state->match = match;
	state->lines += lines;
	state->matches += matches;
	state->bytes += len;
	return CSD_GO_ON;
}

int finish(struct csd_run *run)
{
	struct count_state *state = csd_scratch(run, sizeof(*state));

	return state ? csd_emit(run, state, 24) : -EPROTO;
}

CSD_SCRATCH(struct count_state)
CSD_ARGS(struct count_args)
