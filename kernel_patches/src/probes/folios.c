// SPDX-License-Identifier: GPL-2.0
#include "../../fuse_i.h"

static struct folio **probe(struct fuse_args_pages *ap)
{
	return fuse_folios_alloc(1, GFP_KERNEL, &ap->descs);
}
