// SPDX-License-Identifier: GPL-2.0
/*
 * Where does an append go in exclusive mode? FUSE appends at its own size, which may not be the
 * daemon's any more. Before an append the daemon is asked if the size is not known (see size.c).
 */
#include "cache_i.h"

#include <linux/pagemap.h>
#include <linux/sched/signal.h>

/* How often an append asks for the size if other changes cross each reply. */
#define EFUSE_APPEND_ROUNDS	8

/**
 * efuse_append_replied - a reply has told the size of a file to the current task
 * @fi: inode of the file
 * @issued: epoch at which the request was issued
 * @size: the size in bytes
 *
 * If the task is the one that asks for the size, the reply counts although another change may have
 * crossed it; then efuse_size_learn() is not called as well.
 */
void efuse_append_replied(struct fuse_inode *fi, u64 issued, u64 size)
{
	if (READ_ONCE(fi->efuse_size.asker) != current)
		return;
	spin_lock(&fi->lock);
	fi->efuse_size.reply_epoch = issued;
	fi->efuse_size.reply_size = size;
	spin_unlock(&fi->lock);
}

/*
 * Which size is the newest? That which is known, or else that of the last question's reply, if no
 * change has ended after the question. Whether the reply has seen a WRITE that is in flight does
 * not matter: who asks is between both. Under fuse_inode.lock.
 */
static bool efuse_append_newest(const struct efuse_conn *ec, struct fuse_inode *fi, u64 *size)
{
	const struct efuse_size *known = &fi->efuse_size;

	if (efuse_size_true(ec, &fi->inode, size))
		return true;
	*size = known->reply_size;
	return efuse_size_reached(ec, fi->nodeid, known->reply_epoch);
}

/*
 * Give FUSE the newest size. FUSE may have dropped the reply that brought it, or have taken an
 * older one since. The inode is locked.
 */
static void efuse_append_apply(const struct efuse_conn *ec, struct inode *inode)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	struct fuse_inode *fi = get_fuse_inode(inode);
	loff_t old;
	bool known;
	u64 size;

	spin_lock(&fi->lock);
	old = i_size_read(inode);
	known = efuse_append_newest(ec, fi, &size);
	if (known && size != old) {
		fi->attr_version = atomic64_inc_return(&fc->attr_version);
		i_size_write(inode, size);
	}
	spin_unlock(&fi->lock);
	if (known && size != old) {
		efuse_pages_cut(inode, old, size);
		if (!fc->explicit_inval_data)
			invalidate_inode_pages2(inode->i_mapping);
	}
}

/* Ask the daemon for the size, and give it to FUSE. Returns 0 or a negative errno. */
static int efuse_append_ask(const struct efuse_conn *ec, struct file *file)
{
	struct inode *inode = file_inode(file);
	struct efuse_size *known = &get_fuse_inode(inode)->efuse_size;
	bool taken;
	int err;

	/* Set under the inode's lock, so that there is one asker. */
	known->reply_epoch = 0;
	WRITE_ONCE(known->asker, current);
	err = efuse_size_ask(file, &taken);
	WRITE_ONCE(known->asker, NULL);
	if (!err)
		efuse_append_apply(ec, inode);
	return err;
}

/* The size that FUSE has, if nothing has ended it. */
static bool efuse_append_fuse(struct inode *inode, u64 *size)
{
	*size = i_size_read(inode);
	return !(READ_ONCE(get_fuse_inode(inode)->inval_mask) & STATX_SIZE);
}

/**
 * efuse_append_stays - may an append go to a position?
 * @inode: the file, locked
 * @pos: the end of the file as FUSE had it
 *
 * FUSE may have taken an older reply after efuse_append_update(), from a task without the inode's
 * lock.
 *
 * Return: false if the end is another one, or if the daemon has told of a change since. true
 *	   outside of exclusive mode, where the file may become longer at any time
 */
bool efuse_append_stays(struct inode *inode, loff_t pos)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	bool known;
	u64 size;

	if (!efuse_size_exclusive(ec))
		return true;
	spin_lock(&fi->lock);
	known = efuse_append_newest(ec, fi, &size);
	spin_unlock(&fi->lock);
	/* Replies are not looked at without handlers. Nothing is known of a closed bucket. */
	if (!known && (!rcu_access_pointer(ec->ops) ||
		       efuse_epoch_closed(ec, efuse_size_bucket(fi->nodeid))))
		known = efuse_append_fuse(inode, &size);
	return known && size == pos;
}

/**
 * efuse_append_update - make FUSE's size of a file true in exclusive mode
 * @file: the file, its inode locked
 *
 * The daemon is asked if something else than a WRITE of this mount has ended the size, and again if
 * a change that has ended crosses its reply. Does nothing in the other modes, where the file may
 * become longer at any time, and in a mount with write-back, where FUSE decides the size. If a
 * notification crosses each reply, FUSE's size is used in the end.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int efuse_append_update(struct file *file)
{
	struct inode *inode = file_inode(file);
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	unsigned int round = 0;
	u64 size;
	int err;

	if (!efuse_size_exclusive(ec) ||
	    (efuse_size_true(ec, inode, &size) && size == i_size_read(inode)))
		return 0;
	do {
		err = efuse_append_ask(ec, file);
		if (err || efuse_append_stays(inode, i_size_read(inode)))
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
	} while (++round < EFUSE_APPEND_ROUNDS);
	return 0;
}
