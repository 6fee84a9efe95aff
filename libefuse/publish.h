/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Puts blocks of files into the data cache of a mount, through the daemon's own mapping of the maps
 * `tags` and `blocks`, without a system call.
 *
 * A slot is locked by its tag; the kernel and other publishers use the same lock. A publisher that
 * finds it locked skips the block. The kernel decides whether it serves a published block, by the
 * block's epoch. So the epoch has to be read before the data is.
 */
#ifndef LIBEFUSE_PUBLISH_H
#define LIBEFUSE_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

#include <linux/efuse.h>

/**
 * struct efuse_cache - a data cache, as it is mapped in this process
 * @tags: the map `tags`
 * @blocks: the map `blocks`
 * @sets: number of elements of @tags; @blocks has EFUSE_WAYS times as many
 */
struct efuse_cache {
	struct efuse_set *tags;
	struct efuse_slot *blocks;
	uint32_t sets;
};

/**
 * struct efuse_data - a range of a file
 * @nodeid: nodeid of the file, not 0
 * @block: number of the first block: offset in the file / EFUSE_BLOCK_SIZE
 * @data: the bytes of the range
 * @size: number of bytes; an incomplete last block is published only with @end
 * @end: not 0 if the file ends where the range ends
 * @epoch: the connection's epoch, read before the data was read
 * @expires_ns: CLOCK_MONOTONIC time at which the data expires
 */
struct efuse_data {
	uint64_t nodeid;
	uint64_t block;
	const void *data;
	size_t size;
	int end;
	uint64_t epoch;
	uint64_t expires_ns;
};

/**
 * struct efuse_published - what became of a range's blocks
 * @stored: number of blocks that were put into the cache
 * @busy: number of blocks that were skipped because the slot, or all slots of the set, were in use
 * @newer: number of blocks that were skipped because the cache has them with a later epoch
 */
struct efuse_published {
	uint64_t stored;
	uint64_t busy;
	uint64_t newer;
};

/**
 * efuse_publish - put the blocks of a range into the cache
 * @cache: the cache; other threads and processes may use it at the same time
 * @range: the range
 * @done: filled in
 *
 * Makes no system call, allocates no memory and never waits. If the caller dies inside, the current
 * slot stays locked as long as the maps exist; nothing else is lost.
 */
__attribute__((visibility("default")))
void efuse_publish(const struct efuse_cache *cache, const struct efuse_data *range,
		   struct efuse_published *done);

#endif /* LIBEFUSE_PUBLISH_H */
