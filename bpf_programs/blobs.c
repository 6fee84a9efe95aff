// SPDX-License-Identifier: GPL-2.0
/* Answers READLINK, GETXATTR and LISTXATTR from the map `blobs`. */
#include "efuse.bpf.h"

static inline int blob_reply(struct efuse_req *req)
{
	struct efuse_blob_key *key = efuse_req_key(req, sizeof(*key));
	struct efuse_blob *value;

	if (!key)
		return EFUSE_PASS;
	value = blobs.lookup(key);
	return value ? efuse_reply_blob(req, value, sizeof(*value)) : EFUSE_PASS;
}

int readlink(struct efuse_req *req)
{
	return blob_reply(req);
}

int getxattr(struct efuse_req *req)
{
	return blob_reply(req);
}

int listxattr(struct efuse_req *req)
{
	return blob_reply(req);
}
