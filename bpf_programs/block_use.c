// SPDX-License-Identifier: GPL-2.0
/* Counts how often the blocks of each file are found, while a watcher wants to know. */
#include "efuse.bpf.h"

static inline int block_use_watched(void)
{
	struct efuse_geometry *shape;
	int zero = 0;

	shape = geometry.lookup(&zero);
	if (!shape || !shape->watched_ns)
		return 0;
	if (bpf_ktime_get_ns() < shape->watched_ns)
		return 1;
	/* The watcher has not renewed its wish. From now on the clock is not read any more. */
	shape->watched_ns = 0;
	return 0;
}

static inline void block_use_count(struct efuse_req *req, int found)
{
	u64 nodeid = efuse_req_nodeid(req);
	struct efuse_file_use none = {}, *use;

	/*
	 * A block that exists but is not wanted now will be asked for again, and is counted then.
	 */
	if (found && !efuse_req_wanted(req))
		return;
	use = files.lookup_or_try_init(&nodeid, &none);
	if (!use)
		return;
	if (found)
		__sync_fetch_and_add(&use->hits, 1);
	else
		__sync_fetch_and_add(&use->misses, 1);
}
