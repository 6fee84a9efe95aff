// SPDX-License-Identifier: GPL-2.0
/*
 * The size of a file in exclusive mode. FUSE's size is true until another change than a WRITE of
 * this mount: a WRITE that succeeds leaves the file as long as FUSE says afterwards. But each WRITE
 * ends the attributes of its file, whose times only the daemon knows. So the size has an epoch of
 * its own in the inode: the size was true then. It is still true while the bucket of the attributes
 * has no later epoch. A WRITE replaces it by its own epoch if the size was true when the WRITE was
 * issued, and nothing else has changed the bucket since.
 */
#include "cache_i.h"

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

/* Take the epoch of the attributes, if their timeout is extended. */
static void efuse_size_came(struct fuse_inode *fi)
{
	u64 time = READ_ONCE(fi->i_time);

	if (efuse_time_extended(time) && !(READ_ONCE(fi->inval_mask) & STATX_SIZE))
		WRITE_ONCE(fi->efuse_pages.size_epoch, time & EFUSE_TIME_EPOCH);
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
	u64 epoch = READ_ONCE(fi->efuse_pages.size_epoch);
	int err;

	if (!ec || READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE || fc->writeback_cache)
		return 0;
	if (epoch && efuse_size_kept(ec, fc) &&
	    efuse_epoch_valid(ec, efuse_size_bucket(get_node_id(inode)), epoch))
		return 0;
	err = fuse_update_attributes(inode, file, STATX_SIZE);
	if (!err)
		efuse_size_came(fi);
	return err;
}

/**
 * efuse_size_issue - a WRITE is being issued
 * @ec: connection
 * @fm: mount
 * @args: the WRITE, whose changes have begun; @sized of its struct efuse_args is set
 */
void efuse_size_issue(const struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
{
	struct inode *inode;
	u64 epoch;

	args->efuse.sized = false;
	if (args->opcode != FUSE_WRITE || !efuse_size_kept(ec, fm->fc))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(fm, args->nodeid);
	epoch = inode ? READ_ONCE(get_fuse_inode(inode)->efuse_pages.size_epoch) : 0;
	rcu_read_unlock();
	args->efuse.sized = epoch && efuse_epoch_single(ec, efuse_size_bucket(args->nodeid), epoch);
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

	if (!args->efuse.sized || out->size != efuse_arg_size(args) ||
	    !efuse_epoch_holds(ec, ch, efuse_size_bucket(args->nodeid), args->efuse.epoch, &own))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(fm, args->nodeid);
	if (inode)
		WRITE_ONCE(get_fuse_inode(inode)->efuse_pages.size_epoch, ch->epoch);
	rcu_read_unlock();
}
