// SPDX-License-Identifier: GPL-2.0
/* Answers ACCESS, OPEN and OPENDIR from the map `grants`. */
#include "efuse.bpf.h"

static inline int grant_reply(struct efuse_req *req)
{
	struct efuse_grant_key *key = efuse_req_key(req, sizeof(*key));
	struct efuse_grant *value;

	if (!key)
		return EFUSE_PASS;
	value = grants.lookup(key);
	return value ? efuse_reply_grant(req, value, sizeof(*value)) : EFUSE_PASS;
}

int access(struct efuse_req *req)
{
	return grant_reply(req);
}

int open(struct efuse_req *req)
{
	return grant_reply(req);
}

int opendir(struct efuse_req *req)
{
	return grant_reply(req);
}
