// SPDX-License-Identifier: GPL-2.0
/* Which files a device can read by itself, and why it does not read the others. */
#include "run_i.h"

#include <linux/fs.h>
#include <linux/magic.h>

/**
 * csd_why_direct - do direct reads of a file go to a device of csd.ko?
 * @file: the file
 *
 * Return: CSD_WHY_NOT if they do, else the reason
 */
enum csd_why csd_why_direct(const struct file *file)
{
	const struct inode *inode = file_inode(file);

	if (!inode->i_sb->s_bdev || !csd_device_is(inode->i_sb->s_bdev))
		return CSD_WHY_NO_DEVICE;
	if (IS_ENCRYPTED(inode) || IS_VERITY(inode) || IS_DAX(inode) || IS_SWAPFILE(inode) ||
	    !(file->f_mode & FMODE_CAN_ODIRECT))
		return CSD_WHY_CONTENT;
	return CSD_WHY_NOT;
}

/*
 * The file systems that keep a file's blocks in place while direct I/O of the inode is counted
 * (inode_dio_begin()). Before a block is taken away from a file or moved, for whatever reason, they
 * call inode_dio_wait() under the inode's exclusive lock; and a block belongs to one file only.
 * Check the source of a file system for this before adding it here. Not on the list are:
 *
 * - xfs: it waits, but several files may share a block. The last of them gives the block away, and
 *   waits for its own direct I/O only. An ordinary direct read holds the inode's lock meanwhile; a
 *   layout and a chain do not.
 * - btrfs: it does not wait, because its direct reads lock their extents. A balance moves blocks.
 *   Blocks may be compressed, shared, and on several devices.
 * - f2fs: its garbage collection moves blocks without waiting.
 */
static const unsigned long csd_waiting[] = {
	EXT4_SUPER_MAGIC,	/* also ext2 and ext3 */
};

static bool csd_fs_waits(const struct super_block *sb)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(csd_waiting); i++)
		if (sb->s_magic == csd_waiting[i])
			return true;
	return false;
}

/**
 * csd_why_file - may the device read a file's blocks by itself?
 * @file: the file
 *
 * Return: CSD_WHY_NOT if it may, else the reason
 */
enum csd_why csd_why_file(const struct file *file)
{
	const struct inode *inode = file_inode(file);
	enum csd_why why = csd_why_direct(file);

	if (why)
		return why;
	if (!csd_fs_waits(inode->i_sb))
		return CSD_WHY_FILESYSTEM;
	return inode->i_blkbits == ilog2(CSD_BLOCK_SIZE) ? CSD_WHY_NOT : CSD_WHY_BLOCK_SIZE;
}

/**
 * csd_why_unsized - why does the device not look at a file without a size?
 * @file: a file of size 0 that has bytes nevertheless
 *
 * Return: the reason
 */
enum csd_why csd_why_unsized(const struct file *file)
{
	if (file_inode(file)->i_sb->s_magic == FUSE_SUPER_MAGIC)
		return CSD_WHY_DAEMON;
	return csd_why_direct(file) ?: CSD_WHY_UNMAPPED;
}
