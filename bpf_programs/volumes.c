// SPDX-License-Identifier: GPL-2.0
/* Answers STATFS from the map `volumes`. */
#include "efuse.bpf.h"

int statfs(struct efuse_req *req)
{
	u64 *key = efuse_req_key(req, sizeof(*key));
	struct efuse_volume *value;

	if (!key)
		return EFUSE_PASS;
	value = volumes.lookup(key);
	return value ? efuse_reply_volume(req, value, sizeof(*value)) : EFUSE_PASS;
}
