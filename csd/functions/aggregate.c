// SPDX-License-Identifier: GPL-2.0
/* aggregate: how many records pass a filter, and the sum, least and most of one of their fields. */
#include "records.bpf.h"

struct aggregate_args {
	struct records records;
	struct record_field field;
};

struct aggregate_state {
	u64 count;
	u64 sum;		/* modulo 1 << 64 */
	u64 least;		/* inverted and biased, so that it begins with 0 */
	u64 most;		/* biased */
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct aggregate_args *args = csd_args(run, sizeof(*args));
	struct aggregate_state *state = csd_scratch(run, sizeof(*state));
	u64 count = 0, sum = 0, least, most;
	u64 record = 0, len = csd_len(run);
	u64 number, wanted;
	u32 i;

	if (!block || !args || !state)
		return -EPROTO;
	least = state->least;
	most = state->most;
	for (i = 0; i < RECORD_MOST; i++) {
		wanted = -record_wanted(block, record, len, &args->records);
		number = record_number(block, record, &args->field);
		count -= wanted;
		sum += number & wanted;
		number += RECORD_BIAS;
		least ^= (least ^ ~number) & wanted & -record_less(least, ~number);
		most ^= (most ^ number) & wanted & -record_less(most, number);
		record += args->records.size;
	}
	state->count += count;
	state->sum += sum;
	state->least = least;
	state->most = most;
	return CSD_GO_ON;
}

int finish(struct csd_run *run)
{
	struct aggregate_state *state = csd_scratch(run, sizeof(*state));

	return state ? csd_emit(run, state, sizeof(*state)) : -EPROTO;
}

CSD_SCRATCH(struct aggregate_state)
CSD_ARGS(struct aggregate_args)
