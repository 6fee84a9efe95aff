/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Puts blocks of files into the data cache of a mount, through the daemon's own
 * mapping of the maps `tags` and `blocks`: no system call.
 *
 * A slot is locked by its tag, as the kernel and other publishers do; who finds it
 * locked goes on without waiting. Whether a published block is served decides the
 * kernel, by the epoch that it carries: that has to be read before the data is.
 */
#ifndef LIBEFUSE_PUBLISH_H
#define LIBEFUSE_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

#include <linux/efuse.h>

/**
 * struct efuse_cache - a data cache, as it is mapped here
 * @tags: the map `tags`
 * @blocks: the map `blocks`
 * @sets: elements of @tags; @blocks has EFUSE_WAYS times as many
 */
struct efuse_cache {
	struct efuse_set *tags;
	struct efuse_slot *blocks;
	uint32_t sets;
};

/**
 * struct efuse_data - a range of a file
 * @nodeid: of the file, not 0
 * @block: where it begins: offset in the file / EFUSE_BLOCK_SIZE
 * @data: its bytes
 * @size: how many. What does not fill a block is published only with @end
 * @end: the file ends where the range ends
 * @epoch: the connection's, read before the data was
 * @expires_ns: CLOCK_MONOTONIC at which the data is not valid any more
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
 * @stored: in the cache now
 * @busy: not, since somebody used the slot, or all slots of the set
 * @newer: not, since the cache has them of a later epoch
 */
struct efuse_published {
	uint64_t stored;
	uint64_t busy;
	uint64_t newer;
};

/**
 * efuse_publish - put the blocks of a range into the cache
 * @cache: where; may be written to by others meanwhile
 * @range: what
 * @done: filled
 *
 * Makes no system call, allocates nothing, waits for nobody. If the caller dies within,
 * the slot at hand is lost until the maps are, and nothing else.
 */
__attribute__((visibility("default")))
void efuse_publish(const struct efuse_cache *cache, const struct efuse_data *range,
		   struct efuse_published *done);

#endif /* LIBEFUSE_PUBLISH_H */
