/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A B+ tree in a file, and how to walk it from block to block. efuse/functions/btree_file.py makes
 * such files.
 *
 * Numbers are little-endian, and keys are unsigned. Block 0 holds struct btree_header. Each other
 * block is a node: a struct btree_node, followed by its entries in the order of their keys, which
 * are distinct. The entries of a leaf (level 0) are struct btree_item. The entries of any other
 * node are struct btree_child, with the smallest key below the child; the key of the first child is
 * ignored. The level of a node's children is the node's level less 1. A leaf names the leaf with
 * the next keys; other nodes name none. Only the leaf of a tree without items has no entries.
 *
 * Nodes may be anywhere in the file, but nodes that follow each other are read together.
 *
 * The file is not trusted. EUCLEAN means that it is not such a tree. Levels decrease on the way
 * down, and keys increase along the leaves, so no block is looked at twice.
 */
#ifndef _BTREE_BPF_H
#define _BTREE_BPF_H

#include "csd.bpf.h"

#define BTREE_MAGIC		0x3165657274625f65ULL	/* "e_btree1" */
#define BTREE_NODE_MAGIC	0x65646f6e		/* "node" */
#define BTREE_VALUE_SIZE	64

struct btree_header {
	u64 magic;
	u64 blocks;		/* number of blocks of the file */
	u64 root;		/* block of the root */
	u32 level;		/* level of the root */
	u32 pad;
};

struct btree_node {
	u32 magic;
	u16 level;
	u16 count;		/* number of entries */
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

/* A block's offset in the file is a loff_t, so files cannot have more blocks. */
#define BTREE_MOST_BLOCKS	(1ULL << 51)

/* Where a run is in the tree. The scratch of the btree_* functions begins with it. */
struct btree {
	u64 blocks;		/* number of blocks of the file; 0: the header comes next */
	u64 key;		/* last key that was seen in the leaves, if @keys is 1 */
	u32 level;		/* level of the node that comes next */
	u32 keys;		/* 1: a key was seen */
	u64 done;
};

/* The u64 at an offset of the block, which must be a multiple of 8. */
static inline u64 btree_number(const u8 *block, u64 at)
{
	/* The mask convinces the verifier. */
	return *(const u64 *)(block + (at & (CSD_BLOCK_SIZE - 8)));
}

/* Offset in the block of a member of the entry with that number. */
#define BTREE_AT(entry, number, member)						\
	(sizeof(struct btree_node) + (number) * sizeof(struct entry) +		\
	 __builtin_offsetof(struct entry, member))

/* The entry with the greatest key that is at most @key; the first entry if there is none. */
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

/* Goes on with a block. Returns CSD_GO_ON, or -EUCLEAN if there is no such block. */
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
 * btree_down - go down by one block, towards the leaf that a key belongs to
 *
 * Returns 1 if the current block is that leaf, else the value that step() has to return.
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

/* Ends the walk after everything that was wanted was there. */
static inline int btree_done(struct btree *tree)
{
	tree->done = 1;
	return CSD_DONE;
}

/* For finish(): returns 0 if btree_done() was called, else -EUCLEAN. */
static inline int btree_end(const struct btree *tree)
{
	return tree->done ? 0 : -EUCLEAN;
}

#endif /* _BTREE_BPF_H */
