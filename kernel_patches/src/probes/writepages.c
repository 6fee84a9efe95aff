// SPDX-License-Identifier: GPL-2.0
#include "../../fuse_i.h"

static struct rb_node *probe(struct fuse_inode *fi)
{
	return fi->writepages.rb_node;
}
