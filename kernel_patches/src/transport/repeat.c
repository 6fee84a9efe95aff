// SPDX-License-Identifier: GPL-2.0
/* Which requests may be sent again, although a daemon may have carried them out. */
#include "transport_i.h"

#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/termios.h>
#include <linux/xattr.h>

/* OPEN: what was written after the file was truncated is lost if it is truncated again. */
static bool efuse_open_repeatable(const struct fuse_args *args)
{
	return !(efuse_arg_flags(args) & O_TRUNC);
}

/* WRITE: a daemon may append the data at its own end of the file, wherever the WRITE says. */
static bool efuse_write_repeatable(const struct fuse_args *args)
{
	return !(efuse_arg_flags(args) & O_APPEND);
}

static bool efuse_fallocate_repeatable(const struct fuse_args *args)
{
	const struct fuse_fallocate_in *in = efuse_req_in(args, sizeof(*in));

	return in && !(in->mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE |
				    FALLOC_FL_ZERO_RANGE));
}

/* With XATTR_REPLACE the second execution has the same outcome as the first one. */
static bool efuse_setxattr_repeatable(const struct fuse_args *args)
{
	const struct fuse_setxattr_in *in = efuse_req_in(args, FUSE_COMPAT_SETXATTR_IN_SIZE);

	return in && !(in->flags & XATTR_CREATE);
}

/* Only ioctls that are known to read. */
static bool efuse_ioctl_repeatable(const struct fuse_args *args)
{
	const struct fuse_ioctl_in *in = efuse_req_in(args, sizeof(*in));

	return in && (in->cmd == TCGETS || in->cmd == FS_IOC_GETFLAGS ||
		      in->cmd == FS_IOC_FSGETXATTR);
}

/**
 * efuse_repeatable - is a request that is carried out twice as good as one carried out once?
 * @args: the request
 *
 * A request that truncates by SETATTR, writes or copies is, while its caller holds the lock of the
 * inode: each execution counts as the one. The caller of an OPEN does not hold it. A lock of a file
 * belongs to its owner, who may take it twice. A file without a name (TMPFILE) that no caller knows
 * of is gone with its daemon.
 *
 * Return: true if so
 */
bool efuse_repeatable(const struct fuse_args *args)
{
	switch (args->opcode) {
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_STATX:
	case FUSE_SETATTR:
	case FUSE_READLINK:
	case FUSE_READ:
	case FUSE_STATFS:
	case FUSE_RELEASE:
	case FUSE_FSYNC:
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
	case FUSE_FLUSH:
	case FUSE_OPENDIR:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_RELEASEDIR:
	case FUSE_FSYNCDIR:
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
	case FUSE_ACCESS:
	case FUSE_BMAP:
	case FUSE_POLL:
	case FUSE_LSEEK:
	case FUSE_SYNCFS:
	case FUSE_TMPFILE:
	case FUSE_COPY_FILE_RANGE:
	case EFUSE_COPY_FILE_RANGE_64:
		return true;
	case FUSE_OPEN:
		return efuse_open_repeatable(args);
	case FUSE_WRITE:
		return efuse_write_repeatable(args);
	case FUSE_FALLOCATE:
		return efuse_fallocate_repeatable(args);
	case FUSE_SETXATTR:
		return efuse_setxattr_repeatable(args);
	case FUSE_IOCTL:
		return efuse_ioctl_repeatable(args);
	default:
		return false;
	}
}
