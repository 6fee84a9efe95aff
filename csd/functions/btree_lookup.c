// SPDX-License-Identifier: GPL-2.0
/* btree_lookup: the value of a key in a B+ tree, or nothing if the key is not there. */
#include "btree.bpf.h"

struct btree_lookup_args {
	u64 key;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct btree_lookup_args *args = csd_args(run, sizeof(*args));
	struct btree *tree = csd_scratch(run, sizeof(*tree));
	u64 item;
	int ret;

	if (!block || !args || !tree)
		return -EPROTO;
	ret = btree_down(run, block, tree, args->key);
	if (ret <= 0)
		return ret;
	item = btree_search(block, sizeof(struct btree_item), args->key);
	if (((const struct btree_node *)block)->count &&
	    btree_number(block, BTREE_AT(btree_item, item, key)) == args->key)
		csd_emit_block(run, BTREE_AT(btree_item, item, value), BTREE_VALUE_SIZE);
	return btree_done(tree);
}

int finish(struct csd_run *run)
{
	struct btree *tree = csd_scratch(run, sizeof(*tree));

	return tree ? btree_end(tree) : -EPROTO;
}

CSD_SCRATCH(struct btree)
CSD_ARGS(struct btree_lookup_args)
CSD_FLAGS(CSD_JUMPS)
