// SPDX-License-Identifier: GPL-2.0
/*
 * aggregate: the number of records that pass a filter, and the sum, minimum and maximum of one of
 * their fields.
 */
#include "records.bpf.h"

struct aggregate_args {
	struct records records;
	struct record_field field;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct aggregate_args *args = csd_args(run, sizeof(*args));
	struct record_sums *state = csd_scratch(run, sizeof(*state));
	u64 record = 0, len = csd_len(run);
	struct record_sums sums;
	u32 i;

	if (!block || !args || !state)
		return -EPROTO;
	sums = *state;
	for (i = 0; i < RECORD_MOST; i++) {
		record_add(&sums, record_number(block, record, &args->field),
			   record_wanted(block, record, len, &args->records));
		record += args->records.size;
	}
	*state = sums;
	return CSD_GO_ON;
}

int finish(struct csd_run *run)
{
	struct record_sums *state = csd_scratch(run, sizeof(*state));

	return state ? csd_emit(run, state, sizeof(*state)) : -EPROTO;
}

CSD_SCRATCH(struct record_sums)
CSD_ARGS(struct aggregate_args)
