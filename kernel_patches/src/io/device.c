// SPDX-License-Identifier: GPL-2.0
/*
 * The device path: a READ of a backing file on a device of csd.ko, done by the device, into the
 * request's own pages.
 *
 * It is a direct read of the backing file, whatever flags the file was opened with. The file system
 * below writes dirty pages back first, tells which blocks the file has, and keeps them in place
 * until the device has answered. The path pays off where the page cache of the backing file has
 * nothing of the range and does not need to have it afterwards.
 */
#include "io_i.h"

#include <linux/blkdev.h>
#include <linux/efuse_lower.h>
#include <linux/fs.h>

/*
 * Are the range and the caller's buffer aligned as the device requires? A request's pages are not
 * checked: if they do not fit, the read fails.
 */
static bool efuse_device_aligned(const struct efuse_req *req, const struct efuse_backing *eb,
				 u64 pos, u64 len)
{
	struct block_device *bdev = file_inode(eb->file)->i_sb->s_bdev;
	const struct iov_iter *iter = req->args->efuse.iter;

	return IS_ALIGNED(pos | len, bdev_logical_block_size(bdev)) &&
	       (!iter || efuse_iter_aligned(bdev, iter));
}

static int efuse_device_ask(struct efuse_req *req, const struct efuse_backing *eb, u64 pos, u64 len,
			    u64 room)
{
	u64 lower = pos - eb->offset + eb->backing_offset;

	if (!eb->resident || room < len || !efuse_device_aligned(req, eb, lower, len))
		return -EOPNOTSUPP;
	len += lower % PAGE_SIZE;
	return eb->resident(eb->file, lower, DIV_ROUND_UP(len, PAGE_SIZE));
}

/**
 * efuse_device_resident - count the blocks of a READ that its backing file's page cache has
 * @req: the READ
 *
 * Context: process context; does not sleep.
 * Return: number of blocks, or -EOPNOTSUPP if the device path cannot take the READ
 */
int efuse_device_resident(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	u64 room, pos = efuse_arg_offset(args);
	int resident = -EOPNOTSUPP;
	struct efuse_use *use;
	u8 reason = req->reason;

	if (args->opcode != FUSE_READ || !READ_ONCE(req->ec->on_device))
		return -EOPNOTSUPP;
	use = efuse_extent_begin(req, pos, &room);
	if (use) {
		resident = efuse_device_ask(req, use->extent, pos, args->out_args[0].size, room);
		efuse_extent_end(req->ec, use);
	}
	req->reason = reason;
	return resident;
}
