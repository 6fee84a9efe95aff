/* SPDX-License-Identifier: GPL-2.0 */
/* A range of a B+ tree: from the leaf of its first key along the leaves. */
#ifndef _BTREE_LEAVES_BPF_H
#define _BTREE_LEAVES_BPF_H

#include "btree.bpf.h"

/* Keys, both included. */
struct btree_range {
	u64 first;
	u64 last;
};

/* Items of a leaf. */
struct btree_items {
	u64 from;
	u64 to;			/* behind the last; not less than @from */
};

/* Which items of a leaf are in a range: 0, or -EUCLEAN if their keys do not increase. */
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

/* Go on behind a leaf: what step() shall return. */
static inline int btree_go_on(struct csd_run *run, const u8 *block, struct btree *tree,
			      const struct btree_items *items)
{
	const struct btree_node *node = (const struct btree_node *)block;

	if (!node->next || items->to < node->count)
		return btree_done(tree);
	return btree_go(run, tree, node->next);
}

#endif /* _BTREE_LEAVES_BPF_H */
