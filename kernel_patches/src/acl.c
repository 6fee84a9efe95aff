// SPDX-License-Identifier: GPL-2.0
/*
 * Access control lists.
 *
 * The VFS keeps an inode's lists beside its mode, and decides by both: where there is a
 * list, the group's bits of the mode are its mask, and say nothing of the group. So an old
 * list with a new mode, or a new list with an old mode, may grant what the file system never
 * granted. FUSE gives lists no time of their own and forgets them with most of what brings
 * attributes, not all.
 *
 * Here lists end whenever attributes come. Lists that are asked for to check permissions are
 * asked for behind attributes that have come just before, unless this mount is the only
 * writer. In strict mode none is kept.
 */
#include "efuse_i.h"

#include <linux/cred.h>
#include <linux/posix_acl.h>
#include <linux/xattr.h>

/* Attributes that came no longer ago than this, in jiffies, have come just before. */
#define EFUSE_ACL_JIFFIES	1

/*
 * When attributes came, in jiffies, is in i_private, which FUSE has no use for. A member of
 * struct fuse_inode would be one more type that pahole has to tell from the kernel's own.
 */
static unsigned long efuse_attrs_time(const struct inode *inode)
{
	return (unsigned long)READ_ONCE(inode->i_private);
}

/* FUSE has the VFS keep no lists of an inode that is older than INIT: the root. */
static void efuse_acls_keep(struct inode *inode)
{
	if (READ_ONCE(inode->i_acl) == ACL_DONT_CACHE)
		cmpxchg(&inode->i_acl, ACL_DONT_CACHE, ACL_NOT_CACHED);
	if (READ_ONCE(inode->i_default_acl) == ACL_DONT_CACHE)
		cmpxchg(&inode->i_default_acl, ACL_DONT_CACHE, ACL_NOT_CACHED);
}

/**
 * efuse_attrs_came - an inode has got attributes of the daemon
 * @inode: it, under its fuse_inode's lock
 */
void efuse_attrs_came(struct inode *inode)
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
 * efuse_permission - before the kernel checks permissions by mode and list
 * @idmap: of the mount
 * @inode: whose
 *
 * Ends attributes that are older than the list will be that has to be asked for, those
 * in maps too.
 *
 * Context: may be an RCU path walk.
 */
void efuse_permission(struct mnt_idmap *idmap, struct inode *inode)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	struct efuse_conn *ec = efuse_conn_get(fc);

	/* As the VFS: it looks at no list for the owner, nor where the group has no bits. */
	if (!ec || !fc->posix_acl || !is_uncached_acl(READ_ONCE(inode->i_acl)) ||
	    !(inode->i_mode & 0070) || efuse_mode_is(fc, EFUSE_EXCLUSIVE) ||
	    vfsuid_eq_kuid(i_uid_into_vfsuid(idmap, inode), current_fsuid()) ||
	    !time_after(jiffies, efuse_attrs_time(inode) + EFUSE_ACL_JIFFIES))
		return;
	efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
	fuse_invalidate_attr_mask(inode, STATX_MODE);
}

/**
 * efuse_acl_asked - a list is about to be asked for
 * @inode: of which
 * @type: which list
 *
 * The VFS does not keep the answer if the list is forgotten meanwhile.
 */
void efuse_acl_asked(struct inode *inode, int type)
{
	struct fuse_conn *fc = get_fuse_conn(inode);

	if (!fc->posix_acl || efuse_mode_is(fc, EFUSE_STRICT))
		forget_cached_acl(inode, type);
}

/**
 * efuse_acls_end - what is known of an inode is void
 * @inode: it
 */
void efuse_acls_end(struct inode *inode)
{
	if (get_fuse_conn(inode)->posix_acl)
		forget_all_cached_acls(inode);
}

/**
 * efuse_acl_is_the_vfs - is a request for a list that the VFS keeps, and no map may?
 * @req: a GETXATTR
 *
 * A list in a map would be older than the attributes that are asked for with it. Where this
 * mount is the only writer, that does not matter.
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
