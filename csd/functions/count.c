// SPDX-License-Identifier: GPL-2.0
/* count: lines, and how often a pattern occurs. */
#include "pattern.bpf.h"

struct count_state {
	u64 lines;
	u64 matches;
	u64 bytes;
	u64 match;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct pattern_args *args = csd_args(run, sizeof(*args));
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
		match = pattern_match(match, block[i], args);
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
CSD_ARGS(struct pattern_args)
