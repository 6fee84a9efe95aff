// SPDX-License-Identifier: GPL-2.0
/*
 * Workers for write-back WRITEs, which FUSE sends under a spinlock. They carry out the WRITEs that
 * backing files may take, and those that are too large for the daemon.
 *
 * For FUSE these WRITEs have been sent: waiting for write-back waits for them, and an unmount waits
 * until they are answered.
 *
 * Each WRITE is a work item of its own, so that a WRITE that waits for its backing file does not
 * hold up others. FUSE never has two WRITEs of the same page in flight, so their order does not
 * matter. Each connection that needs workers has a workqueue with its own rescuer: a WRITE into a
 * file of another eFuse mount may wait for the workers of that mount.
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

/* Does what fuse_drop_waiting() does: an abort waits until the count is 0. */
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

	/*
	 * Write-back to a backing file turns dirty pages into dirty pages. Throttle this task only
	 * by those of the device below, not by all dirty pages.
	 */
	current->flags |= PF_LOCAL_THROTTLE;
	efuse_background_now(efuse_conn_get(fc), fm, args);
	/* @args, which contains @work, may be freed by now. */
	efuse_later_done(fc);
	current_restore_flags(flags, PF_LOCAL_THROTTLE);
	memalloc_nofs_restore(nofs);
}

/**
 * efuse_later - hand a background WRITE to a worker, which can sleep
 * @ec: connection
 * @fm: mount
 * @args: the request
 * @gfp_flags: GFP_KERNEL if the sender can sleep; then no worker is needed
 *
 * Context: any that may take a spinlock.
 * Return: true if a worker carries the request out and calls args->end()
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
 * efuse_later_prepare - create the connection's workqueue before a WRITE needs it
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

/*
 * Waits for the workers of an unmounted connection. Its requests are answered, but a worker may
 * still be returning.
 */
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
