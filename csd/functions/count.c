// SPDX-License-Identifier: GPL-2.0
/* count: the number of lines, of occurrences of a pattern, and of bytes. */
#include "pattern.bpf.h"

struct count_state {
	u64 lines;
	u64 matches;
	u64 bytes;
	u64 match;
};

#define EACH_BYTE	0x0101010101010101ULL

/*
 * Number of newlines in a block, counted eight bytes at a time (Warren, "Hacker's Delight", 6-1).
 * Bytes past the end of the file are zeroes, not newlines.
 */
static inline u64 count_lines(const u8 *block)
{
	const u64 low = EACH_BYTE * 0x7f;
	u64 lines = 0, others;
	u32 i;

	for (i = 0; i < CSD_BLOCK_SIZE; i += sizeof(u64)) {
		others = *(const u64 *)(block + i) ^ EACH_BYTE * '\n';
		others |= (others & low) + low;
		lines += (~(others | low) >> 7) * EACH_BYTE >> 56;
	}
	return lines;
}

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct pattern_args *args = csd_args(run, sizeof(*args));
	struct count_state *state = csd_scratch(run, sizeof(*state));
	u64 len = csd_len(run), matches = 0, match, last;
	u32 i;

	if (!block || !args || !state)
		return -EPROTO;
	match = state->match;
	last = args->last;
	/* Only in the last block each byte has to be checked for being in the file. */
	if (last && len == CSD_BLOCK_SIZE) {
		for (i = 0; i < CSD_BLOCK_SIZE; i++) {
			match = pattern_match(match, block[i], args);
			matches += csd_any(match & last);
		}
	} else if (last) {
		for (i = 0; i < CSD_BLOCK_SIZE; i++) {
			match = pattern_match(match, block[i], args);
			matches += csd_below(i, len) & csd_any(match & last);
		}
	}
	state->match = match;
	state->lines += count_lines(block);
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
