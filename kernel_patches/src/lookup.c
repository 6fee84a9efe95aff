// SPDX-License-Identifier: GPL-2.0
/*
 * Lookup counts. The daemon counts a lookup for every LOOKUP it answers, and the
 * kernel owes it that many FORGETs; an inode's count is fi->nlookup. A LOOKUP
 * answered in the kernel was never counted by the daemon, but its caller will
 * count it: it adds one to fi->nlookup, or forgets one.
 *
 * So the answer takes a count out of the inode that is alive and gives it to the
 * caller, who puts it back. The sum is as it was, and until the caller has the
 * inode the count in its hands keeps the daemon from forgetting it, even if the
 * inode is evicted in between. An inode without a count to give is a miss.
 *
 * Where the file system declares its nodeids stable for ever, an inode need not
 * be alive, or have a count to give. EFUSE_ATTR_UNCOUNTED in such an answer tells
 * its caller not to count it.
 */
#include "efuse_i.h"

static int efuse_inode_eq(struct inode *inode, void *nodeid)
{
	return get_node_id(inode) == *(u64 *)nodeid;
}

/* The inode of a nodeid, valid until the end of the RCU section; may be NULL. */
struct inode *efuse_inode_rcu(struct fuse_mount *fm, u64 nodeid)
{
	return find_inode_rcu(fm->sb, nodeid, efuse_inode_eq, &nodeid);
}

/**
 * efuse_take_lookup - take a lookup count out of an inode for the caller
 * @fm: mount
 * @nodeid: of the inode
 * @generation: that it must have
 * @mode: whose type it must have
 * @epoch: since when the nodeid must have stood for it
 *
 * Context: RCU read section.
 * Return: what was found, see enum efuse_taken.
 */
enum efuse_taken efuse_take_lookup(struct fuse_mount *fm, u64 nodeid, u64 generation, u32 mode,
				   u64 epoch)
{
	u16 life = efuse_bucket_inode(nodeid, EFUSE_KIND_LIFE);
	struct inode *inode = efuse_inode_rcu(fm, nodeid);
	enum efuse_taken taken = EFUSE_TAKEN_UNFIT;
	struct fuse_inode *fi;

	if (!inode)
		return EFUSE_TAKEN_ABSENT;
	fi = get_fuse_inode(inode);
	/* i_lock: eviction, which reads the count, begins by setting I_FREEING under it. */
	spin_lock(&inode->i_lock);
	if (!(efuse_inode_state(inode) & (I_NEW | I_CREATING | I_FREEING | I_WILL_FREE)) &&
	    get_node_id(inode) == nodeid && inode->i_generation == (u32)generation &&
	    !inode_wrong_type(inode, mode) && !fuse_is_bad(inode) &&
	    efuse_epoch_valid(efuse_conn_get(fm->fc), life, epoch)) {
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

/* For how long FUSE itself holds the inode's attributes valid, in ns; 0 if not. */
u64 efuse_inode_valid_ns(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;
	u64 until, now = get_jiffies_64();

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	until = inode ? READ_ONCE(get_fuse_inode(inode)->i_time) : 0;
	rcu_read_unlock();
	if (efuse_time_raised(until))
		return efuse_time_ended(efuse_conn_get(fm->fc), until) ? 0 :
			EFUSE_RAISED_SECS * NSEC_PER_SEC;
	/* Time-outs of years are cut: the sum with a clock must not overflow. */
	return time_after64(until, now) ?
		jiffies64_to_nsecs(min_t(u64, until - now, EFUSE_RAISED_SECS * HZ)) : 0;
}

/* FUSE's own idea of a file's size, which is the daemon's but for what was written since. */
u64 efuse_inode_size(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;
	u64 size;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	size = inode ? i_size_read(inode) : 0;
	rcu_read_unlock();
	return size;
}

/* Does the answer of a LOOKUP stand for a lookup count? */
bool efuse_lookup_counts(const struct fuse_attr *attr)
{
	return !(attr->flags & EFUSE_ATTR_UNCOUNTED);
}

/**
 * efuse_return_lookup - give a count back that the caller of LOOKUP cannot use
 * @fm: mount
 * @forget: consumed
 * @outarg: the answer
 *
 * To the inode if it is alive, since that may be where it was taken from; to the
 * daemon otherwise.
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
 * The life of a nodeid. It names an inode from the reply that hands it out to the last FORGET
 * that the daemon reads: before that the daemon cannot give it to another inode. So a FORGET is a
 * change in flight from when it is queued until it is read.
 */

static u16 efuse_bucket_life(u64 nodeid)
{
	return efuse_bucket_inode(nodeid, EFUSE_KIND_LIFE);
}

/**
 * efuse_forgotten - a FORGET is about to be queued
 * @fc: connection
 * @forget: it
 * @nodeid: of the inode
 *
 * Context: process context, may sleep; perhaps to reclaim memory.
 */
void efuse_forgotten(struct fuse_conn *fc, struct fuse_forget_link *forget, u64 nodeid)
{
	struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec)
		return;
	forget->efuse_changes = !READ_ONCE(ec->stable_nodeids);
	if (forget->efuse_changes)
		efuse_epoch_enter(ec, efuse_bucket_life(nodeid));
	efuse_extents_forget(ec, nodeid);
}

/**
 * efuse_inode_alive - does the kernel hold the inode of a nodeid?
 * @ec: connection
 * @nodeid: which
 *
 * Context: process context, with the connection's killsb held.
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

/**
 * efuse_forget_read - the daemon is about to read a FORGET
 * @fiq: the queue that it was in
 * @forget: it
 *
 * What was mapped or published for the nodeid while the FORGET waited ends here. If the kernel
 * holds the inode again, it is the same inode: the daemon has not forgotten it yet.
 *
 * Context: process context, may sleep.
 */
void efuse_forget_read(struct fuse_iqueue *fiq, const struct fuse_forget_link *forget)
{
	struct efuse_conn *ec = efuse_conn_get(efuse_queue_conn(fiq));
	u64 nodeid = forget->forget_one.nodeid;

	if (!ec)
		return;
	efuse_forget_request(ec, nodeid);
	/* What has no name is freed by now, or soon. */
	efuse_epoch_bump(ec, efuse_bucket_inode(0, EFUSE_KIND_VOLUME));
	if (forget->efuse_changes)
		efuse_epoch_leave(ec, efuse_bucket_life(nodeid));
}

/**
 * efuse_forget_request - the daemon is about to forget a nodeid
 * @ec: connection
 * @nodeid: which
 *
 * Context: process context, may sleep.
 */
void efuse_forget_request(struct efuse_conn *ec, u64 nodeid)
{
	bool held;

	if (!xa_load(&ec->backed, nodeid))
		return;
	/* Whoever has it may wait for the daemon, which is about to read this. */
	held = down_read_trylock(&ec->fc->killsb);
	if (!held || !efuse_inode_alive(ec, nodeid))
		efuse_extents_forget(ec, nodeid);
	if (held)
		up_read(&ec->fc->killsb);
}

/* A number that differs once a FORGET of the nodeid was queued or read. */
u64 efuse_life_mark(const struct efuse_conn *ec, u64 nodeid)
{
	return efuse_epoch_word(ec, efuse_bucket_life(nodeid));
}

/**
 * efuse_life_ends - is there a FORGET of a nodeid that the daemon has not read?
 * @ec: connection
 * @nodeid: which
 *
 * Context: process context.
 * Return: false only if there is none
 */
bool efuse_life_ends(struct efuse_conn *ec, u64 nodeid)
{
	u16 bucket = efuse_bucket_life(nodeid);
	u64 in_flight = efuse_epoch_in_flight(ec, bucket), others;

	if (!in_flight)
		return false;
	return efuse_queues_forget(ec, nodeid, bucket, &others) || in_flight > others;
}
