// SPDX-License-Identifier: GPL-2.0
/* How often the blocks of each file are found. Counted only while somebody watches. */
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
	/* Nobody asked again: from now on it costs no look at the clock either. */
	shape->watched_ns = 0;
	return 0;
}

static inline void block_use_count(struct efuse_req *req, int found)
{
	u64 nodeid = efuse_req_nodeid(req);
	struct efuse_file_use none = {}, *use;

	/* A block that is there and not wanted now is asked for again. */
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
