/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What efuse.ko and csd.ko know for each other. Each runs without the other one, and gets
 * the other's functions by symbol_get().
 */
#ifndef _LINUX_EFUSE_LOWER_H
#define _LINUX_EFUSE_LOWER_H

#include <linux/time64.h>
#include <linux/types.h>

struct cred;
struct efuse_use;
struct file;
struct inode;

/**
 * struct efuse_lower - a range of a file, and where its bytes lie
 * @file: the backing file
 * @position: of the range in it
 * @length: bytes of the range that lie there
 * @inode: eFuse's own: of the file
 * @cred: likewise: of the caller
 * @atime: likewise: the backing file's, before
 * @use: likewise: by which the extent is held
 */
struct efuse_lower {
	struct file *file;
	u64 position;
	u64 length;
	struct inode *inode;
	const struct cred *cred;
	struct timespec64 atime;
	struct efuse_use *use;
};

/* Of efuse.ko: see lower.c. */
int efuse_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
void efuse_lower_end(struct efuse_lower *lower);

/**
 * typedef csd_resident_t - how many of a file's blocks the page cache has
 * @file: the file
 * @position: in it, bytes: of the first block
 * @blocks: of 4 KiB: how many are asked for
 *
 * Context: process context; does not sleep.
 */
typedef u32 (*csd_resident_t)(const struct file *file, u64 position, u32 blocks);

/* Of csd.ko: see lower.c. */
csd_resident_t csd_reads(const struct file *file);

#endif /* _LINUX_EFUSE_LOWER_H */
