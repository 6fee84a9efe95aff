// SPDX-License-Identifier: GPL-2.0
/*
 * grep: the lines with a pattern in them, each with its newline.
 *
 * The pattern is looked for as count does it. What precedes a match in the same line may lie in an
 * earlier block: the beginning of a line that has no match yet is remembered, up to GREP_KEPT bytes.
 * What follows a match is emitted as it comes. A match behind more than what is remembered
 * fails the run with EOVERFLOW: there is no line to emit that would be whole.
 */
#include "pattern.bpf.h"

/* One call may emit what was kept and a block. */
#define GREP_KEPT	(CSD_STEP_OUTPUT - CSD_BLOCK_SIZE)

struct grep_state {
	u64 match;
	u32 found;		/* in the line that the next block begins in: has been emitted */
	u32 kept;		/* bytes of it; more than GREP_KEPT: not all of them */
	u8 line[GREP_KEPT];
};

/* Emit what was kept of a line, and what of it is in the block. */
static inline int grep_emit(struct csd_run *run, struct grep_state *state, u64 first, u64 end)
{
	u32 kept = state->kept;

	if (kept > GREP_KEPT)
		return -EOVERFLOW;
	if (kept)
		csd_emit(run, state->line, kept);
	state->kept = 0;
	return csd_emit_block(run, first, end - first);
}

/* Remember the last bytes of the block. */
static inline void grep_keep(struct grep_state *state, const u8 *block, u64 len, u64 left)
{
	u64 kept = state->kept;

	/* The masks are for the verifier. */
	for (left &= 2 * CSD_BLOCK_SIZE - 1; left && csd_more(); left--) {
		if (kept >= GREP_KEPT) {
			kept = GREP_KEPT + 1;
			break;
		}
		state->line[kept] = block[(len - left) & (CSD_BLOCK_SIZE - 1)];
		kept++;
	}
	state->kept = kept;
}

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct pattern_args *args = csd_args(run, sizeof(*args));
	struct grep_state *state = csd_scratch(run, sizeof(*state));
	u64 len = csd_len(run);
	u64 match, found, left, at, first = 0;
	int err;
	u8 byte;

	if (!block || !args || !state || len > CSD_BLOCK_SIZE)
		return -EPROTO;
	match = state->match;
	found = state->found;
	for (left = len; left && csd_more(); left--) {
		at = len - left;
		byte = block[at & (CSD_BLOCK_SIZE - 1)];
		match = pattern_match(match, byte, args);
		found |= match & args->last;
		if (byte != '\n')
			continue;
		if (found) {
			err = grep_emit(run, state, first, at + 1);
			if (err)
				return err;
		}
		state->kept = 0;
		found = 0;
		first = at + 1;
	}
	state->match = match;
	state->found = !!found;
	if (found)
		return grep_emit(run, state, first, len);
	grep_keep(state, block, len, len - first);
	return CSD_GO_ON;
}

CSD_SCRATCH(struct grep_state)
CSD_ARGS(struct pattern_args)
