// SPDX-License-Identifier: GPL-2.0
/* Answers LOOKUP from the map `entries`, with the attributes of the inode from `attrs`. */
#include "efuse.bpf.h"

int lookup(struct efuse_req *req)
{
	struct efuse_entry_key *key = efuse_req_key(req, sizeof(*key));
	struct efuse_entry *entry;
	struct efuse_attrs *value;
	u64 nodeid;

	if (!key)
		return EFUSE_PASS;
	entry = entries.lookup(key);
	if (!entry)
		return EFUSE_PASS;
	nodeid = entry->nodeid;
	if (!nodeid)
		return efuse_reply_negative(req, entry, sizeof(*entry));
	value = attrs.lookup(&nodeid);
	if (!value)
		return EFUSE_PASS;
	return efuse_reply_entry(req, entry, sizeof(*entry), value, sizeof(*value));
}
