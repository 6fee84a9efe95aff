// SPDX-License-Identifier: GPL-2.0
#include <linux/blk-mq.h>

static enum rq_end_io_ret probe(rq_end_io_fn *end_io, struct request *rq,
				const struct io_comp_batch *batch)
{
	return end_io(rq, BLK_STS_OK, batch);
}
