// SPDX-License-Identifier: GPL-2.0
/*
 * WRITEs of write-back, which FUSE sends under a spinlock: those that backing files can
 * take, and those that are too large for the daemon, are carried out by workers.
 *
 * To FUSE they are sent: whoever waits for write-back waits for them, and an unmount
 * waits until they are answered.
 *
 * Each WRITE is a work item of its own, so that one that waits for its backing file holds up
 * no other. FUSE sends no two WRITEs of the same page at once, so their order does not
 * matter. Each connection that needs workers has a workqueue with a rescuer of its own: a WRITE
 * into a file of another eFuse mount may wait for that mount's workers.
 */
#include "efuse_i.h"

#include <linux/sched/mm.h>
#include <linux/workqueue.h>

static bool efuse_later_wanted(struct efuse_conn *ec, const struct fuse_args *args)
{
	if (efuse_arg_size(args) > ec->daemon_write)
		return true;
	return efuse_path_backed(ec) && xa_load(&ec->backed, args->nodeid);
}

/* As FUSE's own end of a request: who aborts waits for the last. */
static void efuse_later_done(struct fuse_conn *fc)
{
	if (atomic_dec_and_test(&efuse_chan(fc)->num_waiting) && !efuse_connected(fc))
		wake_up_all(&efuse_chan(fc)->blocked_waitq);
}

static void efuse_later_work(struct work_struct *work)
{
	struct fuse_args *args = container_of(work, struct fuse_args, efuse.later);
	unsigned int flags = current->flags;
	unsigned int nofs = memalloc_nofs_save();
	struct fuse_mount *fm = args->efuse.fm;
	struct fuse_conn *fc = fm->fc;

	/* Dirty pages become dirty pages: only those of the lower device may hold us up. */
	current->flags |= PF_LOCAL_THROTTLE;
	efuse_background_now(efuse_conn_get(fc), fm, args);
	/* @args, which has @work, may be gone. */
	efuse_later_done(fc);
	current_restore_flags(flags, PF_LOCAL_THROTTLE);
	memalloc_nofs_restore(nofs);
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
	/* Pairs with efuse_later_prepare(). */
	struct workqueue_struct *queue = smp_load_acquire(&ec->later_queue);

	if (args->opcode != FUSE_WRITE || gfp_flags == GFP_KERNEL || !queue ||
	    !efuse_connected(fm->fc) || !efuse_later_wanted(ec, args))
		return false;
	atomic_inc(&efuse_chan(fm->fc)->num_waiting);
	args->efuse.fm = fm;
	INIT_WORK(&args->efuse.later, efuse_later_work);
	queue_work(queue, &args->efuse.later);
	return true;
}

/**
 * efuse_later_prepare - have workers before the first WRITE that needs one
 * @ec: connection
 *
 * Context: process context, may sleep.
 * Return: 0 or -ENOMEM
 */
int efuse_later_prepare(struct efuse_conn *ec)
{
	struct workqueue_struct *queue;

	if (READ_ONCE(ec->later_queue))
		return 0;
	queue = alloc_workqueue("efuse/%u", WQ_MEM_RECLAIM | WQ_UNBOUND, 0, ec->id);
	if (!queue)
		return -ENOMEM;
	/* Pairs with efuse_later(). */
	if (cmpxchg(&ec->later_queue, NULL, queue))
		destroy_workqueue(queue);
	return 0;
}

/* All are answered when a connection is unmounted; a worker may not know it yet. */
void efuse_later_settle(struct efuse_conn *ec)
{
	if (ec->later_queue)
		flush_workqueue(ec->later_queue);
}

void efuse_later_free(struct efuse_conn *ec)
{
	if (ec->later_queue)
		destroy_workqueue(ec->later_queue);
}
