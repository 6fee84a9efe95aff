// SPDX-License-Identifier: GPL-2.0
#include "../../fuse_i.h"

static bool probe(const struct fuse_args *args)
{
	return args->zero_copy;
}
