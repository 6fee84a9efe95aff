// SPDX-License-Identifier: GPL-2.0
/*
 * The size that a file has for the daemon, with the epoch at which it was true. FUSE's own size
 * does not tell whether it is the daemon's: it stays when a notification ends it. FUSE drops
 * replies that something else has crossed, takes old ones of CREATE and LINK, and sets its size
 * where no request ends. So the inode has a second size, which comes from replies with attributes.
 * It is still true while the bucket of the attributes has no later epoch, as far as changes are
 * known: where other programs change the file without a notification, the daemon's timeout limits
 * it, too.
 *
 * A WRITE ends the attributes of its file, whose times only the daemon knows. But it leaves the
 * file as long as its own end tells. So it replaces size and epoch by its own if the size was true
 * when the WRITE was issued, and nothing else has changed the bucket since.
 */
#include "cache_i.h"

#include <linux/bitfield.h>

/* Does nothing but changes that are known end a size, not even the daemon's timeout? */
static bool efuse_size_lasts(const struct efuse_conn *ec, const struct inode *inode)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && rcu_access_pointer(ec->ops) &&
	       !efuse_shared_inode(ec, inode);
}

/* Is the size that lasts FUSE's, too? With write-back FUSE decides its own. */
static bool efuse_size_kept(const struct efuse_conn *ec, const struct inode *inode)
{
	return !ec->fc->writeback_cache && efuse_size_lasts(ec, inode);
}

/* Set both values, for efuse_size_read(). Under fuse_inode.lock. */
static void efuse_size_set(struct efuse_size *known, u64 epoch, loff_t size)
{
	WRITE_ONCE(known->epoch, 0);
	smp_wmb(); /* A reader that sees the new size sees that the old epoch is gone. */
	WRITE_ONCE(known->size, size);
	smp_wmb(); /* A reader that sees the new epoch sees the new size. */
	WRITE_ONCE(known->epoch, epoch);
}

/* Read the size that is known. Returns its epoch, or 0 if none is known at this moment. */
static u64 efuse_size_read(const struct efuse_size *known, u64 *size)
{
	u64 epoch = READ_ONCE(known->epoch);

	smp_rmb(); /* Pairs with efuse_size_set(). */
	*size = READ_ONCE(known->size);
	smp_rmb(); /* Pairs with efuse_size_set(). */
	return epoch == READ_ONCE(known->epoch) ? epoch : 0;
}

/* Sets *@size to the size that is known, in bytes. Returns its epoch, or 0 if it may be wrong. */
static u64 efuse_size_valid(const struct efuse_conn *ec, const struct fuse_inode *fi, u64 *size)
{
	u64 epoch = efuse_size_read(&fi->efuse_size, size);

	return epoch && efuse_epoch_valid(ec, efuse_size_bucket(fi->nodeid), epoch) ? epoch : 0;
}

/* Let the attributes in a reply carry the epoch since which they are true to efuse_attrs_came(). */
void efuse_size_mark(struct fuse_attr *attr, u64 epoch)
{
	attr->flags &= ~EFUSE_ATTR_EPOCH;
	attr->flags |= EFUSE_ATTR_MARKED | FIELD_PREP(EFUSE_ATTR_EPOCH, epoch);
}

/* The epoch in a mark: the last one that has its bits. */
static u64 efuse_mark_epoch(const struct efuse_conn *ec, const struct fuse_attr *attr)
{
	u64 now = efuse_epoch_now(ec);

	return now - ((now - FIELD_GET(EFUSE_ATTR_EPOCH, attr->flags)) &
		      FIELD_MAX(EFUSE_ATTR_EPOCH));
}

/* The daemon's size in attributes, in bytes. Under fuse_inode.lock. */
static u64 efuse_attr_size(const struct fuse_inode *fi, const struct fuse_attr *attr)
{
	return attr->flags & EFUSE_ATTR_REPLACED ? fi->efuse_size.replaced : attr->size;
}

/* Take the size in attributes, unless it may be an old one. Under fuse_inode.lock. */
static bool efuse_size_take(const struct efuse_conn *ec, struct fuse_inode *fi,
			    const struct fuse_attr *attr)
{
	u64 epoch = efuse_mark_epoch(ec, attr);

	if (!(attr->flags & EFUSE_ATTR_MARKED) || fi->inval_mask & STATX_SIZE ||
	    epoch < fi->efuse_size.epoch)
		return false;
	efuse_size_set(&fi->efuse_size, epoch, efuse_attr_size(fi, attr));
	WRITE_ONCE(fi->efuse_size.taker, current);
	return true;
}

/**
 * efuse_size_taken - FUSE has taken attributes of a reply
 * @inode: the inode, whose struct fuse_inode is locked
 * @attr: the attributes
 *
 * FUSE drops attributes that something else has crossed, or does not trust them: after an eviction
 * they are as good as ended. It takes those without a mark, too, with their timeout. Without
 * write-back, FUSE's size differs from the one that is known then, or is as true as that. With
 * write-back FUSE's size does not tell, so the one that is known ends if the daemon's differs.
 */
void efuse_size_taken(struct inode *inode, const struct fuse_attr *attr)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	const struct efuse_conn *ec = efuse_conn_get(fc);
	struct fuse_inode *fi = get_fuse_inode(inode);

	if (ec && !efuse_size_take(ec, fi, attr) && fc->writeback_cache &&
	    efuse_attr_size(fi, attr) != fi->efuse_size.size)
		efuse_size_set(&fi->efuse_size, 0, 0);
}

/**
 * efuse_size_came - FUSE is about to take attributes of a reply, or to drop them
 * @inode: the inode, whose struct fuse_inode is locked
 * @attr: the attributes
 *
 * With write-back FUSE replaces the size in them by its own first. The daemon's is kept for
 * efuse_size_taken(), which follows under the same lock unless FUSE drops the attributes.
 */
void efuse_size_came(struct inode *inode, struct fuse_attr *attr)
{
	struct fuse_conn *fc = get_fuse_conn(inode);

	if (efuse_conn_get(fc) && fc->writeback_cache) {
		get_fuse_inode(inode)->efuse_size.replaced = attr->size;
		attr->flags |= EFUSE_ATTR_REPLACED;
	}
}

/**
 * efuse_size_true - does the kernel know the size that an inode has for the daemon?
 * @ec: connection
 * @inode: the file
 * @size: set to the size in bytes
 *
 * Context: any; the lock of struct fuse_inode may be held.
 * Return: as efuse_size_known()
 */
u64 efuse_size_true(const struct efuse_conn *ec, struct inode *inode, u64 *size)
{
	return efuse_size_kept(ec, inode) ? efuse_size_valid(ec, get_fuse_inode(inode), size) : 0;
}

/**
 * efuse_size_known - does the kernel know the size that a file has for the daemon?
 * @ec: connection
 * @fm: mount
 * @nodeid: nodeid of the file
 * @size: set to the size in bytes
 *
 * Context: any; the lock of struct fuse_inode may be held.
 * Return: the epoch at which the file had that size, which is still true; 0 if it is not known
 */
u64 efuse_size_known(const struct efuse_conn *ec, struct fuse_mount *fm, u64 nodeid, u64 *size)
{
	struct inode *inode;
	u64 epoch = 0;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode)
		epoch = efuse_size_true(ec, inode, size);
	rcu_read_unlock();
	return epoch;
}

/**
 * efuse_size_learn - a file had a size at an epoch
 * @fi: inode of the file
 * @epoch: the epoch, no later change of the attributes is known; 0 if the size may change by
 *	   another nodeid
 * @size: the size in bytes
 */
void efuse_size_learn(struct fuse_inode *fi, u64 epoch, u64 size)
{
	spin_lock(&fi->lock);
	if (!epoch || epoch >= fi->efuse_size.epoch)
		efuse_size_set(&fi->efuse_size, epoch, size);
	spin_unlock(&fi->lock);
}

/* May a change that is in flight make a file shorter? Such a change is one of content, too. */
static bool efuse_size_shrinks(const struct efuse_conn *ec, u64 nodeid)
{
	return efuse_epoch_in_flight(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT));
}

/**
 * efuse_size_settled - may no change that is in flight make a file longer or shorter?
 * @ec: connection
 * @nodeid: nodeid of the file
 *
 * To be asked before efuse_size_told(): then the file ends where that tells, and not behind it.
 */
bool efuse_size_settled(const struct efuse_conn *ec, u64 nodeid)
{
	return !efuse_epoch_in_flight(ec, efuse_size_bucket(nodeid));
}

/**
 * efuse_size_reached - is a file at least as long as it was at an epoch?
 * @ec: connection
 * @nodeid: nodeid of the file
 * @epoch: the epoch, 0 for none
 *
 * WRITEs that are in flight may have made it longer.
 */
bool efuse_size_reached(const struct efuse_conn *ec, u64 nodeid, u64 epoch)
{
	u16 bucket = efuse_size_bucket(nodeid);

	return epoch && efuse_epoch_last(ec, bucket) <= epoch && !efuse_epoch_closed(ec, bucket) &&
	       !efuse_size_shrinks(ec, nodeid);
}

/* Does FUSE show the size that is known, or trust it, if it shows what it is still to write? */
static bool efuse_size_shown(const struct efuse_conn *ec, struct inode *inode, u64 size)
{
	if (ec->fc->writeback_cache)
		return !(READ_ONCE(get_fuse_inode(inode)->inval_mask) & STATX_SIZE);
	return size == i_size_read(inode);
}

/*
 * May a request go by the size that is known? Where other programs change the file without a
 * notification, only if that is the size that FUSE shows, and for as long as the daemon's timeout
 * allows, or if the daemon was asked for the request. With write-back FUSE's size may be one that
 * the daemon is still to learn of by a WRITE.
 */
static bool efuse_size_counts(const struct efuse_conn *ec, struct inode *inode,
			      const struct fuse_args *args, u64 *size)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	/* A large WRITE is a change of the content itself. */
	if (args && args->efuse.size_epoch)
		*size = args->efuse.size;
	else if (!efuse_size_reached(ec, fi->nodeid, efuse_size_read(&fi->efuse_size, size)))
		return false;
	return efuse_size_lasts(ec, inode) ||
	       (efuse_size_shown(ec, inode, *size) &&
		((args && args->efuse.asked) || !efuse_attr_ended(inode)));
}

/**
 * efuse_size_told - the size of a file, as far as the daemon has told
 * @ec: connection
 * @fm: mount
 * @args: a request for the file; NULL if there is none
 * @nodeid: nodeid of the file
 * @size: set to the size in bytes
 *
 * WRITEs in flight may make the file longer: see efuse_size_settled().
 *
 * Context: any
 * Return: false if the daemon has to be asked
 */
bool efuse_size_told(const struct efuse_conn *ec, struct fuse_mount *fm,
		     const struct fuse_args *args, u64 nodeid, u64 *size)
{
	struct inode *inode;
	bool told = false;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	told = inode && efuse_size_counts(ec, inode, args, size);
	rcu_read_unlock();
	return told;
}

/**
 * efuse_size_agrees - does FUSE show a size of a file?
 * @fm: mount
 * @nodeid: nodeid of the file
 * @size: the size in bytes
 *
 * With write-back a longer file is shown if pages are still to be written.
 */
bool efuse_size_agrees(struct fuse_mount *fm, u64 nodeid, u64 size)
{
	struct inode *inode;
	bool agrees;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	agrees = inode && size == i_size_read(inode);
	rcu_read_unlock();
	return agrees;
}

/**
 * efuse_size_ask - ask the daemon for the size of a file
 * @file: the file
 * @taken: set to whether FUSE has taken the reply, and nothing has crossed it
 *
 * FUSE's attributes may be valid although the size is not known any more, so they are ended first.
 * With write-back FUSE never asks for the size: another attribute brings the same reply.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int efuse_size_ask(struct file *file, bool *taken)
{
	struct inode *inode = file_inode(file);
	struct efuse_size *known = &get_fuse_inode(inode)->efuse_size;
	u32 mask = get_fuse_conn(inode)->writeback_cache ? STATX_BLOCKS : STATX_SIZE;
	int err;

	WRITE_ONCE(known->taker, NULL);
	fuse_invalidate_attr_mask(inode, mask);
	err = fuse_update_attributes(inode, file, mask);
	*taken = READ_ONCE(known->taker) == current;
	return err;
}

/**
 * efuse_size_issue - a request is about to be issued: may it make a file longer?
 * @ec: connection
 * @fm: mount
 * @args: the request; @extends and @size_epoch of its struct efuse_args are set
 *
 * Sets @extends if that is so as far as is known now; see efuse_size_crossed().
 */
void efuse_size_issue(const struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
{
	struct inode *inode;
	bool kept = false;
	u64 size = 0;

	args->efuse.extends = false;
	args->efuse.size_epoch = 0;
	if (args->opcode != FUSE_WRITE)
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(fm, args->nodeid);
	if (inode) {
		args->efuse.size_epoch = efuse_size_valid(ec, get_fuse_inode(inode), &size);
		kept = efuse_size_kept(ec, inode);
	}
	rcu_read_unlock();
	args->efuse.extends = efuse_arg_flags(args) & O_APPEND || !args->efuse.size_epoch ||
			      !kept || efuse_arg_offset(args) + efuse_arg_size(args) > size;
	/* The daemon may append where the file ends for it. */
	if (efuse_arg_flags(args) & O_APPEND && efuse_arg_offset(args) != size)
		args->efuse.size_epoch = 0;
	args->efuse.size = size;
}

/**
 * efuse_size_begun - the changes of a request have begun
 * @ec: connection
 * @args: the request; @size_epoch of its struct efuse_args is cleared if the size is not true now
 */
void efuse_size_begun(const struct efuse_conn *ec, struct fuse_args *args)
{
	u64 epoch = args->efuse.size_epoch;

	if (epoch && !efuse_epoch_single(ec, efuse_size_bucket(args->nodeid), epoch))
		args->efuse.size_epoch = 0;
}

/* A WRITE that ended at @end has the epoch @epoch. Before, the size was true since @since. */
static void efuse_size_move(struct fuse_inode *fi, u64 since, loff_t end, u64 epoch)
{
	struct efuse_size *known = &fi->efuse_size;

	spin_lock(&fi->lock);
	if (known->epoch == since)
		efuse_size_set(known, epoch, max(known->size, end));
	spin_unlock(&fi->lock);
}

/**
 * efuse_size_written - a WRITE has succeeded
 * @ec: connection
 * @fm: mount
 * @args: the WRITE
 * @ch: the changes that it made, ended
 *
 * A short WRITE counts as one that failed.
 */
void efuse_size_written(const struct efuse_conn *ec, struct fuse_mount *fm,
			const struct fuse_args *args, const struct efuse_changes *ch)
{
	const struct fuse_write_out *out = args->out_args[0].value;
	struct inode *inode;
	bool own = false;

	if (!args->efuse.size_epoch || out->size != efuse_arg_size(args) ||
	    !efuse_epoch_holds(ec, ch, efuse_size_bucket(args->nodeid), args->efuse.epoch, &own))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(fm, args->nodeid);
	if (inode)
		efuse_size_move(get_fuse_inode(inode), args->efuse.size_epoch,
				efuse_arg_offset(args) + out->size, ch->epoch);
	rcu_read_unlock();
}

/**
 * efuse_size_crossed - may a WRITE have made its file longer after all?
 * @ec: connection
 * @args: a request whose changes are about to end
 *
 * Another change may have made the file shorter after the WRITE was issued.
 */
void efuse_size_crossed(struct efuse_conn *ec, const struct fuse_args *args)
{
	if (args->opcode == FUSE_WRITE && !args->efuse.extends &&
	    !efuse_epoch_single(ec, efuse_size_bucket(args->nodeid), args->efuse.epoch))
		efuse_epoch_bump(ec, efuse_bucket_inode(args->nodeid, EFUSE_KIND_EOF));
}

/**
 * efuse_size_cut - open(2) with O_TRUNC has set FUSE's size of a file to 0, after the reply
 * @inode: the file, locked
 *
 * The file may have become longer since the reply, and FUSE's attributes may be from then.
 */
void efuse_size_cut(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	if (ec) {
		efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
		fuse_invalidate_attr_mask(inode, STATX_SIZE);
	}
}

/**
 * efuse_end_stays - is FUSE not to cut a file off after a direct write that has failed?
 * @inode: the file, locked
 *
 * FUSE cuts off at its size what a part of the write may have brought. Another program may have
 * made the file longer meanwhile, and in exclusive mode the daemon has told of it.
 */
bool efuse_end_stays(struct inode *inode)
{
	return efuse_size_exclusive(efuse_conn_get(get_fuse_conn(inode)));
}
