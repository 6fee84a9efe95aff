// SPDX-License-Identifier: GPL-2.0
#include <linux/blk-mq.h>

static unsigned int probe(void)
{
	return BLK_MQ_F_SHOULD_MERGE;
}
