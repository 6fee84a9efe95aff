// SPDX-License-Identifier: GPL-2.0
#include <linux/blkdev.h>

static bool probe(struct block_device *bdev, struct iov_iter *iter)
{
	return bdev_iter_is_aligned(bdev, iter);
}
