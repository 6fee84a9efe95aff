// SPDX-License-Identifier: GPL-2.0
#include "../../fuse_i.h"
#include "../../dev.h"

static void probe(struct fuse_conn *fc)
{
	fuse_chan_abort(fc->chan, false);
}
