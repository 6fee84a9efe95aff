// SPDX-License-Identifier: GPL-2.0
#include <linux/blk-mq.h>

static int (*probe(const struct blk_mq_ops *ops))(struct blk_mq_tag_set *, struct request *,
						  unsigned int, int)
{
	return ops->init_request;
}
