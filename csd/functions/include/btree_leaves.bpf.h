/* SPDX-License-Identifier: GPL-2.0 */
/* A range of keys of a B+ tree: from the leaf of the first key along the leaves. */
#ifndef _BTREE_LEAVES_BPF_H
#define _BTREE_LEAVES_BPF_H

#include "btree.bpf.h"

/* A range of keys, both included. */
struct btree_range {
	u64 first;
	u64 last;
};

/* A range of the items of a leaf, by their numbers. */
struct btree_items {
	u64 from;
	u64 to;			/* one past the last item; not less than @from */
};

/*
 * Finds the items of a leaf that are in a range. Returns 0, or -EUCLEAN if the keys do not
 * increase.
 */
static inline int btree_find(const u8 *block, struct btree *tree, const struct btree_range *range,
			     struct btree_items *items)
{
	u64 count = ((const struct btree_node *)block)->count;
	u64 before = tree->key, keys = tree->keys, disorder = 0, from = 0, to = 0;
	u64 key, is;
	u32 i;

	for (i = 0; i < BTREE_MOST_ITEMS; i++) {
		key = btree_number(block, BTREE_AT(btree_item, i, key));
		is = csd_below(i, count);
		disorder |= is & keys & ~csd_less(before, key);
		before ^= (before ^ key) & -is;
		keys |= is;
		from += is & csd_less(key, range->first);
		to += is & ~csd_less(range->last, key);
	}
	if (disorder)
		return -EUCLEAN;
	tree->key = before;
	tree->keys = keys;
	items->from = from;
	items->to = to > from ? to : from;
	return 0;
}

/* Goes on with the next leaf, if needed. Returns the value that step() has to return. */
static inline int btree_next_leaf(struct csd_run *run, const u8 *block, struct btree *tree,
			      const struct btree_items *items)
{
	const struct btree_node *node = (const struct btree_node *)block;

	if (!node->next || items->to < node->count)
		return btree_done(tree);
	return btree_go(run, tree, node->next);
}

#endif /* _BTREE_LEAVES_BPF_H */
