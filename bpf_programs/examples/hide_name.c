// SPDX-License-Identifier: GPL-2.0
/*
 * Hides names from LOOKUP before the daemon sees the request: names that begin with a dot, and
 * names in the map `hidden`, which are padded with zeros to 256 bytes:
 *
 *	attachment.maps["hidden"][b"secret".ljust(256, b"\0")] = 0
 *
 * This hides files but does not protect them: a listing still shows the names, a program that has a
 * file open keeps it, and CREATE of such a name reaches the daemon.
 */
#include "efuse.bpf.h"

struct name {
	char text[256];
};

BPF_HASH(hidden, struct name, u64, 1024);

int lookup(struct efuse_req *req)
{
	struct name name = {};

	if (efuse_req_name(req, 0, &name, sizeof(name)) < 0)
		return EFUSE_PASS;
	return name.text[0] == '.' || hidden.lookup(&name) ? -ENOENT : EFUSE_PASS;
}
