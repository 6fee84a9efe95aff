// SPDX-License-Identifier: GPL-2.0
/*
 * WRITEs of write-back, which FUSE sends under a spinlock: those that backing files can
 * take, and those that are too large for the daemon, are carried out by a worker.
 *
 * To FUSE they are sent; whoever waits for write-back waits for them, and an unmount
 * waits until they are answered.
 */
#include "efuse_i.h"

#include <linux/sched/mm.h>
#include <linux/workqueue.h>

static struct workqueue_struct *efuse_later_queue;

static bool efuse_later_wanted(struct efuse_conn *ec, const struct fuse_args *args)
{
	if (efuse_arg_size(args) > ec->daemon_write)
		return true;
	return efuse_path_backed(ec) && xa_load(&ec->backed, args->nodeid);
}

/**
 * efuse_later - carry a background WRITE out from where it can sleep
 * @ec: connection
 * @fm: mount
 * @args: the request
 * @gfp_flags: GFP_KERNEL if its sender can sleep
 *
 * Context: any that may take a spinlock.
 * Return: whether args->end() will be called.
 */
bool efuse_later(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
		 gfp_t gfp_flags)
{
	struct fuse_conn *fc = fm->fc;

	if (args->opcode != FUSE_WRITE || gfp_flags == GFP_KERNEL ||
	    !efuse_connected(fc) || !efuse_later_wanted(ec, args))
		return false;
	atomic_inc(&efuse_chan(fc)->num_waiting);
	args->efuse.fm = fm;
	spin_lock(&ec->later_lock);
	list_add_tail(&args->efuse.later, &ec->later);
	spin_unlock(&ec->later_lock);
	queue_work(efuse_later_queue, &ec->later_work);
	return true;
}

static struct fuse_args *efuse_later_next(struct efuse_conn *ec)
{
	struct fuse_args *args;

	spin_lock(&ec->later_lock);
	args = list_first_entry_or_null(&ec->later, struct fuse_args, efuse.later);
	if (args)
		list_del(&args->efuse.later);
	spin_unlock(&ec->later_lock);
	return args;
}

/* As FUSE's own end of a request: who aborts waits for the last. */
static void efuse_later_done(struct fuse_conn *fc)
{
	if (atomic_dec_and_test(&efuse_chan(fc)->num_waiting) && !efuse_connected(fc))
		wake_up_all(&efuse_chan(fc)->blocked_waitq);
}

static void efuse_later_work(struct work_struct *work)
{
	struct efuse_conn *ec = container_of(work, struct efuse_conn, later_work);
	unsigned int flags = current->flags;
	unsigned int nofs = memalloc_nofs_save();
	struct fuse_conn *fc = ec->fc;
	struct fuse_args *args;

	/* Dirty pages become dirty pages: only those of the lower device may hold us up. */
	current->flags |= PF_LOCAL_THROTTLE;
	while ((args = efuse_later_next(ec))) {
		efuse_background_now(ec, args->efuse.fm, args);
		efuse_later_done(fc);
		cond_resched();
	}
	current_restore_flags(flags, PF_LOCAL_THROTTLE);
	memalloc_nofs_restore(nofs);
}

void efuse_later_add(struct efuse_conn *ec)
{
	spin_lock_init(&ec->later_lock);
	INIT_LIST_HEAD(&ec->later);
	INIT_WORK(&ec->later_work, efuse_later_work);
}

/* All are answered when a connection is unmounted; the worker may not know it yet. */
void efuse_later_settle(struct efuse_conn *ec)
{
	flush_work(&ec->later_work);
}

int efuse_later_init(void)
{
	efuse_later_queue = alloc_workqueue("efuse", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return efuse_later_queue ? 0 : -ENOMEM;
}

void efuse_later_exit(void)
{
	destroy_workqueue(efuse_later_queue);
}
