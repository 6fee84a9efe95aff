// SPDX-License-Identifier: LGPL-2.1-or-later
/* Operations on attributes. */
#include "passthrough.h"

#include <sys/statvfs.h>

static void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (fstatat(inode_fd(nodeid), "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
		fuse_reply_err(req, errno);
	else
		fuse_reply_attr(req, &st, options.timeout);
}

static int set_owner(int fd, const struct stat *st, int valid)
{
	uid_t uid = valid & FUSE_SET_ATTR_UID ? st->st_uid : (uid_t)-1;
	gid_t gid = valid & FUSE_SET_ATTR_GID ? st->st_gid : (gid_t)-1;

	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}

static struct timespec time_of(const struct timespec *given, bool set, bool now)
{
	struct timespec time = { .tv_nsec = now ? UTIME_NOW : UTIME_OMIT };

	return set && !now ? *given : time;
}

static int set_times(int fd, const struct stat *st, int valid)
{
	struct timespec times[2] = {
		time_of(&st->st_atim, valid & FUSE_SET_ATTR_ATIME, valid & FUSE_SET_ATTR_ATIME_NOW),
		time_of(&st->st_mtim, valid & FUSE_SET_ATTR_MTIME, valid & FUSE_SET_ATTR_MTIME_NOW),
	};

	/* An empty path, not one below /proc, so that it works for a symbolic link, too. */
	return utimensat(fd, "", times, AT_EMPTY_PATH);
}

static int set(int fd, const struct stat *st, int valid, const struct fuse_file_info *fi)
{
	struct fd_path path = fd_path(fd);

	if (valid & FUSE_SET_ATTR_MODE && chmod(path.text, st->st_mode & 07777))
		return -1;
	if (valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) && set_owner(fd, st, valid))
		return -1;
	if (valid & FUSE_SET_ATTR_SIZE &&
	    (fi ? ftruncate(fi->fh, st->st_size) : truncate(path.text, st->st_size)))
		return -1;
	if (valid & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME) && set_times(fd, st, valid))
		return -1;
	return 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t nodeid, struct stat *st, int valid,
		       struct fuse_file_info *fi)
{
	if (set(inode_fd(nodeid), st, valid, fi))
		fuse_reply_err(req, errno);
	else
		op_getattr(req, nodeid, fi);
}

static void op_statfs(fuse_req_t req, fuse_ino_t nodeid)
{
	struct statvfs st;

	if (fstatvfs(inode_fd(nodeid), &st))
		fuse_reply_err(req, errno);
	else
		fuse_reply_statfs(req, &st);
}

void attributes_operations(struct fuse_lowlevel_ops *ops)
{
	ops->getattr = op_getattr;
	ops->setattr = op_setattr;
	ops->statfs = op_statfs;
}
