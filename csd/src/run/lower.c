// SPDX-License-Identifier: GPL-2.0
/*
 * Where the bytes of a run's file lie: in the file itself, or, on an eFuse mount, in the backing
 * file that the daemon mapped the range to. efuse.ko tells. In the other direction, csd_reads()
 * tells efuse.ko about files on csd.ko's devices.
 */
#include "run_i.h"

#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>

static int csd_lower_ask(struct file *file, u64 position, u64 length, struct efuse_lower *lower)
{
	int (*begin)(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
	int err;

	begin = symbol_get(efuse_lower_begin);
	if (!begin)
		return -EOPNOTSUPP;
	err = begin(file, position, length, lower);
	symbol_put(efuse_lower_begin);
	return err;
}

/**
 * csd_lower_begin - find out where a range of a file lies, and keep it there
 * @file: the file
 * @position: start of the range in the file, bytes
 * @length: length of the range in bytes, not 0
 * @lower: filled in: the file that has the bytes, the position there, and the length there, which
 *         may be shorter than @length
 *
 * Context: process context, may sleep.
 * Return: 0, then csd_lower_end() has to follow in the same task; -EOPNOTSUPP if the bytes can be
 *         had only by read(2); or another negative errno
 */
int csd_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower)
{
	if (file_inode(file)->i_sb->s_magic == FUSE_SUPER_MAGIC)
		return csd_lower_ask(file, position, length, lower);
	lower->file = file;
	lower->position = position;
	lower->length = length;
	return 0;
}

void csd_lower_end(struct file *file, struct efuse_lower *lower)
{
	void (*end)(struct efuse_lower *lower);

	if (file_inode(file)->i_sb->s_magic != FUSE_SUPER_MAGIC)
		return;
	/* The open file keeps efuse.ko loaded. */
	end = symbol_get(efuse_lower_end);
	end(lower);
	symbol_put(efuse_lower_end);
}

/**
 * csd_reads - does a direct read of a file go to a device of csd.ko?
 * @file: the file
 *
 * Context: any.
 * Return: a function that counts the file's blocks in the page cache, valid as long as @file is
 *         open; NULL if the read does not go to such a device
 */
csd_resident_t csd_reads(const struct file *file)
{
	return csd_why_direct(file) ? NULL : csd_resident;
}
EXPORT_SYMBOL_GPL(csd_reads);
