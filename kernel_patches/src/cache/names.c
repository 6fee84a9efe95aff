// SPDX-License-Identifier: GPL-2.0
/*
 * May changes of a file come by another nodeid? A daemon that works with paths may have a nodeid
 * for each name of a file, and a change by one nodeid is not seen at the others. So in exclusive
 * mode what is known of such a file lives only as long as the daemon says. A daemon that has one
 * nodeid for each file declares `nodeid_per_file`.
 *
 * A file is known to have one name from attributes that nothing has crossed. A daemon that does not
 * count names, such as one for archives, may report none for a file that has several: that tells
 * nothing. While a file may have several names, its values are learned all the same, and end when
 * their timeouts do. Without these timeouts they would come to life again when one name is left. So
 * all of them end then.
 */
#include "cache_i.h"

/* Everything that LINK ends, too. */
static void efuse_names_end(struct efuse_conn *ec, u64 nodeid)
{
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_XATTR));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_RIGHTS));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}

/* Do values outlive their timeouts? Then they end with the other names of their file. */
static bool efuse_names_matter(const struct efuse_conn *ec)
{
	return ec && READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE &&
	       !READ_ONCE(ec->nodeid_per_file);
}

/**
 * efuse_names_told - an inode has received attributes of the daemon
 * @inode: the inode, whose struct fuse_inode is locked
 * @attr: the attributes, with the mark of efuse_size_mark() if nothing has crossed them
 *
 * The first attributes of an inode come before anything is learned under it. Unmarked ones may be
 * older than another name of the file, so they do not tell that there is none. A directory has one
 * name, whatever its link count.
 */
void efuse_names_told(struct inode *inode, const struct fuse_attr *attr)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);

	if (S_ISDIR(attr->mode))
		return;
	if (attr->nlink == 1 && attr->flags & EFUSE_ATTR_MARKED) {
		if (fi->efuse_names == EFUSE_NAMES_SEVERAL && efuse_names_matter(ec))
			efuse_names_end(ec, fi->nodeid);
		/* A reader that sees one name sees that the values have ended. */
		smp_store_release(&fi->efuse_names, EFUSE_NAMES_ONE);
	} else if (attr->nlink > 1 || fi->efuse_names == EFUSE_NAMES_NEW) {
		WRITE_ONCE(fi->efuse_names, EFUSE_NAMES_SEVERAL);
	}
}

/**
 * efuse_names_evicted - an inode is being evicted
 * @inode: the inode
 *
 * With `stable_nodeids` what was learned of the inode is used again for the next one.
 */
void efuse_names_evicted(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	const struct fuse_inode *fi = get_fuse_inode(inode);

	if (fi->efuse_names == EFUSE_NAMES_SEVERAL && !S_ISDIR(inode->i_mode) &&
	    efuse_names_matter(ec) && READ_ONCE(ec->stable_nodeids))
		efuse_names_end(ec, fi->nodeid);
}

/**
 * efuse_linked - a file may have got another name, and FUSE's link count is invalid
 * @fm: mount
 * @nodeid: nodeid of the file
 */
void efuse_linked(struct fuse_mount *fm, u64 nodeid)
{
	struct fuse_inode *fi;
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode) {
		fi = get_fuse_inode(inode);
		spin_lock(&fi->lock);
		/* Replies that are on their way may have the old link count. */
		fi->attr_version = atomic64_inc_return(&fm->fc->attr_version);
		WRITE_ONCE(fi->efuse_names, EFUSE_NAMES_SEVERAL);
		spin_unlock(&fi->lock);
		fuse_invalidate_attr_mask(inode, STATX_NLINK);
	}
	rcu_read_unlock();
}

/**
 * efuse_shared - may changes of the file with these attributes come by another nodeid?
 * @ec: connection
 * @attr: the attributes, still true
 */
bool efuse_shared(const struct efuse_conn *ec, const struct fuse_attr *attr)
{
	return attr->nlink != 1 && !S_ISDIR(attr->mode) && !READ_ONCE(ec->nodeid_per_file);
}

/**
 * efuse_changes_known - does each change of the file with these attributes come to notice?
 * @ec: connection
 * @attr: the attributes, still true
 */
bool efuse_changes_known(const struct efuse_conn *ec, const struct fuse_attr *attr)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && !efuse_shared(ec, attr);
}

/**
 * efuse_shared_inode - may changes of an inode come by another nodeid?
 * @ec: connection
 * @inode: the inode
 *
 * To be asked before the epochs of a value are compared: if not, the value may have been learned
 * when they could, but then its epoch has ended.
 */
bool efuse_shared_inode(const struct efuse_conn *ec, const struct inode *inode)
{
	const struct fuse_inode *fi = get_fuse_inode((struct inode *)inode);

	return !S_ISDIR(inode->i_mode) && !READ_ONCE(ec->nodeid_per_file) &&
	       /* Acquire: pairs with efuse_names_told(). */
	       (smp_load_acquire(&fi->efuse_names) != EFUSE_NAMES_ONE ||
		READ_ONCE(fi->inval_mask) & STATX_NLINK);
}

/* efuse_changes_known() of an inode: see efuse_shared_inode(). */
bool efuse_changes_known_inode(const struct efuse_conn *ec, const struct inode *inode)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && !efuse_shared_inode(ec, inode);
}

/* efuse_changes_known() of a nodeid. If it is not in memory, only the mode decides. */
bool efuse_changes_known_nodeid(const struct efuse_req *req, u64 nodeid)
{
	const struct inode *inode;
	bool shared;

	if (READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE)
		return false;
	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, nodeid);
	shared = inode && efuse_shared_inode(req->ec, inode);
	rcu_read_unlock();
	return !shared;
}
