// SPDX-License-Identifier: GPL-2.0
/*
 * grep: the lines that contain a pattern, each with its newline.
 *
 * The pattern is found as in count. The part of the line before a match may be in an earlier block,
 * so the beginning of a line without a match is remembered, up to GREP_KEPT bytes. After a match
 * the rest of the line is emitted as it comes. If the first match of a line comes after more bytes
 * than are remembered, the run fails with EOVERFLOW: the line cannot be emitted whole.
 */
#include "pattern.bpf.h"

/* One call may emit the remembered bytes and a block. */
#define GREP_KEPT	(CSD_STEP_OUTPUT - CSD_BLOCK_SIZE)

struct grep_state {
	u64 match;
	u32 found;		/* the line that the next block begins in has a match */
	u32 kept;		/* bytes of that line in @line; more than GREP_KEPT: too many */
	u8 line[CSD_STEP_OUTPUT];	/* more than GREP_KEPT: a mask needs a power of two */
};

/* Emits the remembered bytes of a line, and its bytes [first, end) of the block. */
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

/* Remembers the last @left bytes of the block. The masks convince the verifier. */
static inline void grep_keep(struct grep_state *state, const u8 *block, u64 len, u64 left)
{
	u64 end = state->kept + left;

	if (end > GREP_KEPT) {
		state->kept = GREP_KEPT + 1;
		return;
	}
	for (left &= 2 * CSD_BLOCK_SIZE - 1; left && csd_more(left); left--)
		state->line[(end - left) & (CSD_STEP_OUTPUT - 1)] =
			block[(len - left) & (CSD_BLOCK_SIZE - 1)];
	state->kept = end;
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
	for (left = len; left && csd_more(left); left--) {
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
