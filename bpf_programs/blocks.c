// SPDX-License-Identifier: GPL-2.0
/*
 * Answers READs from the map `blocks`, a set-associative cache. A new block whose set is full
 * replaces a block that has not been read since it was stored.
 */
#include "efuse.bpf.h"

static inline u64 block_hash(u64 nodeid, u64 block)
{
	return (nodeid * 0x9e3779b97f4a7c15ULL) ^ (block * 0xc2b2ae3d27d4eb4fULL);
}

/* A number below @n from the high bits of the hash, which are the well mixed bits of a product. */
static inline u32 block_scale(u64 hash, u32 n)
{
	return (u32)(((hash >> 32) * n) >> 32);
}

static inline struct efuse_set *block_find_set(u64 nodeid, u64 block, int *number)
{
	struct efuse_geometry *shape;
	int zero = 0;

	shape = geometry.lookup(&zero);
	if (!shape || !shape->sets)
		return NULL;
	*number = block_scale(block_hash(nodeid, block), shape->sets);
	return tags.lookup(number);
}

/* The way of the set that holds the block, or -1. */
static inline int block_way(struct efuse_set *set, u64 nodeid, u64 block)
{
	int i;

#pragma unroll
	for (i = 0; i < EFUSE_WAYS; i++)
		if (set->way[i].nodeid == nodeid && set->way[i].block == block)
			return i;
	return -1;
}

static inline int block_answer(struct efuse_req *req)
{
	u64 nodeid = efuse_req_nodeid(req), block = efuse_req_block(req);
	struct efuse_set *set;
	struct efuse_slot *slot;
	int number, way;

	set = block_find_set(nodeid, block, &number);
	if (!set)
		return EFUSE_PASS;
	way = block_way(set, nodeid, block);
	if (way < 0)
		return EFUSE_PASS;
	number = number * EFUSE_WAYS + way;
	slot = blocks.lookup(&number);
	if (!slot)
		return EFUSE_PASS;
	return efuse_reply_block(req, &set->way[way & (EFUSE_WAYS - 1)], sizeof(struct efuse_tag),
				 slot, sizeof(*slot));
}

int block(struct efuse_req *req)
{
	int verdict = block_answer(req);

	if (block_use_watched())
		block_use_count(req, verdict == EFUSE_REPLIED);
	return verdict;
}
