// SPDX-License-Identifier: GPL-2.0
/*
 * Access control lists (ACLs).
 *
 * The VFS caches an inode's ACLs separately from its mode, and decides by both: if there is an ACL,
 * the group bits of the mode are the ACL's mask, not the rights of the group. So an old ACL with a
 * new mode, or a new ACL with an old mode, may grant rights that the file system never granted.
 * FUSE has no timeout for ACLs. It drops them with most replies that have attributes, but not with
 * all.
 *
 * eFuse drops them with every reply that has attributes. When an ACL has to be requested for a
 * permission check, the attributes are requested first, unless they have just been received or the
 * mode is exclusive. In strict mode no ACL is cached.
 */
#include "cache_i.h"

#include <linux/cred.h>
#include <linux/posix_acl.h>
#include <linux/xattr.h>

/* Attributes of at most this age, in jiffies, have just been received. */
#define EFUSE_ACL_JIFFIES	1

/*
 * The time of the last attributes, in jiffies, is stored in i_private, which FUSE does not use. A
 * member of struct fuse_inode would be one more type that pahole has to tell from the kernel's own.
 */
static unsigned long efuse_attrs_time(const struct inode *inode)
{
	return (unsigned long)READ_ONCE(inode->i_private);
}

/* FUSE forbids the VFS to cache ACLs of inodes older than INIT's reply: the root. Allow it. */
static void efuse_acls_keep(struct inode *inode)
{
	if (READ_ONCE(inode->i_acl) == ACL_DONT_CACHE)
		cmpxchg(&inode->i_acl, ACL_DONT_CACHE, ACL_NOT_CACHED);
	if (READ_ONCE(inode->i_default_acl) == ACL_DONT_CACHE)
		cmpxchg(&inode->i_default_acl, ACL_DONT_CACHE, ACL_NOT_CACHED);
}

/**
 * efuse_acls_outdated - an inode has received attributes, which may be newer than its ACLs
 * @inode: the inode
 *
 * Context: under the lock of struct fuse_inode.
 */
void efuse_acls_outdated(struct inode *inode)
{
	struct fuse_conn *fc = get_fuse_conn(inode);

	if (!fc->posix_acl)
		return;
	efuse_acls_keep(inode);
	forget_all_cached_acls(inode);
	WRITE_ONCE(inode->i_private, (void *)jiffies);
}

static bool efuse_mode_is(struct fuse_conn *fc, enum efuse_consistency mode)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	return ec && READ_ONCE(ec->consistency) == mode;
}

/**
 * efuse_permission - the kernel is about to check permissions by mode and ACL
 * @idmap: idmap of the mount
 * @inode: inode to check
 *
 * If the check needs an ACL that is not cached, makes attributes that are older than that ACL will
 * be void, also in maps.
 *
 * Context: may be an RCU path walk.
 */
void efuse_permission(struct mnt_idmap *idmap, struct inode *inode)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	struct efuse_conn *ec = efuse_conn_get(fc);

	/* Like the VFS, which ignores the ACL for the owner, and if the group bits are 0. */
	if (!ec || !fc->posix_acl || !is_uncached_acl(READ_ONCE(inode->i_acl)) ||
	    !(inode->i_mode & 0070) || efuse_mode_is(fc, EFUSE_EXCLUSIVE) ||
	    vfsuid_eq_kuid(i_uid_into_vfsuid(idmap, inode), current_fsuid()) ||
	    !time_after(jiffies, efuse_attrs_time(inode) + EFUSE_ACL_JIFFIES))
		return;
	efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
	fuse_invalidate_attr_mask(inode, STATX_MODE);
}

/**
 * efuse_acl_asked - an ACL is about to be requested
 * @inode: inode of the ACL
 * @type: type of the ACL
 *
 * The VFS does not cache the answer if the ACL is forgotten after the request has begun.
 */
void efuse_acl_asked(struct inode *inode, int type)
{
	struct fuse_conn *fc = get_fuse_conn(inode);

	if (!fc->posix_acl || efuse_mode_is(fc, EFUSE_STRICT))
		forget_cached_acl(inode, type);
}

/**
 * efuse_acls_end - drop an inode's cached ACLs
 * @inode: the inode
 */
void efuse_acls_end(struct inode *inode)
{
	if (get_fuse_conn(inode)->posix_acl)
		forget_all_cached_acls(inode);
}

/**
 * efuse_acl_is_the_vfs - does a request ask for an ACL that the VFS may cache, but maps may not?
 * @req: the request
 *
 * An ACL in a map would be older than the attributes that are requested with it. That does not
 * matter in exclusive mode, where this mount is the only writer.
 */
bool efuse_acl_is_the_vfs(const struct efuse_req *req)
{
	const char *name;
	u32 len;

	if (req->args->opcode != FUSE_GETXATTR || !req->fm->fc->posix_acl ||
	    READ_ONCE(req->ec->consistency) == EFUSE_EXCLUSIVE)
		return false;
	name = efuse_req_name_at(req->args, 0, &len);
	return name && (!strcmp(name, XATTR_NAME_POSIX_ACL_ACCESS) ||
			!strcmp(name, XATTR_NAME_POSIX_ACL_DEFAULT));
}
