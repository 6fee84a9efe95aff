// SPDX-License-Identifier: LGPL-2.1-or-later
/* Operations on open files; fi->fh is a descriptor of the lower file. */
#include "passthrough.h"

/*
 * Returns the flags with which to open the lower file. O_APPEND is left out, because each
 * WRITE has an offset. O_DIRECT is left out: it is a request about the mount's page cache,
 * not about the lower file. A file that is opened for writing is also opened for reading:
 * the kernel's page cache and the mapping read it.
 */
static int lower_flags(int flags)
{
	int lower = flags & (O_TRUNC | O_SYNC | O_DSYNC | O_NOATIME);

	return lower | ((flags & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC;
}

static void opened(struct inode *inode, int fd, int flags, bool created,
		   struct fuse_file_info *fi)
{
	fi->fh = fd;
	fi->keep_cache = options.keep_cache;
	backing_map(inode, fd, flags, created);
}

static void op_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	int flags = lower_flags(fi->flags);
	int fd = open(fd_path(inode_fd(nodeid)).text, flags);

	if (fd < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	opened(inode_of(nodeid), fd, flags, false, fi);
	if (fuse_reply_open(req, fi) == -ENOENT)
		close(fd);	/* the system call was interrupted */
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	int flags = lower_flags(fi->flags) | O_CREAT | O_NOFOLLOW;
	struct fuse_entry_param entry;
	int fd, err;

	fd = openat(inode_fd(parent), name, flags | O_EXCL, mode);
	if (fd >= 0)
		names_give(fuse_req_ctx(req), inode_fd(parent), name);
	else if (errno == EEXIST && !(fi->flags & O_EXCL))
		fd = openat(inode_fd(parent), name, flags & ~O_CREAT);
	if (fd < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	err = inode_find(parent, name, &entry);
	if (err) {
		close(fd);
		fuse_reply_err(req, err);
		return;
	}
	/* Map before replying, since the first WRITE may follow the reply immediately. */
	opened(inode_of(entry.ino), fd, flags, true, fi);
	if (fuse_reply_create(req, &entry, fi) == -ENOENT) {
		/* The kernel did not get the nodeid, which another file may have later. */
		backing_unmap(inode_of(entry.ino));
		inode_forget(entry.ino, 1);
		close(fd);
	}
}

static void op_release(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	(void)nodeid;
	close(fi->fh);
	fuse_reply_err(req, 0);
}

static void op_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	struct fuse_bufvec data = FUSE_BUFVEC_INIT(size);

	(void)nodeid;
	data.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	data.buf[0].fd = fi->fh;
	data.buf[0].pos = offset;
	fuse_reply_data(req, &data, FUSE_BUF_SPLICE_MOVE);
}

static void op_write(fuse_req_t req, fuse_ino_t nodeid, struct fuse_bufvec *from, off_t offset,
		     struct fuse_file_info *fi)
{
	struct fuse_bufvec to = FUSE_BUFVEC_INIT(fuse_buf_size(from));
	ssize_t done;

	(void)nodeid;
	to.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	to.buf[0].fd = fi->fh;
	to.buf[0].pos = offset;
	done = fuse_buf_copy(&to, from, 0);
	if (done < 0)
		fuse_reply_err(req, -done);
	else
		fuse_reply_write(req, done);
}

static void op_fsync(fuse_req_t req, fuse_ino_t nodeid, int datasync, struct fuse_file_info *fi)
{
	(void)nodeid;
	reply(req, datasync ? fdatasync(fi->fh) : fsync(fi->fh));
}

static void op_fallocate(fuse_req_t req, fuse_ino_t nodeid, int mode, off_t offset, off_t length,
			 struct fuse_file_info *fi)
{
	(void)nodeid;
	reply(req, fallocate(fi->fh, mode, offset, length));
}

static void op_lseek(fuse_req_t req, fuse_ino_t nodeid, off_t offset, int whence,
		     struct fuse_file_info *fi)
{
	off_t found = lseek(fi->fh, offset, whence);

	(void)nodeid;
	if (found < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, found);
}

void files_operations(struct fuse_lowlevel_ops *ops)
{
	ops->open = op_open;
	ops->create = op_create;
	ops->release = op_release;
	ops->read = op_read;
	ops->write_buf = op_write;
	ops->fsync = op_fsync;
	ops->fallocate = op_fallocate;
	ops->lseek = op_lseek;
}
