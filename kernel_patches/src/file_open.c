// SPDX-License-Identifier: GPL-2.0
/* open(2) of a regular file: what is checked before the daemon truncates it, and afterwards. */
#include "efuse_i.h"

/**
 * efuse_file_open - send OPEN for a regular file
 * @fm: mount
 * @inode: the file
 * @file: the open file, not yet finished
 *
 * The VFS checks whether a file is being executed before it opens the file for writing. With
 * O_RDONLY and O_TRUNC it checks only afterwards. By then a daemon with FUSE_ATOMIC_O_TRUNC has
 * truncated the program. So this check comes first here, too.
 *
 * Context: process context, may sleep.
 * Return: 0, -ETXTBSY, or another negative errno
 */
int efuse_file_open(struct fuse_mount *fm, struct inode *inode, struct file *file)
{
	bool cuts = file->f_flags & O_TRUNC && fm->fc->atomic_o_trunc &&
		    !(file->f_mode & FMODE_WRITE);
	u64 version = efuse_version_opening(inode);
	int err = cuts ? get_write_access(inode) : 0;

	if (err)
		return err;
	err = fuse_do_open(fm, get_node_id(inode), file, false);
	if (cuts)
		put_write_access(inode);
	if (!err)
		efuse_version_open(file, version);
	return err;
}
