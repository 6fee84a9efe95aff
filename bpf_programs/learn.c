// SPDX-License-Identifier: GPL-2.0
/* Stores each value that the daemon's replies bring in its map. */
#include "efuse.bpf.h"

/* An older value was to be forgotten; @error is that of its removal. There need not be one. */
static inline int forgotten(int error)
{
	return error == -ENOENT ? 0 : error;
}

static inline int learn_entry(struct efuse_req *req)
{
	struct efuse_entry_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_entry *value = efuse_learn_value(req, sizeof(*value));

	if (!key || !value)
		return -EINVAL;
	return value->stamp.epoch ? entries.update(key, value) : forgotten(entries.delete(key));
}

static inline int learn_attrs(struct efuse_req *req)
{
	u64 *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_attrs *value = efuse_learn_value(req, sizeof(*value));

	if (!key || !value)
		return -EINVAL;
	return value->stamp.epoch ? attrs.update(key, value) : forgotten(attrs.delete(key));
}

static inline int learn_blob(struct efuse_req *req)
{
	struct efuse_blob_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_blob *value = efuse_learn_value(req, sizeof(*value));

	if (!key || !value)
		return -EINVAL;
	return value->stamp.epoch ? blobs.update(key, value) : forgotten(blobs.delete(key));
}

static inline int learn_grant(struct efuse_req *req)
{
	struct efuse_grant_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_grant *value = efuse_learn_value(req, sizeof(*value));

	if (!key || !value)
		return -EINVAL;
	return value->stamp.epoch ? grants.update(key, value) : forgotten(grants.delete(key));
}

static inline int learn_volume(struct efuse_req *req)
{
	u64 *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_volume *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? volumes.update(key, value) : -EINVAL;
}

/*
 * Chooses a way of the set: an empty one, or any that was not read since it was stored. If all were
 * read, the marks of these reads are cleared. A locked way is not taken: a process that died with
 * the lock spoils only that way.
 */
static inline int block_victim(struct efuse_set *set)
{
	u32 start = bpf_get_prandom_u32();
	int i, way, last = start & (EFUSE_WAYS - 1);

#pragma unroll
	for (i = 0; i < EFUSE_WAYS; i++)
		if (!set->way[i].nodeid && !set->way[i].lock)
			return i;
#pragma unroll
	for (i = 0; i < EFUSE_WAYS; i++) {
		way = (start + i) & (EFUSE_WAYS - 1);
		if (!set->way[way].used && !set->way[way].lock)
			return way;
	}
#pragma unroll
	for (i = 0; i < EFUSE_WAYS; i++) {
		way = (start + i) & (EFUSE_WAYS - 1);
		set->way[way].used = 0;
		if (!set->way[way].lock)
			last = way;
	}
	return last;
}

/* Emits an event about the block that made room, if there is one: a publisher may count on it. */
static inline void tell_evicted(struct efuse_req *req)
{
	struct efuse_tag tag = {};

	if (!efuse_learn_evicted(req, &tag, sizeof(tag)))
		event_emit(EFUSE_EVENT_EVICTED, efuse_req_opcode(req), 0, tag.nodeid,
			   tag.block * EFUSE_BLOCK_SIZE, tag.len, tag.epoch);
}

static inline int learn_block(struct efuse_req *req)
{
	u64 nodeid = efuse_req_nodeid(req), block = efuse_req_block(req);
	struct efuse_set *set;
	struct efuse_slot *slot;
	int number, way, error;

	set = block_find_set(nodeid, block, &number);
	if (!set)
		return 0;
	way = block_way(set, nodeid, block);
	/* A written block may never be read, so it does not replace another one. */
	if (way < 0 && efuse_req_opcode(req) == FUSE_WRITE)
		return 0;
	if (way < 0)
		way = block_victim(set);
	way &= EFUSE_WAYS - 1;
	number = number * EFUSE_WAYS + way;
	slot = blocks.lookup(&number);
	if (!slot)
		return 0;
	error = efuse_learn_block(req, &set->way[way], sizeof(struct efuse_tag), slot,
				  sizeof(*slot));
	if (!error && event_wanted())
		tell_evicted(req);
	return error;
}

int learn(struct efuse_req *req)
{
	switch (efuse_learn_map(req)) {
	case EFUSE_MAP_ENTRIES:
		return learn_entry(req);
	case EFUSE_MAP_ATTRS:
		return learn_attrs(req);
	case EFUSE_MAP_BLOBS:
		return learn_blob(req);
	case EFUSE_MAP_GRANTS:
		return learn_grant(req);
	case EFUSE_MAP_VOLUMES:
		return learn_volume(req);
	case EFUSE_MAP_BLOCKS:
		return learn_block(req);
	}
	return 0;
}
