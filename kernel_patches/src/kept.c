// SPDX-License-Identifier: GPL-2.0
/*
 * What FUSE keeps: dentries, attributes, listings, pages. In exclusive mode they live as
 * long as what they tell is true. So the word that FUSE keeps for a time-out holds no
 * time but a bucket and an epoch (see epochs.c), and is checked whenever it is used:
 * there is no moment between a check and a use in which a change could be lost.
 *
 * Pages and listings are checked when a file is opened or read, against an epoch that
 * the inode carries.
 */
#include "efuse_i.h"

#include <linux/dcache.h>
#include <linux/iversion.h>
#include <linux/pagemap.h>

#define EFUSE_TIME_EPOCH	(BIT_ULL(EFUSE_EPOCH_BITS) - 1)
/* Nanoseconds of a time-out whose seconds are a raised one; no daemon gains by them. */
#define EFUSE_NSEC_RAISED	U32_MAX

/**
 * efuse_raise_time - a time-out that lives as long as what it is of
 * @bucket: of what it is of
 * @epoch: in which that was so
 * @secs: half of the time-out
 * @nsecs: the other half
 */
void efuse_raise_time(u16 bucket, u64 epoch, u64 *secs, u32 *nsecs)
{
	*secs = EFUSE_TIME_RAISED | (u64)bucket << EFUSE_EPOCH_BITS |
		(epoch & EFUSE_TIME_EPOCH);
	*nsecs = EFUSE_NSEC_RAISED;
}

/**
 * efuse_time - what FUSE remembers of a time-out
 * @secs: of the reply
 * @nsecs: likewise
 * @plain: the jiffies that it would remember
 */
u64 efuse_time(u64 secs, u32 nsecs, u64 plain)
{
	if (nsecs == EFUSE_NSEC_RAISED && efuse_time_raised(secs))
		return secs & (EFUSE_TIME_RAISED | (EFUSE_TIME_RAISED - 1));
	return min(plain, EFUSE_TIME_RAISED - 1);
}

/* Does a program set stand for it that all changes are seen here? */
static bool efuse_raises(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && rcu_access_pointer(ec->ops);
}

/* Has a time-out ended that FUSE remembers? */
bool efuse_time_ended(const struct efuse_conn *ec, u64 time)
{
	if (!efuse_time_raised(time))
		return time_before64(time, get_jiffies_64()) ||
		       (ec && READ_ONCE(ec->consistency) == EFUSE_STRICT);
	return !ec || !efuse_raises(ec) ||
	       !efuse_epoch_valid(ec, (u16)(time >> EFUSE_EPOCH_BITS),
				  time & EFUSE_TIME_EPOCH);
}

/* At each use of a dentry. It hangs on its directory's rights, too. */
bool efuse_dentry_ended(const struct dentry *entry, u64 time)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn_super(entry->d_sb));
	struct inode *dir;
	bool ended;

	if (efuse_time_ended(ec, time))
		return true;
	if (!efuse_time_raised(time))
		return false;
	rcu_read_lock();
	dir = d_inode_rcu(READ_ONCE(entry->d_parent));
	ended = !dir || !efuse_epoch_quiet(ec, efuse_bucket_inode(get_node_id(dir),
								  EFUSE_KIND_RIGHTS),
					   time & EFUSE_TIME_EPOCH);
	rcu_read_unlock();
	return ended;
}

/* At each use of attributes. */
bool efuse_attr_ended(struct inode *inode)
{
	return efuse_time_ended(efuse_conn_get(get_fuse_conn(inode)),
				READ_ONCE(get_fuse_inode(inode)->i_time));
}

/* A new inode has no pages. */
void efuse_inode_init(struct super_block *sb, struct fuse_inode *fi)
{
	struct fuse_mount *fm = get_fuse_mount_super(sb);
	const struct efuse_conn *ec = fm ? efuse_conn_get(fm->fc) : NULL;

	fi->efuse_epoch = ec ? efuse_epoch_now(ec) : 0;
	fi->efuse_passed = (struct efuse_passed) {};
	xa_init_flags(&fi->efuse_passed.dropped, XA_FLAGS_ACCOUNT);
}

/**
 * efuse_listing - end the listing that FUSE keeps of a directory, if it is not true any more
 * @inode: the directory
 * @pos: where the caller reads it
 *
 * A caller who has begun goes on with what it has begun with.
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

bool efuse_pages_true(const struct efuse_conn *ec, struct inode *inode)
{
	return efuse_epoch_valid(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES),
				 READ_ONCE(get_fuse_inode(inode)->efuse_epoch));
}

/*
 * A file of several names may have a nodeid for each of them, where the daemon goes by
 * paths: what changes by one of them is not seen at the others. One that has a nodeid for
 * each file says so (`nodeid_per_file`).
 */
bool efuse_shared(const struct efuse_conn *ec, const struct fuse_attr *attr)
{
	return attr->nlink > 1 && !S_ISDIR(attr->mode) && !READ_ONCE(ec->nodeid_per_file);
}

static bool efuse_shared_inode(const struct efuse_conn *ec, const struct inode *inode)
{
	return !S_ISDIR(inode->i_mode) && !READ_ONCE(ec->nodeid_per_file) &&
	       (inode->i_nlink > 1 ||
		READ_ONCE(get_fuse_inode((struct inode *)inode)->inval_mask) & STATX_NLINK);
}

/* The same of an inode by its nodeid. */
bool efuse_shared_nodeid(struct fuse_mount *fm, u64 nodeid)
{
	const struct efuse_conn *ec = efuse_conn_get(fm->fc);
	struct inode *inode;
	bool shared;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	shared = inode && efuse_shared_inode(ec, inode);
	rcu_read_unlock();
	return shared;
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
 * efuse_refresh_nodeid - drop the pages that FUSE keeps of a file, if they are not true any more
 * @fm: mount
 * @nodeid: of the file, or of a directory
 *
 * Context: process context, may sleep.
 * Return: whether what is kept then is true until a change is seen here.
 */
bool efuse_refresh_nodeid(struct fuse_mount *fm, u64 nodeid)
{
	const struct efuse_conn *ec = efuse_conn_get(fm->fc);
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode)
		inode = igrab(inode);
	rcu_read_unlock();
	if (!inode)
		return false;
	if (!S_ISDIR(inode->i_mode))
		efuse_refresh_pages(inode);
	iput(inode);
	return efuse_kept(ec, fm, nodeid);
}

/**
 * efuse_linked - FUSE does not know any more how many names a file has
 * @fm: mount
 * @nodeid: of the file
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
		/* Replies on their way may not know it yet. */
		fi->attr_version = atomic64_inc_return(&fm->fc->attr_version);
		spin_unlock(&fi->lock);
		fuse_invalidate_attr_mask(inode, STATX_NLINK);
	}
	rcu_read_unlock();
}

/**
 * efuse_lower_attrs - let FUSE ask for an inode's attributes anew
 * @fm: mount
 * @nodeid: of the inode
 */
void efuse_lower_attrs(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode) {
		fuse_invalidate_attr(inode);
		efuse_acls_end(inode);
	}
	rcu_read_unlock();
}

/* The names in a directory; negative ones are found in no other way. */
static void efuse_lower_names(struct inode *dir)
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
		/* It takes the child's lock; the child stays where it is, or begins anew. */
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

static void efuse_lower_inode(struct fuse_conn *fc, struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	spin_lock(&fi->lock);
	fi->i_time = 0;
	/* Replies on their way are void, too. */
	fi->attr_version = atomic64_inc_return(&fc->attr_version);
	spin_unlock(&fi->lock);
	fuse_invalidate_attr(inode);
	efuse_acls_end(inode);
	/* Waits for nobody: the daemon itself may be what writes to sysfs. */
	invalidate_mapping_pages(inode->i_mapping, 0, -1);
	if (S_ISDIR(inode->i_mode))
		efuse_lower_names(inode);
}

static void efuse_lower_sb(struct fuse_conn *fc, struct super_block *sb)
{
	struct inode *inode, *last = NULL;

	spin_lock(&sb->s_inode_list_lock);
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list) {
		if (!igrab(inode))
			continue;
		/* Held until the next is found, so that it stays in the list. */
		spin_unlock(&sb->s_inode_list_lock);
		iput(last);
		last = inode;
		efuse_lower_inode(fc, inode);
		cond_resched();
		spin_lock(&sb->s_inode_list_lock);
	}
	spin_unlock(&sb->s_inode_list_lock);
	iput(last);
}

/**
 * efuse_lower - end all time-outs of FUSE's own caches
 * @fc: connection
 *
 * Context: process context, may sleep.
 */
void efuse_lower(struct fuse_conn *fc)
{
	struct fuse_mount *fm;

	down_read(&fc->killsb);
	list_for_each_entry(fm, &fc->mounts, fc_entry)
		if (fm->sb)
			efuse_lower_sb(fc, fm->sb);
	up_read(&fc->killsb);
}
