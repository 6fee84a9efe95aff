// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Tells eFuse where the bytes of an open file lie, so that it reads and writes them
 * without asking us. All else of this file system is an ordinary libfuse daemon.
 *
 * On plain FUSE the ioctl is refused, once; then each READ and WRITE comes to us.
 */
#include "passthrough.h"

#include <linux/efuse.h>
#include <pthread.h>
#include <sys/ioctl.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int device = -1;

/**
 * backing_start - begin to map
 * @fd: the session's own descriptor of /dev/efuse, or of /dev/fuse
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
 * @inode: the file's
 * @fd: the lower file, opened with
 * @flags: these; not O_APPEND. It may be closed at any time: the kernel has its own.
 * @created: the kernel may not know the inode yet: the reply will tell it
 *
 * A file is mapped until the kernel forgets its nodeid. One that was only read is
 * mapped for reading: the kernel holds what it was given, and what can be written
 * cannot be executed.
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
			device = -1;	/* no eFuse, or none for us */
	}
	pthread_mutex_unlock(&lock);
}

/**
 * backing_forget - the kernel has dropped what it was told of a file
 * @inode: the file's
 *
 * If it knows the inode again by now, it is told again at the next open.
 */
void backing_forget(struct inode *inode)
{
	pthread_mutex_lock(&lock);
	inode->mapped = MAPPED_NOT;
	pthread_mutex_unlock(&lock);
}

/**
 * backing_unmap - take back what the kernel was told of a file
 * @inode: the file's
 *
 * When it returns, nothing is read or written without us any more.
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
