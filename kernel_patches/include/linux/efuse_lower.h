/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For other modules: which backing file has a range of a file of an eFuse mount.
 *
 * efuse.ko exports both functions; whoever may run without it gets them by symbol_get().
 */
#ifndef _LINUX_EFUSE_LOWER_H
#define _LINUX_EFUSE_LOWER_H

#include <linux/time64.h>
#include <linux/types.h>

struct cred;
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
 * @idx: likewise: of the read section
 */
struct efuse_lower {
	struct file *file;
	u64 position;
	u64 length;
	struct inode *inode;
	const struct cred *cred;
	struct timespec64 atime;
	int idx;
};

int efuse_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
void efuse_lower_end(struct efuse_lower *lower);

#endif /* _LINUX_EFUSE_LOWER_H */
