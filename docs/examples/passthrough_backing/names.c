// SPDX-License-Identifier: LGPL-2.1-or-later
/* Operations on names. */
#include "passthrough.h"

#include <limits.h>
#include <sys/syscall.h>

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	int err = inode_find(parent, name, &entry);

	if (err)
		fuse_reply_err(req, err);
	else if (fuse_reply_entry(req, &entry) == -ENOENT)
		inode_forget(entry.ino, 1);	/* the system call was interrupted */
}

static void op_forget(fuse_req_t req, fuse_ino_t nodeid, uint64_t lookups)
{
	inode_forget(nodeid, lookups);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		inode_forget(forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void op_readlink(fuse_req_t req, fuse_ino_t nodeid)
{
	char target[PATH_MAX + 1];
	ssize_t length = readlinkat(inode_fd(nodeid), "", target, PATH_MAX);

	if (length < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	target[length] = '\0';
	fuse_reply_readlink(req, target);
}

/*
 * Gives a new file to the user that made it: the daemon does everything as root, since the
 * kernel checks permissions (default_permissions). A file in a set-group-id directory
 * keeps the group of the directory.
 */
void names_give(const struct fuse_ctx *ctx, int parent, const char *name)
{
	struct stat st;
	gid_t gid = fstat(parent, &st) || st.st_mode & S_ISGID ? (gid_t)-1 : ctx->gid;

	if (fchownat(parent, name, ctx->uid, gid, AT_SYMLINK_NOFOLLOW))
		fuse_log(FUSE_LOG_WARNING, "%s: cannot change the owner: %m\n", name);
}

/* Answers a request that has made @name, or has failed to. */
static void made(fuse_req_t req, fuse_ino_t parent, const char *name, bool failed)
{
	if (failed) {
		fuse_reply_err(req, errno);
		return;
	}
	names_give(fuse_req_ctx(req), inode_fd(parent), name);
	op_lookup(req, parent, name);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	made(req, parent, name, mknodat(inode_fd(parent), name, mode, rdev));
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	made(req, parent, name, mkdirat(inode_fd(parent), name, mode));
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	made(req, parent, name, symlinkat(target, inode_fd(parent), name));
}

static void op_link(fuse_req_t req, fuse_ino_t nodeid, fuse_ino_t parent, const char *name)
{
	if (linkat(AT_FDCWD, fd_path(inode_fd(nodeid)).text, inode_fd(parent), name,
		   AT_SYMLINK_FOLLOW))
		fuse_reply_err(req, errno);
	else
		op_lookup(req, parent, name);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(inode_fd(parent), name, 0));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(inode_fd(parent), name, AT_REMOVEDIR));
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
		      const char *new_name, unsigned int flags)
{
	reply(req, syscall(SYS_renameat2, inode_fd(parent), name, inode_fd(new_parent), new_name,
			   flags));
}

void names_operations(struct fuse_lowlevel_ops *ops)
{
	ops->lookup = op_lookup;
	ops->forget = op_forget;
	ops->forget_multi = op_forget_multi;
	ops->readlink = op_readlink;
	ops->mknod = op_mknod;
	ops->mkdir = op_mkdir;
	ops->symlink = op_symlink;
	ops->link = op_link;
	ops->unlink = op_unlink;
	ops->rmdir = op_rmdir;
	ops->rename = op_rename;
}
