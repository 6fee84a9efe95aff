// SPDX-License-Identifier: GPL-2.0
/* btree_range: the items of a B+ tree whose keys are in a range, in the format of the leaves. */
#include "btree_leaves.bpf.h"

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct btree_range *range = csd_args(run, sizeof(*range));
	struct btree *tree = csd_scratch(run, sizeof(*tree));
	struct btree_items items;
	int ret;

	if (!block || !range || !tree)
		return -EPROTO;
	ret = btree_down(run, block, tree, range->first);
	if (ret <= 0)
		return ret;
	ret = btree_find(block, tree, range, &items);
	if (ret)
		return ret;
	csd_emit_block(run, BTREE_AT(btree_item, items.from, key),
		       (items.to - items.from) * sizeof(struct btree_item));
	return btree_next_leaf(run, block, tree, &items);
}

int finish(struct csd_run *run)
{
	struct btree *tree = csd_scratch(run, sizeof(*tree));

	return tree ? btree_end(tree) : -EPROTO;
}

CSD_SCRATCH(struct btree)
CSD_ARGS(struct btree_range)
CSD_FLAGS(CSD_JUMPS)
