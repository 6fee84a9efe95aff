// SPDX-License-Identifier: GPL-2.0
/*
 * Hide names from LOOKUP, before the daemon hears of it: those that begin with a dot, and those in
 * the map `hidden`, with zeros up to 256 bytes:
 *
 *	attachment.maps["hidden"][b"secret".ljust(256, b"\0")] = 0
 *
 * It hides and does not protect: a listing still has them, who has one open keeps it, and CREATE of
 * such a name reaches the daemon.
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
