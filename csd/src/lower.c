// SPDX-License-Identifier: GPL-2.0
/*
 * Where a run's bytes lie: in its file itself, or, on an eFuse mount, in the backing
 * file that the daemon mapped the range to, as efuse.ko says. And what it asks in turn.
 */
#include "csd_i.h"

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
 * @position: of the range
 * @length: of it in bytes, not 0
 * @lower: is told: the file, the position and the length there, which may be less
 *
 * Context: process context, may sleep.
 * Return: 0, to be followed by csd_lower_end() in the same task; -EOPNOTSUPP: only
 *         read(2) has the bytes; or another negative errno
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
	/* The open file keeps efuse.ko here. */
	end = symbol_get(efuse_lower_end);
	end(lower);
	symbol_put(efuse_lower_end);
}

/**
 * csd_reads - does a direct read of a file go to a device of ours?
 * @file: the file
 *
 * Context: any.
 * Return: how to ask what the page cache has of it, as long as @file is open; NULL: it does not
 */
csd_resident_t csd_reads(const struct file *file)
{
	return csd_offload_reads(file) ? NULL : csd_resident;
}
EXPORT_SYMBOL_GPL(csd_reads);
