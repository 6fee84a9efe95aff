// SPDX-License-Identifier: GPL-2.0
/*
 * btree_aggregate: of the items of a B+ tree whose keys are in a range, the number, and the sum,
 * minimum and maximum of a field of their values.
 */
#include "btree_leaves.bpf.h"
#include "records.bpf.h"

struct btree_aggregate_args {
	struct btree_range range;
	struct record_field field;	/* in the value */
};

struct btree_aggregate_state {
	struct btree tree;
	struct record_sums sums;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct btree_aggregate_args *args = csd_args(run, sizeof(*args));
	struct btree_aggregate_state *state = csd_scratch(run, sizeof(*state));
	struct btree_items items;
	struct record_sums sums;
	u64 at = BTREE_AT(btree_item, 0, value);
	u32 i;
	int ret;

	if (!block || !args || !state)
		return -EPROTO;
	ret = btree_down(run, block, &state->tree, args->range.first);
	if (ret <= 0)
		return ret;
	ret = btree_find(block, &state->tree, &args->range, &items);
	if (ret)
		return ret;
	sums = state->sums;
	for (i = 0; i < BTREE_MOST_ITEMS; i++) {
		record_add(&sums, record_number(block, at, &args->field),
			   csd_below(i, items.to) & ~csd_below(i, items.from));
		at += sizeof(struct btree_item);
	}
	state->sums = sums;
	return btree_next_leaf(run, block, &state->tree, &items);
}

int finish(struct csd_run *run)
{
	struct btree_aggregate_state *state = csd_scratch(run, sizeof(*state));
	int ret;

	if (!state)
		return -EPROTO;
	ret = btree_end(&state->tree);
	return ret ? ret : csd_emit(run, &state->sums, sizeof(state->sums));
}

CSD_SCRATCH(struct btree_aggregate_state)
CSD_ARGS(struct btree_aggregate_args)
CSD_FLAGS(CSD_JUMPS)
