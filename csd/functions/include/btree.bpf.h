/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A B+ tree in a file, and how to go through it from block to block. efuse/functions/btree_file.py
 * makes such files.
 *
 * Numbers are little-endian, keys have no sign. Block 0 is the struct btree_header; each other one is
 * a node: a struct btree_node and behind it its entries in the order of their keys, no two with the
 * same. Those of a leaf (level 0) are struct btree_item; those of a node above are struct
 * btree_child: its key is the least of what is below it, and that of the first is not looked at. A
 * node's children have its level less 1. A leaf names the leaf whose keys come next, another node
 * none. Only the leaf of a tree without items has no entries.
 *
 * The nodes may lie anywhere, but where they follow each other they are read in one go.
 *
 * A file is not trusted to be one: EUCLEAN says that it is none. Levels decrease on the way down,
 * and keys increase along the leaves, so that no block is looked at twice.
 */
#ifndef _BTREE_BPF_H
#define _BTREE_BPF_H

#include "csd.bpf.h"

#define BTREE_MAGIC		0x3165657274625f65ULL	/* "e_btree1" */
#define BTREE_NODE_MAGIC	0x65646f6e		/* "node" */
#define BTREE_VALUE_SIZE	64

struct btree_header {
	u64 magic;
	u64 blocks;		/* of the file */
	u64 root;		/* its block */
	u32 level;		/* of the root */
	u32 pad;
};

struct btree_node {
	u32 magic;
	u16 level;
	u16 count;		/* of entries */
	u64 next;		/* block of the next leaf, or 0 */
};

struct btree_item {
	u64 key;
	u8 value[BTREE_VALUE_SIZE];
};

struct btree_child {
	u64 key;
	u64 block;
};

#define BTREE_MOST(entry) \
	((CSD_BLOCK_SIZE - sizeof(struct btree_node)) / sizeof(entry))
#define BTREE_MOST_ITEMS	BTREE_MOST(struct btree_item)
#define BTREE_MOST_CHILDREN	BTREE_MOST(struct btree_child)

/* Files are not that large: a block's place is a loff_t. */
#define BTREE_MOST_BLOCKS	(1ULL << 51)

/* Where a run is in the tree: what its scratch begins with. */
struct btree {
	u64 blocks;		/* of the file; 0: the header comes next */
	u64 key;		/* the last one of the leaves, if there is one */
	u32 level;		/* of the node that comes next */
	u32 keys;		/* 1: there is one */
	u64 done;
};

/* The number at an offset of the block, which is a multiple of 8. */
static inline u64 btree_number(const u8 *block, u64 at)
{
	/* The mask is for the verifier. */
	return *(const u64 *)(block + (at & (CSD_BLOCK_SIZE - 8)));
}

/* Where in its block an entry's member lies. */
#define BTREE_AT(entry, number, member)						\
	(sizeof(struct btree_node) + (number) * sizeof(struct entry) +		\
	 __builtin_offsetof(struct entry, member))

/* Which entry has the greatest key up to @key; the first if all are greater. */
static inline u64 btree_search(const u8 *block, u64 size, u64 key)
{
	u64 count = ((const struct btree_node *)block)->count;
	u64 found = 0, next, fits, step;

	for (step = 128; step; step >>= 1) {
		next = found + step;
		fits = ~csd_less(key, btree_number(block, sizeof(struct btree_node) + next * size));
		found += step & -(csd_below(next, count) & fits);
	}
	return found;
}

/* Go on with a block: CSD_GO_ON or -EUCLEAN. */
static inline int btree_go(struct csd_run *run, const struct btree *tree, u64 block)
{
	u64 offset = block * CSD_BLOCK_SIZE;

	if (!block || block >= tree->blocks)
		return -EUCLEAN;
	if (offset != csd_offset(run) + CSD_BLOCK_SIZE)
		csd_next(run, offset);
	return CSD_GO_ON;
}

static inline int btree_begin(struct csd_run *run, const u8 *block, struct btree *tree)
{
	const struct btree_header *header = (const struct btree_header *)block;

	if (header->magic != BTREE_MAGIC || header->blocks > BTREE_MOST_BLOCKS)
		return -EUCLEAN;
	tree->blocks = header->blocks;
	tree->level = header->level;
	return btree_go(run, tree, header->root);
}

static inline bool btree_is_node(const struct btree_node *node, const struct btree *tree)
{
	u16 most = node->level ? BTREE_MOST_CHILDREN : BTREE_MOST_ITEMS;

	if (node->magic != BTREE_NODE_MAGIC || node->level != tree->level || node->count > most)
		return false;
	return node->count || !(node->level || node->next);
}

/*
 * btree_down - go down by one block, to the leaf that a key belongs to
 *
 * Returns 1 if this is a leaf; else what step() shall return.
 */
static inline int btree_down(struct csd_run *run, const u8 *block, struct btree *tree, u64 key)
{
	const struct btree_node *node = (const struct btree_node *)block;
	u64 child;

	if (csd_len(run) != CSD_BLOCK_SIZE)
		return -EUCLEAN;
	if (!tree->blocks)
		return btree_begin(run, block, tree);
	if (!btree_is_node(node, tree))
		return -EUCLEAN;
	if (!node->level)
		return 1;
	tree->level--;
	child = btree_search(block, sizeof(struct btree_child), key);
	return btree_go(run, tree, btree_number(block, BTREE_AT(btree_child, child, block)));
}

/* Nothing more is wanted. */
static inline int btree_done(struct btree *tree)
{
	tree->done = 1;
	return CSD_DONE;
}

/* For finish(): was all there that was wanted? */
static inline int btree_end(const struct btree *tree)
{
	return tree->done ? 0 : -EUCLEAN;
}

#endif /* _BTREE_BPF_H */
