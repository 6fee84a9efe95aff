// SPDX-License-Identifier: GPL-2.0
/*
 * Lookup counts. The daemon counts every LOOKUP of an inode that it answers, and the kernel has to
 * return the same number in FORGETs. The kernel's count is fi->nlookup. The daemon does not count a
 * LOOKUP that the kernel answers, but its caller in FUSE does: it adds one to fi->nlookup, or
 * returns one in a FORGET.
 *
 * So the answer takes one count from the inode in memory and passes it to the caller, which adds it
 * to the inode again. The sum stays the same. Until then, the caller's count keeps the daemon from
 * forgetting the inode, even if the inode is evicted in between. If the inode has no count to give,
 * the request goes to the daemon.
 *
 * If the file system declares `stable_nodeids`, the inode need not be in memory or have a count to
 * give. The answer is then marked with EFUSE_ATTR_UNCOUNTED, and the caller does not count it.
 *
 * Lock order: inode->i_lock, then fi->lock, which protects fi->nlookup.
 */
#include "cache_i.h"

static int efuse_inode_eq(struct inode *inode, void *nodeid)
{
	return get_node_id(inode) == *(u64 *)nodeid;
}

/* The inode of a nodeid, or NULL. Under rcu_read_lock(), and valid until its end. */
struct inode *efuse_inode_rcu(struct fuse_mount *fm, u64 nodeid)
{
	return find_inode_rcu(fm->sb, nodeid, efuse_inode_eq, &nodeid);
}

/* The inode of a nodeid, with a reference to it, or NULL. */
struct inode *efuse_inode_grab(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode)
		inode = igrab(inode);
	rcu_read_unlock();
	return inode;
}

/**
 * efuse_take_lookup - take a lookup count from an inode, for the caller of a LOOKUP
 * @fm: mount
 * @nodeid: nodeid of the inode
 * @generation: generation that the inode must have
 * @mode: mode with the file type that the inode must have
 * @epoch: epoch since which the nodeid must have stood for the same inode
 *
 * Context: under rcu_read_lock().
 * Return: enum efuse_taken.
 */
enum efuse_taken efuse_take_lookup(struct fuse_mount *fm, u64 nodeid, u64 generation, u32 mode,
				   u64 epoch)
{
	u16 identity = efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY);
	struct inode *inode = efuse_inode_rcu(fm, nodeid);
	enum efuse_taken taken = EFUSE_TAKEN_UNFIT;
	struct fuse_inode *fi;

	if (!inode)
		return EFUSE_TAKEN_ABSENT;
	fi = get_fuse_inode(inode);
	/* Eviction sets I_FREEING under i_lock before it reads the count. */
	spin_lock(&inode->i_lock);
	if (!(efuse_inode_state(inode) & (I_NEW | I_CREATING | I_FREEING | I_WILL_FREE)) &&
	    get_node_id(inode) == nodeid && inode->i_generation == (u32)generation &&
	    !inode_wrong_type(inode, mode) && !fuse_is_bad(inode) &&
	    efuse_epoch_valid(efuse_conn_get(fm->fc), identity, epoch)) {
		spin_lock(&fi->lock);
		if (fi->nlookup) {
			fi->nlookup--;
			taken = EFUSE_TAKEN;
		} else {
			taken = EFUSE_TAKEN_NONE;
		}
		spin_unlock(&fi->lock);
	}
	spin_unlock(&inode->i_lock);
	return taken;
}

/* Is the inode of a nodeid in memory? */
bool efuse_inode_present(struct fuse_mount *fm, u64 nodeid)
{
	bool present;

	rcu_read_lock();
	present = efuse_inode_rcu(fm, nodeid);
	rcu_read_unlock();
	return present;
}

/* Does the answer of a LOOKUP stand for a lookup count? Called by fs/fuse. */
bool efuse_lookup_counts(const struct fuse_attr *attr)
{
	return !(attr->flags & EFUSE_ATTR_UNCOUNTED);
}

/**
 * efuse_return_lookup - return a lookup count that the caller of a LOOKUP cannot use
 * @fm: mount
 * @forget: memory for a FORGET; consumed
 * @outarg: the answer of the LOOKUP
 *
 * The count goes to the inode if that is in memory, since efuse_take_lookup() may have taken it
 * from there. Otherwise it goes to the daemon in a FORGET.
 *
 * Context: process context, may sleep.
 */
void efuse_return_lookup(struct fuse_mount *fm, struct fuse_forget_link *forget,
			 struct fuse_entry_out *outarg)
{
	u64 nodeid = outarg->nodeid;
	struct fuse_inode *fi;
	struct inode *inode;

	if (!efuse_lookup_counts(&outarg->attr)) {
		kfree(forget);
		return;
	}
	inode = ilookup5(fm->sb, nodeid, efuse_inode_eq, &nodeid);
	if (!inode) {
		efuse_forget(fm->fc, forget, nodeid);
		return;
	}
	fi = get_fuse_inode(inode);
	spin_lock(&fi->lock);
	fi->nlookup++;
	spin_unlock(&fi->lock);
	iput(inode);
	kfree(forget);
}

/*
 * The identity of a nodeid. A nodeid stands for an inode from the reply that introduces it until
 * the daemon reads the last FORGET of it. Before that, the daemon cannot reuse the nodeid for
 * another inode. So a FORGET is a change (EFUSE_KIND_IDENTITY) that is in flight from when it is
 * queued until the daemon reads it.
 */

/**
 * efuse_inode_alive - does the kernel hold the inode of a nodeid?
 * @ec: connection
 * @nodeid: the nodeid
 *
 * Context: process context, with the connection's killsb held.
 * Return: whether some mount of the connection has the inode in memory and is not evicting it.
 */
bool efuse_inode_alive(struct efuse_conn *ec, u64 nodeid)
{
	struct fuse_mount *fm;
	struct inode *inode;
	bool alive = false;

	lockdep_assert_held(&ec->fc->killsb);
	rcu_read_lock();
	list_for_each_entry(fm, &ec->fc->mounts, fc_entry) {
		inode = fm->sb ? efuse_inode_rcu(fm, nodeid) : NULL;
		alive |= inode && !fuse_is_bad(inode) &&
			 !(efuse_inode_state(inode) & (I_FREEING | I_WILL_FREE));
	}
	rcu_read_unlock();
	return alive;
}

/* A number that differs after any FORGET of the nodeid was queued or read. */
u64 efuse_identity_mark(const struct efuse_conn *ec, u64 nodeid)
{
	return efuse_epoch_word(ec, efuse_bucket_identity(nodeid));
}
