// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Maps lower files into eFuse, so that the kernel reads and writes them without this
 * daemon. The other files of this program are an ordinary libfuse daemon.
 *
 * On plain FUSE the first ioctl fails, and no other is tried. The daemon then serves each
 * READ and WRITE.
 */
#include "passthrough.h"

#include <linux/efuse.h>
#include <pthread.h>
#include <sys/ioctl.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int device = -1;

/**
 * backing_start - allow files to be mapped from now on
 * @fd: the session's descriptor of /dev/efuse or /dev/fuse
 */
void backing_start(int fd)
{
	device = fd;
}

static int map(const struct inode *inode, int fd, bool write, bool created)
{
	struct efuse_extent extent = {
		.nodeid = nodeid_of(inode),
		.fd = fd,
		.flags = EFUSE_EXTENT_TO_EOF | (write ? EFUSE_EXTENT_WRITE : 0) |
			 (created ? EFUSE_EXTENT_NEW : 0),
	};

	return ioctl(device, EFUSE_IOC_MAP, &extent);
}

/**
 * backing_map - let the kernel read, and perhaps write, a lower file by itself
 * @inode: the inode of the file
 * @fd: a descriptor of the lower file. It may be closed at any time after the call, since
 *	the kernel takes its own reference.
 * @flags: the flags with which @fd was opened, without O_APPEND
 * @created: whether the kernel may not know the inode until the daemon replies
 *
 * A file is mapped until the kernel forgets its nodeid. A file that is open read-only is
 * mapped for reading only: the kernel keeps the lower file open, and a file that is open
 * for writing cannot be executed.
 */
void backing_map(struct inode *inode, int fd, int flags, bool created)
{
	int wanted = (flags & O_ACCMODE) == O_RDWR ? MAPPED_WRITE : MAPPED_READ;

	if ((flags & O_ACCMODE) == O_WRONLY)
		return;
	pthread_mutex_lock(&lock);
	if (device >= 0 && inode->mapped < wanted) {
		if (!map(inode, fd, wanted == MAPPED_WRITE, created))
			inode->mapped = wanted;
		else if (errno == ENOTTY || errno == EINVAL || errno == EPERM)
			device = -1;	/* no eFuse, or no permission: never try again */
	}
	pthread_mutex_unlock(&lock);
}

/**
 * backing_forget - note that the kernel may have dropped the mapping of a file
 * @inode: the inode of the file
 *
 * If the kernel still knows the inode, the next open maps the file again.
 */
void backing_forget(struct inode *inode)
{
	pthread_mutex_lock(&lock);
	inode->mapped = MAPPED_NOT;
	pthread_mutex_unlock(&lock);
}

/**
 * backing_unmap - unmap a file
 * @inode: the inode of the file
 *
 * When it returns, the kernel no longer reads or writes the lower file by itself.
 */
void backing_unmap(struct inode *inode)
{
	struct efuse_unmap all = { .nodeid = nodeid_of(inode) };

	pthread_mutex_lock(&lock);
	if (device >= 0 && inode->mapped)
		ioctl(device, EFUSE_IOC_UNMAP, &all);
	inode->mapped = MAPPED_NOT;
	pthread_mutex_unlock(&lock);
}
