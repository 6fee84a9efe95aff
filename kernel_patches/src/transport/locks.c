// SPDX-License-Identifier: GPL-2.0
/*
 * Locks of files that the daemon keeps: its successor gets them before it is asked for others.
 *
 * What the callers have locked and unlocked is noted in its order, without what later locks have
 * replaced. The successor is told the same. A lock that it does not grant is lost: another client
 * has taken it meanwhile.
 */
#include "transport_i.h"

#include <linux/filelock.h>

/* The most locks that are noted for a connection. */
#define EFUSE_MAX_LOCKS	4096

/**
 * struct efuse_lock - a lock that was taken, or given back
 * @list: node in the list of the connection, in the order in which they were taken
 * @fm: mount
 * @nodeid: the kernel's nodeid of the file
 * @told: number of the daemon that knows of it
 * @in: the SETLK
 */
struct efuse_lock {
	struct list_head list;
	struct fuse_mount *fm;
	u64 nodeid;
	u32 told;
	struct fuse_lk_in in;
};

/* Do two locks belong to the same owner of the same file? */
static bool efuse_lock_related(const struct efuse_lock *a, const struct efuse_lock *b)
{
	return a->nodeid == b->nodeid && a->in.owner == b->in.owner &&
	       a->in.lk_flags == b->in.lk_flags &&
	       (!(a->in.lk_flags & FUSE_LK_FLOCK) || a->in.fh == b->in.fh);
}

static void efuse_lock_drop(struct efuse_locks *locks, struct efuse_lock *lock)
{
	list_del(&lock->list);
	WRITE_ONCE(locks->nr, locks->nr - 1);
	kfree(lock);
}

/* Adds a lock, and drops those that it replaces. Under the lock of the list. */
static void efuse_lock_add(struct efuse_locks *locks, struct efuse_lock *lock)
{
	struct efuse_lock *old, *next;
	bool related = false;

	list_for_each_entry_safe(old, next, &locks->list, list) {
		if (!efuse_lock_related(old, lock))
			continue;
		if (lock->in.lk.start <= old->in.lk.start && old->in.lk.end <= lock->in.lk.end)
			efuse_lock_drop(locks, old);
		else
			related = true;
	}
	/* There is nothing left to unlock. */
	if (lock->in.lk.type == F_UNLCK && !related) {
		kfree(lock);
		return;
	}
	list_add_tail(&lock->list, &locks->list);
	WRITE_ONCE(locks->nr, locks->nr + 1);
}

/**
 * efuse_locked - the daemon has granted a SETLK or SETLKW
 * @req: the request
 *
 * Context: process context, may sleep.
 */
void efuse_locked(struct efuse_req *req)
{
	const struct fuse_lk_in *in = efuse_req_in(req->args, sizeof(*in));
	struct efuse_locks *locks = &req->ec->recovery.locks;
	struct efuse_lock *lock;

	lock = in ? kzalloc(sizeof(*lock), GFP_KERNEL_ACCOUNT) : NULL;
	spin_lock(&locks->lock);
	if (lock && locks->nr < EFUSE_MAX_LOCKS) {
		lock->fm = req->fm;
		lock->nodeid = req->args->nodeid;
		lock->told = req->args->efuse.serial - 1;
		lock->in = *in;
		efuse_lock_add(locks, lock);
	} else {
		kfree(lock);
		locks->missed = true;
	}
	spin_unlock(&locks->lock);
}

static bool efuse_lock_flushed(const struct efuse_lock *lock, const struct fuse_args *args)
{
	const struct fuse_flush_in *in = efuse_req_in(args, sizeof(*in));

	return in && lock->nodeid == args->nodeid && lock->in.owner == in->lock_owner &&
	       !(lock->in.lk_flags & FUSE_LK_FLOCK);
}

/**
 * efuse_locks_flushed - are there locks that a FLUSH ends?
 * @ec: connection
 * @args: the FLUSH
 *
 * They may have been taken by another open file of the same owner.
 *
 * Context: any that may take a spinlock.
 * Return: true if some are noted
 */
bool efuse_locks_flushed(struct efuse_conn *ec, const struct fuse_args *args)
{
	struct efuse_locks *locks = &ec->recovery.locks;
	struct efuse_lock *lock;
	bool flushed = false;

	if (!READ_ONCE(locks->nr))
		return false;
	spin_lock(&locks->lock);
	list_for_each_entry(lock, &locks->list, list)
		flushed |= efuse_lock_flushed(lock, args);
	spin_unlock(&locks->lock);
	return flushed;
}

/**
 * efuse_locks_end - locks end with a FLUSH or RELEASE
 * @ec: connection
 * @args: the request
 *
 * A FLUSH ends the locks that its owner has on the file, a RELEASE those of its open file.
 *
 * Context: any that may take a spinlock.
 * Return: true if some were noted
 */
bool efuse_locks_end(struct efuse_conn *ec, const struct fuse_args *args)
{
	struct efuse_locks *locks = &ec->recovery.locks;
	struct efuse_lock *lock, *next;
	bool flush = args->opcode == FUSE_FLUSH, ended = false;

	if (!READ_ONCE(locks->nr))
		return false;
	spin_lock(&locks->lock);
	list_for_each_entry_safe(lock, next, &locks->list, list) {
		if (flush ? efuse_lock_flushed(lock, args) : lock->in.fh == efuse_arg_fh(args)) {
			efuse_lock_drop(locks, lock);
			ended = true;
		}
	}
	spin_unlock(&locks->lock);
	return ended;
}

/**
 * efuse_locks_settle - wait until no successor is being told of locks
 * @ec: connection
 *
 * Context: process context, may sleep.
 */
void efuse_locks_settle(struct efuse_conn *ec)
{
	mutex_lock(&ec->recovery.locks.again);
	mutex_unlock(&ec->recovery.locks.again);
}

/*
 * The first lock that a daemon does not know of; from now on it counts as told. Its file, set in
 * @handle, is not closed before efuse_background_closes(): a RELEASE takes the lock out of the list
 * before it is queued.
 */
static bool efuse_lock_next(struct efuse_conn *ec, u32 incarnation, struct efuse_lock *next,
			    struct efuse_handle **handle)
{
	struct efuse_locks *locks = &ec->recovery.locks;
	struct efuse_lock *lock;
	bool found = false;

	spin_lock(&locks->lock);
	list_for_each_entry(lock, &locks->list, list) {
		if (lock->told == incarnation)
			continue;
		lock->told = incarnation;
		*next = *lock;
		*handle = efuse_handle_find(ec, lock->in.fh);
		if (*handle)
			WRITE_ONCE((*handle)->told, true);
		found = true;
		break;
	}
	spin_unlock(&locks->lock);
	return found;
}

static ssize_t efuse_lock_again(struct efuse_conn *ec, const struct efuse_lock *lock)
{
	struct fuse_lk_in in = lock->in;
	struct fuse_args args = {
		.opcode = FUSE_SETLK,
		.nodeid = lock->nodeid,
		.in_numargs = 1,
		.efuse.early = true,
	};
	u32 incarnation;
	ssize_t ret;

	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	ret = efuse_ids_ready(lock->fm, ec, &args, true, &incarnation);
	if (ret)
		return ret;
	return efuse_exchange(&invalid_mnt_idmap, lock->fm, ec, &args, incarnation);
}

/* The daemon has not granted a lock, so it is not noted any more. */
static void efuse_lock_lost(struct efuse_conn *ec, const struct efuse_lock *lost)
{
	struct efuse_locks *locks = &ec->recovery.locks;
	struct efuse_lock *lock, *next;

	spin_lock(&locks->lock);
	list_for_each_entry_safe(lock, next, &locks->list, list)
		if (efuse_lock_related(lock, lost))
			efuse_lock_drop(locks, lock);
	spin_unlock(&locks->lock);
	atomic_inc(&ec->recovery.failed);
	pr_warn_ratelimited("connection %u: a lock is lost with its daemon\n", ec->id);
}

/**
 * efuse_locks_again - give the present daemon the locks that its predecessors had granted
 * @ec: connection
 *
 * Context: process context, may sleep.
 * Return: 0; -EINTR if the caller is being killed; EFUSE_LOST_UNREAD if the daemon has ended;
 *	   -ENOTCONN if the connection has
 */
ssize_t efuse_locks_again(struct efuse_conn *ec)
{
	struct efuse_locks *locks = &ec->recovery.locks;
	u32 incarnation = READ_ONCE(ec->recovery.incarnation);
	struct efuse_handle *handle;
	struct efuse_lock lock;
	ssize_t ret = 0;

	if (READ_ONCE(locks->incarnation) == incarnation)
		return 0;
	if (mutex_lock_killable(&locks->again))
		return -EINTR;
	while (locks->incarnation != incarnation) {
		if (!efuse_lock_next(ec, incarnation, &lock, &handle)) {
			WRITE_ONCE(locks->incarnation, incarnation);
			break;
		}
		ret = efuse_lock_again(ec, &lock);
		if (handle)
			efuse_background_closes(ec, handle);
		if (efuse_lost(ret) || ret == -EINTR || ret == -ENOTCONN)
			break;
		if (ret)
			efuse_lock_lost(ec, &lock);
		ret = 0;
	}
	if (locks->missed && !ret)
		pr_warn_ratelimited("connection %u: a lock is lost with its daemon\n", ec->id);
	mutex_unlock(&locks->again);
	return efuse_lost(ret) ? EFUSE_LOST_UNREAD : ret;
}

/* Prepares the locks of a new connection. */
void efuse_locks_add(struct efuse_conn *ec)
{
	spin_lock_init(&ec->recovery.locks.lock);
	mutex_init(&ec->recovery.locks.again);
	INIT_LIST_HEAD(&ec->recovery.locks.list);
}

/* Frees the locks of a connection after the last reference to it is gone. */
void efuse_locks_free(struct efuse_conn *ec)
{
	struct efuse_lock *lock, *next;

	list_for_each_entry_safe(lock, next, &ec->recovery.locks.list, list)
		kfree(lock);
}
