/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The interface between efuse.ko and csd.ko. Each module runs without the other one, and gets the
 * other's functions by symbol_get().
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
 * struct efuse_lower - a range of a file whose bytes are in a backing file
 * @file: the backing file
 * @position: offset of the range in the backing file, bytes
 * @length: bytes of the range that are there
 * @inode: inode of the file; only for eFuse
 * @cred: the caller's own credentials, which efuse_lower_end() restores; only for eFuse
 * @atime: access time of the backing file before the read; only for eFuse
 * @use: the use by which the extent is held; only for eFuse
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

/* Functions of efuse.ko: see its lower.c. */
int efuse_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
void efuse_lower_end(struct efuse_lower *lower);

/**
 * typedef csd_resident_t - count the blocks of a file that are in the page cache
 * @file: the file
 * @position: offset of the first block in the file, bytes
 * @blocks: number of blocks of 4 KiB to look for
 *
 * Context: process context; does not sleep.
 * Return: number of these blocks that are in the page cache
 */
typedef u32 (*csd_resident_t)(const struct file *file, u64 position, u32 blocks);

/* Functions of csd.ko: see its lower.c. */
csd_resident_t csd_reads(const struct file *file);

#endif /* _LINUX_EFUSE_LOWER_H */
