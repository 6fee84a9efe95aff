// SPDX-License-Identifier: GPL-2.0
/*
 * FUSE's own caches: dentries, attributes, listings, pages. In exclusive mode their contents live
 * as long as they are true. So the word in which FUSE stores a timeout does not hold a time, but a
 * bucket and an epoch (see epochs.c). Such an extended timeout is checked whenever it is used, so
 * no change can be lost between a check and a later use.
 *
 * Pages and listings are checked when a file is opened or read, against an epoch in the inode.
 */
#include "cache_i.h"

#include <linux/dcache.h>
#include <linux/iversion.h>
#include <linux/pagemap.h>

/**
 * efuse_time_extend - make an extended timeout for a reply
 * @bucket: bucket of the value that the timeout is for
 * @epoch: epoch of the value
 * @secs: set to the seconds of the reply's timeout
 * @nsecs: set to the nanoseconds of the reply's timeout
 */
void efuse_time_extend(u16 bucket, u64 epoch, u64 *secs, u32 *nsecs)
{
	*secs = EFUSE_TIME_EXTENDED | (u64)bucket << EFUSE_EPOCH_BITS |
		(epoch & EFUSE_TIME_EPOCH);
	*nsecs = EFUSE_NSEC_EXTENDED;
}

/**
 * efuse_time - convert a timeout of a reply to the word that FUSE stores
 * @secs: seconds of the reply's timeout
 * @nsecs: nanoseconds of the reply's timeout
 * @plain: time in jiffies that plain FUSE would store
 *
 * Return: an extended timeout, or @plain
 */
u64 efuse_time(u64 secs, u32 nsecs, u64 plain)
{
	if (efuse_reply_extended(secs, nsecs))
		return secs & (EFUSE_TIME_EXTENDED | (EFUSE_TIME_EXTENDED - 1));
	return min(plain, EFUSE_TIME_EXTENDED - 1);
}

/* Are extended timeouts valid? Only in exclusive mode, and while a program set is attached. */
static bool efuse_extends(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && rcu_access_pointer(ec->ops);
}

/* Has a timeout that FUSE stores ended? */
static bool efuse_time_ended(const struct efuse_conn *ec, u64 time)
{
	if (!efuse_time_extended(time))
		return time_before64(time, get_jiffies_64()) ||
		       (ec && READ_ONCE(ec->consistency) == EFUSE_STRICT);
	return !ec || !efuse_extends(ec) ||
	       !efuse_epoch_valid(ec, (u16)(time >> EFUSE_EPOCH_BITS),
				  time & EFUSE_TIME_EPOCH);
}

/*
 * Has the timeout of a dentry ended? Called at each use of a dentry. An extended one also depends
 * on the permissions of the directory.
 */
bool efuse_dentry_ended(const struct dentry *entry, u64 time)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn_super(entry->d_sb));
	struct inode *dir;
	bool ended;

	if (efuse_time_ended(ec, time))
		return true;
	if (!efuse_time_extended(time))
		return false;
	rcu_read_lock();
	dir = d_inode_rcu(READ_ONCE(entry->d_parent));
	ended = !dir || !efuse_epoch_quiet(ec, efuse_bucket_inode(get_node_id(dir),
								  EFUSE_KIND_RIGHTS),
					   time & EFUSE_TIME_EPOCH);
	rcu_read_unlock();
	return ended;
}

/* Has the timeout of an inode's attributes ended? Called at each use of the attributes. */
bool efuse_attr_ended(struct inode *inode)
{
	return efuse_time_ended(efuse_conn_get(get_fuse_conn(inode)),
				READ_ONCE(get_fuse_inode(inode)->i_time));
}

/* The time for which FUSE regards the inode's attributes as valid, in ns; 0 if it does not. */
u64 efuse_inode_valid_ns(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;
	u64 until, now = get_jiffies_64();

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	until = inode ? READ_ONCE(get_fuse_inode(inode)->i_time) : 0;
	rcu_read_unlock();
	if (efuse_time_extended(until))
		return efuse_time_ended(efuse_conn_get(fm->fc), until) ? 0 :
			EFUSE_EXTENDED_SECS * NSEC_PER_SEC;
	/* Limited, since the sum with a clock must not overflow. */
	return time_after64(until, now) ?
		jiffies64_to_nsecs(min_t(u64, until - now, EFUSE_EXTENDED_SECS * HZ)) : 0;
}

/* Initialize an inode, which has no pages: its pages are true since the current epoch. */
void efuse_inode_init(struct super_block *sb, struct fuse_inode *fi)
{
	struct fuse_mount *fm = get_fuse_mount_super(sb);
	const struct efuse_conn *ec = fm ? efuse_conn_get(fm->fc) : NULL;

	fi->efuse_epoch = ec ? efuse_epoch_now(ec) : 0;
	fi->efuse_pages = (struct efuse_pages) {};
	fi->efuse_size = (struct efuse_size) {};
	fi->efuse_version = (struct efuse_version) {};
	/* The LOOKUP that has brought the inode may have been learned before. */
	fi->efuse_learned = 1;
	xa_init_flags(&fi->efuse_pages.dropped, XA_FLAGS_ACCOUNT);
}

/**
 * efuse_listing - drop FUSE's cached listing of a directory, if it is void
 * @inode: inode of the directory
 * @pos: position that the caller reads from
 *
 * Only if @pos is 0: a caller that has begun to read a listing goes on with the same one.
 */
void efuse_listing(struct inode *inode, loff_t pos)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	u64 now;

	if (pos || !ec)
		return;
	now = efuse_epoch_now(ec);
	if (efuse_epoch_valid(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR),
			      READ_ONCE(fi->efuse_epoch)))
		return;
	WRITE_ONCE(fi->efuse_epoch, now);
	inode_inc_iversion(inode);
}

/* May FUSE keep its pages of a file, or its listing of a directory, over an OPEN? */
bool efuse_kept(const struct efuse_conn *ec, struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;
	bool kept;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	kept = inode && (S_ISDIR(inode->i_mode) || efuse_pages_true(ec, inode)) &&
	       (READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE || !efuse_shared_inode(ec, inode));
	rcu_read_unlock();
	return kept;
}

/**
 * efuse_refresh_nodeid - drop FUSE's pages of a file, if they are void
 * @fm: mount
 * @nodeid: nodeid of the file, or of a directory
 *
 * Context: process context, may sleep.
 * Return: whether FUSE may keep the file's pages, or the directory's listing, over an OPEN.
 */
bool efuse_refresh_nodeid(struct fuse_mount *fm, u64 nodeid)
{
	const struct efuse_conn *ec = efuse_conn_get(fm->fc);
	struct inode *inode = efuse_inode_grab(fm, nodeid);

	if (!inode)
		return false;
	if (!S_ISDIR(inode->i_mode))
		efuse_refresh_pages(inode);
	iput(inode);
	return efuse_kept(ec, fm, nodeid);
}

/**
 * efuse_timeouts_expire_attrs - make FUSE's attributes and ACLs of an inode invalid
 * @fm: mount
 * @nodeid: nodeid of the inode
 */
void efuse_timeouts_expire_attrs(struct fuse_mount *fm, u64 nodeid)
{
	struct fuse_inode *fi;
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode) {
		fi = get_fuse_inode(inode);
		spin_lock(&fi->lock);
		/* Replies that are on their way are void, too. */
		fi->attr_version = atomic64_inc_return(&fm->fc->attr_version);
		spin_unlock(&fi->lock);
		fuse_invalidate_attr(inode);
		efuse_acls_end(inode);
	}
	rcu_read_unlock();
}

/*
 * End the timeouts of all names in a directory. Negative dentries have no inode and can only be
 * found through their directory.
 */
static void efuse_expire_names(struct inode *dir)
{
	struct dentry *dentry = d_find_any_alias(dir);
	struct dentry *child, *prev;

	if (!dentry)
		return;
again:
	prev = NULL;
	spin_lock(&dentry->d_lock);
	hlist_for_each_entry(child, &dentry->d_children, d_sib) {
		spin_lock_nested(&child->d_lock, DENTRY_D_LOCK_NESTED);
		if (d_unhashed(child)) {
			spin_unlock(&child->d_lock);
			continue;
		}
		dget_dlock(child);
		spin_unlock(&child->d_lock);
		spin_unlock(&dentry->d_lock);
		dput(prev);
		/*
		 * This takes the child's lock, so d_lock was dropped. If the child has left the
		 * directory meanwhile, the walk starts again.
		 */
		fuse_invalidate_entry_cache(child);
		prev = child;
		spin_lock(&dentry->d_lock);
		if (child->d_parent != dentry || d_unhashed(child)) {
			spin_unlock(&dentry->d_lock);
			dput(prev);
			goto again;
		}
	}
	spin_unlock(&dentry->d_lock);
	dput(prev);
	dput(dentry);
}

static void efuse_expire_inode(struct fuse_conn *fc, struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	spin_lock(&fi->lock);
	fi->i_time = 0;
	WRITE_ONCE(fi->efuse_size.epoch, 0);
	/* Replies that are on their way are void, too. */
	fi->attr_version = atomic64_inc_return(&fc->attr_version);
	spin_unlock(&fi->lock);
	fuse_invalidate_attr(inode);
	efuse_acls_end(inode);
	/* Does not wait for the daemon, which may be the task that writes to sysfs. */
	invalidate_mapping_pages(inode->i_mapping, 0, -1);
	if (S_ISDIR(inode->i_mode))
		efuse_expire_names(inode);
}

static void efuse_expire_sb(struct fuse_conn *fc, struct super_block *sb)
{
	struct inode *inode, *last = NULL;

	spin_lock(&sb->s_inode_list_lock);
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list) {
		if (!igrab(inode))
			continue;
		/* The inode is held until the next one is found, so that it stays in the list. */
		spin_unlock(&sb->s_inode_list_lock);
		iput(last);
		last = inode;
		efuse_expire_inode(fc, inode);
		cond_resched();
		spin_lock(&sb->s_inode_list_lock);
	}
	spin_unlock(&sb->s_inode_list_lock);
	iput(last);
}

/**
 * efuse_timeouts_expire - end all timeouts of FUSE's own caches, and drop clean pages
 * @fc: connection
 *
 * Context: process context, may sleep; takes killsb.
 */
void efuse_timeouts_expire(struct fuse_conn *fc)
{
	struct fuse_mount *fm;

	down_read(&fc->killsb);
	list_for_each_entry(fm, &fc->mounts, fc_entry)
		if (fm->sb)
			efuse_expire_sb(fc, fm->sb);
	up_read(&fc->killsb);
}
