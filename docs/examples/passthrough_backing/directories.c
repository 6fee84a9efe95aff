// SPDX-License-Identifier: LGPL-2.1-or-later
/* Operations on open directories; fi->fh is a DIR *. */
#include "passthrough.h"

#include <dirent.h>
#include <stdlib.h>

static DIR *stream_of(const struct fuse_file_info *fi)
{
	return (DIR *)(uintptr_t)fi->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	int fd = openat(inode_fd(nodeid), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream) {
		fuse_reply_err(req, errno);
		if (fd >= 0)
			close(fd);
		return;
	}
	fi->fh = (uintptr_t)stream;
	if (fuse_reply_open(req, fi) == -ENOENT)
		closedir(stream);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	(void)nodeid;
	closedir(stream_of(fi));
	fuse_reply_err(req, 0);
}

static bool is_dot(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/*
 * Adds an entry to a listing. With @plus the entry counts as a lookup, except for "." and
 * "..", which have nodeid 0.
 *
 * Returns the size of the entry. If that is more than @room, the entry was not added. The
 * size is 0 if the name has disappeared meanwhile.
 */
static size_t add(fuse_req_t req, fuse_ino_t parent, char *buffer, size_t room,
		  const struct dirent *from, bool plus)
{
	struct fuse_entry_param entry = {
		.attr.st_ino = from->d_ino,
		.attr.st_mode = (mode_t)from->d_type << 12,
	};
	size_t size;

	if (!plus)
		return fuse_add_direntry(req, buffer, room, from->d_name, &entry.attr,
					 from->d_off);
	if (!is_dot(from->d_name) && inode_find(parent, from->d_name, &entry))
		return 0;
	size = fuse_add_direntry_plus(req, buffer, room, from->d_name, &entry, from->d_off);
	if (size > room && entry.ino)
		inode_forget(entry.ino, 1);
	return size;
}

static void list(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		 struct fuse_file_info *fi, bool plus)
{
	DIR *stream = stream_of(fi);
	char *buffer = malloc(size);
	size_t used = 0, one;
	struct dirent *from;

	if (!buffer) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	/* The kernel sends one request at a time for an open directory, so no lock is needed. */
	seekdir(stream, offset);
	for (;;) {
		errno = 0;
		from = readdir(stream);
		if (!from)
			break;
		one = add(req, nodeid, buffer + used, size - used, from, plus);
		if (one > size - used)
			break;
		used += one;
	}
	if (!from && errno && !used)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, buffer, used);
	free(buffer);
}

static void op_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		       struct fuse_file_info *fi)
{
	list(req, nodeid, size, offset, fi, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
			   struct fuse_file_info *fi)
{
	list(req, nodeid, size, offset, fi, true);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t nodeid, int datasync, struct fuse_file_info *fi)
{
	int fd = dirfd(stream_of(fi));

	(void)nodeid;
	reply(req, datasync ? fdatasync(fd) : fsync(fd));
}

void directories_operations(struct fuse_lowlevel_ops *ops)
{
	ops->opendir = op_opendir;
	ops->releasedir = op_releasedir;
	ops->readdir = op_readdir;
	ops->readdirplus = op_readdirplus;
	ops->fsyncdir = op_fsyncdir;
}
