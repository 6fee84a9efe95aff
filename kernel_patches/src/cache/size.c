// SPDX-License-Identifier: GPL-2.0
/*
 * The size of a file in exclusive mode. FUSE's size is true until another change than a WRITE of
 * this mount: a WRITE that succeeds leaves the file as long as FUSE says afterwards. But each WRITE
 * ends the attributes of its file, whose times only the daemon knows. So the inode has a size of its
 * own, with an epoch at which it was true. It is still true while the bucket of the attributes has
 * no later epoch. A WRITE replaces both by its own epoch and end if the size was true when the WRITE
 * was issued, and nothing else has changed the bucket since.
 *
 * FUSE also sets its size where no request ends: open(2) with O_TRUNC, when it gets the inode's
 * lock, and replies that are older than a WRITE. So the size counts only if FUSE has the same one.
 */
#include "cache_i.h"

#include <linux/sched/signal.h>

static u16 efuse_size_bucket(u64 nodeid)
{
	return efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR);
}

/* Does FUSE know the sizes of files without write-back as long as nothing ends them? */
static bool efuse_size_kept(const struct efuse_conn *ec, const struct fuse_conn *fc)
{
	return READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && rcu_access_pointer(ec->ops) &&
	       !fc->writeback_cache;
}

/* Take size and epoch from the attributes, if their timeout is extended. */
static void efuse_size_came(struct fuse_inode *fi)
{
	struct efuse_size *known = &fi->efuse_size;

	spin_lock(&fi->lock);
	if (efuse_time_extended(fi->i_time) && !(fi->inval_mask & STATX_SIZE)) {
		known->epoch = fi->i_time & EFUSE_TIME_EPOCH;
		known->size = i_size_read(&fi->inode);
	}
	spin_unlock(&fi->lock);
}

/* Is FUSE's size of a file true? */
static bool efuse_size_true(const struct efuse_conn *ec, struct fuse_inode *fi)
{
	struct efuse_size known;

	spin_lock(&fi->lock);
	known = fi->efuse_size;
	spin_unlock(&fi->lock);
	return known.epoch && known.size == i_size_read(&fi->inode) &&
	       efuse_epoch_valid(ec, efuse_size_bucket(fi->nodeid), known.epoch);
}

/* Ask the daemon for the size, until no change crosses its reply, which FUSE drops then. */
static int efuse_size_ask(struct file *file)
{
	struct inode *inode = file_inode(file);
	struct fuse_inode *fi = get_fuse_inode(inode);
	int err;

	do {
		fuse_invalidate_attr_mask(inode, STATX_SIZE);
		err = fuse_update_attributes(inode, file, STATX_SIZE);
		if (err || !(READ_ONCE(fi->inval_mask) & STATX_SIZE))
			return err;
	} while (!fatal_signal_pending(current));
	return -EINTR;
}

/**
 * efuse_size_update - make FUSE's size of a file true in exclusive mode
 * @file: the file, its inode locked
 *
 * The daemon is asked if something else than a WRITE of this mount has ended the size. Does nothing
 * in the other modes, where the file may become longer at any time, and in a mount with write-back,
 * where FUSE decides the size.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int efuse_size_update(struct file *file)
{
	struct inode *inode = file_inode(file);
	struct fuse_conn *fc = get_fuse_conn(inode);
	struct fuse_inode *fi = get_fuse_inode(inode);
	const struct efuse_conn *ec = efuse_conn_get(fc);
	int err;

	if (!ec || READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE || fc->writeback_cache)
		return 0;
	if (!efuse_size_kept(ec, fc))
		return efuse_size_ask(file);
	if (efuse_size_true(ec, fi))
		return 0;
	efuse_size_came(fi);
	if (efuse_size_true(ec, fi))
		return 0;
	err = efuse_size_ask(file);
	if (!err)
		efuse_size_came(fi);
	return err;
}

/**
 * efuse_size_issue - a WRITE is being issued
 * @ec: connection
 * @fm: mount
 * @args: the WRITE, whose changes have begun; @size_epoch of its struct efuse_args is set
 */
void efuse_size_issue(const struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
{
	struct inode *inode;
	u64 epoch;

	args->efuse.size_epoch = 0;
	if (args->opcode != FUSE_WRITE || !efuse_size_kept(ec, fm->fc))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(fm, args->nodeid);
	epoch = inode ? READ_ONCE(get_fuse_inode(inode)->efuse_size.epoch) : 0;
	rcu_read_unlock();
	if (epoch && efuse_epoch_single(ec, efuse_size_bucket(args->nodeid), epoch))
		args->efuse.size_epoch = epoch;
}

/* A WRITE that ended at @end has the epoch @epoch. Before, the size was true since @since. */
static void efuse_size_set(struct fuse_inode *fi, u64 since, loff_t end, u64 epoch)
{
	struct efuse_size *known = &fi->efuse_size;

	spin_lock(&fi->lock);
	if (known->epoch == since) {
		known->size = max(known->size, end);
		WRITE_ONCE(known->epoch, epoch);
	}
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
		efuse_size_set(get_fuse_inode(inode), args->efuse.size_epoch,
			       efuse_arg_offset(args) + out->size, ch->epoch);
	rcu_read_unlock();
}

/**
 * efuse_size_cut - open(2) with O_TRUNC has set FUSE's size of a file to 0, after the daemon's reply
 * @inode: the file, locked
 *
 * The file may have become longer since the reply, and FUSE's attributes may be from then.
 */
void efuse_size_cut(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	if (ec)
		efuse_epoch_bump(ec, efuse_size_bucket(get_node_id(inode)));
}
