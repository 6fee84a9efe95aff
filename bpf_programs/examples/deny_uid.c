// SPDX-License-Identifier: GPL-2.0
/*
 * Refuse LOOKUP and OPEN to some users, before the daemon hears of it.
 *
 * The map `denied` holds their uids; what is stored under a uid is counted up at each refusal:
 *
 *	attachment.maps["denied"][1000] = 0
 */
#include "efuse.bpf.h"

BPF_HASH(denied, u32, u64, 1024);

static inline int verdict(struct efuse_req *req)
{
	u32 uid = efuse_req_uid(req);
	u64 *refusals = denied.lookup(&uid);

	if (!refusals)
		return EFUSE_PASS;
	lock_xadd(refusals, 1);
	return -EACCES;
}

int lookup(struct efuse_req *req)
{
	return verdict(req);
}

int open(struct efuse_req *req)
{
	return verdict(req);
}
