// SPDX-License-Identifier: GPL-2.0
/*
 * histogram: the number of records that pass a filter, by the range that one of their fields is in.
 */
#include "records.bpf.h"

#define HISTOGRAM_COUNTS	1024	/* the ranges, and one count below and one above them */

struct histogram_args {
	struct records records;
	struct record_field field;
	u64 start;		/* start of the first range */
	u32 shift;		/* size of a range: 1 << shift numbers */
	u32 ranges;
};

struct histogram_state {
	u64 counts[HISTOGRAM_COUNTS];	/* [0]: below; [ranges + 1]: above */
};

/* The index of the count that a number belongs to. */
static inline u64 histogram_index(u64 number, const struct histogram_args *args)
{
	u64 range = (number - args->start) >> (args->shift & 63);
	u64 fits = csd_less(range, args->ranges);
	u64 least = csd_less(number + RECORD_BIAS, args->start + RECORD_BIAS);

	range = (range & -fits) | (args->ranges & (fits - 1));
	return (range + 1) & (least - 1);
}

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct histogram_args *args = csd_args(run, sizeof(*args));
	struct histogram_state *state = csd_scratch(run, sizeof(*state));
	u64 record = 0, len = csd_len(run);
	u64 at;
	u32 i;

	if (!block || !args || !state)
		return -EPROTO;
	for (i = 0; i < RECORD_MOST; i++) {
		at = histogram_index(record_number(block, record, &args->field), args);
		state->counts[at & (HISTOGRAM_COUNTS - 1)] +=
			record_wanted(block, record, len, &args->records);
		record += args->records.size;
	}
	return CSD_GO_ON;
}

int finish(struct csd_run *run)
{
	const struct histogram_args *args = csd_args(run, sizeof(*args));
	struct histogram_state *state = csd_scratch(run, sizeof(*state));
	u64 size;

	if (!args || !state)
		return -EPROTO;
	size = ((u64)args->ranges + 2) * sizeof(state->counts[0]);
	if (size > sizeof(state->counts))
		return -EINVAL;
	return csd_emit(run, state->counts, size);
}

CSD_SCRATCH(struct histogram_state)
CSD_ARGS(struct histogram_args)
