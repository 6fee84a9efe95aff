// SPDX-License-Identifier: LGPL-2.1-or-later
/* Operations on extended attributes. Users cannot set any on a symbolic link. */
#include "passthrough.h"

#include <stdlib.h>
#include <sys/xattr.h>

/* Replies with the value, or with its size if the kernel asked for the size (@size is 0). */
static void reply_value(fuse_req_t req, const char *value, size_t size, ssize_t length)
{
	if (length < 0)
		fuse_reply_err(req, errno);
	else if (!size)
		fuse_reply_xattr(req, length);
	else
		fuse_reply_buf(req, value, length);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, size_t size)
{
	char *value = malloc(size ? size : 1);

	if (!value) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	reply_value(req, value, size, getxattr(fd_path(inode_fd(nodeid)).text, name, value, size));
	free(value);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t nodeid, size_t size)
{
	char *names = malloc(size ? size : 1);

	if (!names) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	reply_value(req, names, size, listxattr(fd_path(inode_fd(nodeid)).text, names, size));
	free(names);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, const char *value,
			size_t size, int flags)
{
	reply(req, setxattr(fd_path(inode_fd(nodeid)).text, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t nodeid, const char *name)
{
	reply(req, removexattr(fd_path(inode_fd(nodeid)).text, name));
}

void xattrs_operations(struct fuse_lowlevel_ops *ops)
{
	ops->getxattr = op_getxattr;
	ops->listxattr = op_listxattr;
	ops->setxattr = op_setxattr;
	ops->removexattr = op_removexattr;
}
