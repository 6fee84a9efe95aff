// SPDX-License-Identifier: GPL-2.0
/* The keys of values and the checks in their stamps, as <linux/efuse.h> describes them. */
#include "cache_i.h"

#include <linux/crc32.h>

void efuse_entry_key(struct efuse_entry_key *key, u64 parent, const char *name, u32 len)
{
	key->parent = parent;
	memcpy(key->name, name, len);
	memset(key->name + len, 0, sizeof(key->name) - len);
}

void efuse_blob_key(struct efuse_blob_key *key, u64 nodeid, u32 opcode,
		    const char *name, u32 len)
{
	key->nodeid = nodeid;
	key->opcode = opcode;
	key->pad = 0;
	memcpy(key->name, name, len);
	memset(key->name + len, 0, sizeof(key->name) - len);
}

void efuse_grant_key(struct efuse_grant_key *key, struct efuse_req *req)
{
	key->nodeid = req->args->nodeid;
	key->opcode = req->args->opcode;
	key->arg = efuse_arg_flags(req->args);
	key->caller = efuse_caller_stamp(req);
}

/* A seed is the state of the CRC after the key of the value; see struct efuse_stamp. */

u32 efuse_seed_nodeid(u64 nodeid)
{
	return crc32_le(~0, (const u8 *)&nodeid, sizeof(nodeid));
}

u32 efuse_seed_entry(u64 parent, const char *name, u32 len)
{
	return crc32_le(efuse_seed_nodeid(parent), name, len);
}

u32 efuse_seed_blob(u64 nodeid, u32 opcode, const char *name, u32 len)
{
	u32 crc = crc32_le(efuse_seed_nodeid(nodeid), (const u8 *)&opcode, sizeof(opcode));

	return crc32_le(crc, name, len);
}

u32 efuse_seed_grant(const struct efuse_grant_key *key)
{
	return crc32_le(~0, (const u8 *)key, sizeof(*key));
}

/**
 * efuse_check - compute the check of a value
 * @seed: result of the efuse_seed_*() function for the kind of value
 * @value: the value, which begins with a struct efuse_stamp
 * @size: bytes of the value that the check covers
 *
 * Return: the CRC-32 of the seed's bytes followed by all bytes after stamp.check.
 */
u32 efuse_check(u32 seed, const void *value, size_t size)
{
	return ~crc32_le(seed, (const u8 *)value + sizeof(u32), size - sizeof(u32));
}
