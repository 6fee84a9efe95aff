// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The daemon's side of the data cache; see publish.h.
 *
 * The kernel's side is kernel_patches/src/cache/blocks.c, with bpf_programs/blocks.c and learn.c. The
 * hash, the lock and the choice of a slot must be the same here.
 */
#include "publish.h"

#include <stdbool.h>
#include <string.h>

_Static_assert(sizeof(struct efuse_tag) == 64, "efuse_tag");
_Static_assert(sizeof(struct efuse_slot) == EFUSE_BLOCK_SIZE, "efuse_slot");

/* Tags are read without their lock, so each field is read and written in one access. */
#define READ(field)		__atomic_load_n(&(field), __ATOMIC_RELAXED)
#define WRITE(field, value)	__atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

enum outcome { STORED, BUSY, NEWER };

static uint32_t set_of(uint64_t nodeid, uint64_t block, uint32_t sets)
{
	uint64_t hash = (nodeid * 0x9e3779b97f4a7c15ULL) ^ (block * 0xc2b2ae3d27d4eb4fULL);

	return (uint32_t)(((hash >> 32) * sets) >> 32);
}

static bool lock(struct efuse_tag *tag)
{
	uint32_t nobody = 0;

	return __atomic_compare_exchange_n(&tag->lock, &nobody, EFUSE_TAG_WRITER, false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void unlock(struct efuse_tag *tag)
{
	__atomic_store_n(&tag->lock, 0, __ATOMIC_RELEASE);
}

/* The way of the set that holds the block, or -1. */
static int find(struct efuse_set *set, uint64_t nodeid, uint64_t block)
{
	int i;

	for (i = 0; i < EFUSE_WAYS; i++)
		if (READ(set->way[i].nodeid) == nodeid && READ(set->way[i].block) == block)
			return i;
	return -1;
}

/*
 * Chooses a way that is not in use at the moment: an empty one, or any that was not read since it
 * was stored. If all were read, the marks of these reads are cleared. -1: all are in use.
 */
static int victim(struct efuse_set *set)
{
	static uint32_t turn;
	uint32_t start = __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED);
	int i, way, last = -1;

	for (i = 0; i < EFUSE_WAYS; i++)
		if (!READ(set->way[i].nodeid) && !READ(set->way[i].lock))
			return i;
	for (i = 0; i < EFUSE_WAYS; i++) {
		way = (start + i) % EFUSE_WAYS;
		if (!READ(set->way[way].used) && !READ(set->way[way].lock))
			return way;
	}
	for (i = 0; i < EFUSE_WAYS; i++) {
		way = (start + i) % EFUSE_WAYS;
		WRITE(set->way[way].used, 0);
		if (!READ(set->way[way].lock))
			last = way;
	}
	return last;
}

/* Fills a slot and its tag. The tag must be locked. */
static void fill(struct efuse_tag *tag, struct efuse_slot *slot, const struct efuse_data *range,
		 uint64_t block, const uint8_t *data, uint32_t len)
{
	/* If the process dies in here, the slot counts as empty. */
	WRITE(tag->nodeid, 0);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	memcpy(slot->data, data, len);
	memset(slot->data + len, 0, EFUSE_BLOCK_SIZE - len);
	WRITE(tag->used, 0);
	WRITE(tag->block, block);
	tag->epoch = range->epoch;
	tag->expires_ns = range->expires_ns;
	tag->version = 0;
	tag->len = len;
	memset(tag->pad, 0, sizeof(tag->pad));
	WRITE(tag->nodeid, range->nodeid);
}

static enum outcome put(const struct efuse_cache *cache, const struct efuse_data *range,
			uint64_t block, const uint8_t *data, uint32_t len)
{
	uint32_t number = set_of(range->nodeid, block, cache->sets);
	struct efuse_set *set = &cache->tags[number];
	enum outcome outcome = STORED;
	struct efuse_tag *tag;
	int way;

	way = find(set, range->nodeid, block);
	if (way < 0)
		way = victim(set);
	if (way < 0)
		return BUSY;
	tag = &set->way[way];
	if (!lock(tag))
		return BUSY;
	if (READ(tag->nodeid) == range->nodeid && READ(tag->block) == block &&
	    tag->epoch > range->epoch)
		outcome = NEWER;
	else
		fill(tag, &cache->blocks[(size_t)number * EFUSE_WAYS + way], range, block, data,
		     len);
	unlock(tag);
	return outcome;
}

void efuse_publish(const struct efuse_cache *cache, const struct efuse_data *range,
		   struct efuse_published *done)
{
	const uint8_t *data = range->data;
	uint64_t block = range->block, nr[] = { [STORED] = 0, [BUSY] = 0, [NEWER] = 0 };
	size_t left = range->size;

	for (; left >= EFUSE_BLOCK_SIZE; left -= EFUSE_BLOCK_SIZE, data += EFUSE_BLOCK_SIZE)
		nr[put(cache, range, block++, data, EFUSE_BLOCK_SIZE)]++;
	/* The last block marks the end of the file, even if it is empty. */
	if (range->end)
		nr[put(cache, range, block, data, left)]++;
	done->stored = nr[STORED];
	done->busy = nr[BUSY];
	done->newer = nr[NEWER];
}
