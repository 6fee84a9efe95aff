// SPDX-License-Identifier: GPL-2.0
/* Answers GETATTR from the map `attrs`. */
#include "efuse.bpf.h"

int getattr(struct efuse_req *req)
{
	u64 *key = efuse_req_key(req, sizeof(*key));
	struct efuse_attrs *value;

	if (!key)
		return EFUSE_PASS;
	value = attrs.lookup(key);
	return value ? efuse_reply_attrs(req, value, sizeof(*value)) : EFUSE_PASS;
}
