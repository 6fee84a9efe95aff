// SPDX-License-Identifier: GPL-2.0
/*
 * Requests in the background, whose answers are passed to args->end().
 *
 * Write-back WRITEs, which FUSE sends under a spinlock, are deferred to workers. The workers carry
 * out the WRITEs that backing files may take, and those that are too large for the daemon.
 *
 * For FUSE these WRITEs have been sent: waiting for write-back waits for them, and an unmount waits
 * until they are answered.
 *
 * Each WRITE is a work item of its own, so that a WRITE that waits for its backing file does not
 * hold up others. Their order does not matter: FUSE never has two of the same page in flight, and
 * no task stores to a page while the WRITE of a write(2) holds it (see cache/page_stores.c). The
 * workqueue is made by io/deferred.c.
 */
#include "efuse_i.h"
#include "core/trace.h"

#include <linux/sched/mm.h>
#include <linux/workqueue.h>

/*
 * Tries to carry out a background READ or WRITE in the kernel, if its sender may sleep. Returns
 * whether args->end() was or will be called.
 */
static bool efuse_background_taken(struct efuse_conn *ec, struct fuse_mount *fm,
				   struct fuse_args *args, gfp_t gfp_flags)
{
	struct efuse_req req __uninitialized;

	if (gfp_flags != GFP_KERNEL || !efuse_is_io(args) ||
	    !READ_ONCE(efuse_chan(fm->fc)->initialized) || !efuse_connected(fm->fc)) {
		args->efuse.reason = EFUSE_NO_HANDLER;
		efuse_count(ec, args->opcode, EFUSE_NO_HANDLER);
		return false;
	}
	efuse_req_init(&req, ec, fm, args);
	if (!efuse_passed(&req, EFUSE_NO_HANDLER)) {
		/* The parts are waited for, so only a request that is too large is split. */
		if (efuse_arg_size(args) <= efuse_daemon_limit(&req))
			return efuse_split_needed(&req) && efuse_split_background(&req);
		efuse_split_all(&req);
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	}
	trace_efuse_request(&req, req.ret);
	efuse_args_end(fm, args, min_t(ssize_t, req.ret, 0));
	return true;
}

/**
 * efuse_background_now - carry out a background request that efuse_defer() took
 * @ec: connection
 * @fm: mount
 * @args: the request; may be freed once args->end() was called
 *
 * Context: process context, may sleep, but memory reclaim must not enter a file system.
 */
static void efuse_background_now(struct efuse_conn *ec, struct fuse_mount *fm,
				 struct fuse_args *args)
{
	int err;

	if (efuse_background_taken(ec, fm, args, GFP_KERNEL))
		return;
	err = efuse_background_send(ec, fm, args, GFP_NOFS | __GFP_NOFAIL);
	if (err)
		efuse_args_end(fm, args, err);
}

static bool efuse_defer_wanted(struct efuse_conn *ec, const struct fuse_args *args)
{
	if (efuse_arg_size(args) > ec->daemon_write)
		return true;
	return efuse_path_backed(ec) && xa_load(&ec->backed, args->nodeid);
}

/* Does what fuse_drop_waiting() does: an abort waits until the count is 0. */
static void efuse_deferred_done(struct fuse_conn *fc)
{
	if (atomic_dec_and_test(&efuse_chan(fc)->num_waiting) && !efuse_connected(fc))
		wake_up_all(&efuse_chan(fc)->blocked_waitq);
}

static void efuse_deferred_work(struct work_struct *work)
{
	struct fuse_args *args = container_of(work, struct fuse_args, efuse.deferred);
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
	efuse_deferred_done(fc);
	current_restore_flags(flags, PF_LOCAL_THROTTLE);
	memalloc_nofs_restore(nofs);
}

/**
 * efuse_defer - hand a background WRITE to a worker, which can sleep
 * @ec: connection
 * @fm: mount
 * @args: the request
 * @gfp_flags: GFP_KERNEL if the sender can sleep; then no worker is needed
 *
 * Context: any that may take a spinlock.
 * Return: true if a worker carries the request out and calls args->end()
 */
static bool efuse_defer(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			gfp_t gfp_flags)
{
	/* Pairs with efuse_deferred_prepare(). */
	struct workqueue_struct *queue = smp_load_acquire(&ec->deferred_queue);

	if (args->opcode != FUSE_WRITE || gfp_flags == GFP_KERNEL || !queue ||
	    !efuse_connected(fm->fc) || !efuse_defer_wanted(ec, args))
		return false;
	atomic_inc(&efuse_chan(fm->fc)->num_waiting);
	args->efuse.fm = fm;
	INIT_WORK(&args->efuse.deferred, efuse_deferred_work);
	queue_work(queue, &args->efuse.deferred);
	return true;
}

/**
 * fuse_simple_background - start a request whose answer is passed to args->end()
 * @fm: mount
 * @args: the request; must stay valid until args->end()
 * @gfp_flags: for the request's memory; GFP_KERNEL also tells that the sender may sleep
 *
 * Return: 0 or a negative errno; args->end() is called only after 0
 */
int fuse_simple_background(struct fuse_mount *fm, struct fuse_args *args, gfp_t gfp_flags)
{
	struct efuse_conn *ec = efuse_conn_get(fm->fc);

	if (!ec)
		return __fuse_simple_background(fm, args, gfp_flags);

	efuse_begin(args);
	efuse_count(ec, args->opcode, EFUSE_REQUESTS);
	if (efuse_local_release(ec, args)) {
		efuse_released(ec, fm, args);
		efuse_args_end(fm, args, 0);
		return 0;
	}

	if (efuse_defer(ec, fm, args, gfp_flags) ||
	    efuse_background_taken(ec, fm, args, gfp_flags))
		return 0;
	return efuse_background_send(ec, fm, args, gfp_flags);
}

/**
 * efuse_background_end - handle the answer of a background request
 * @freq: the request
 * @error: the daemon's answer, 0 or a negative errno
 *
 * Context: that of fuse_request_end(): the daemon's write(2), or the task that aborts
 */
void efuse_background_end(struct fuse_req *freq, int error)
{
	struct fuse_args *args = freq->args;
	struct efuse_conn *ec = efuse_conn_get(efuse_sent_on(freq));
	struct efuse_changes ch __uninitialized;
	struct efuse_req req __uninitialized;

	/* INIT is not issued by eFuse, which joins the connection later. */
	if (!ec || !args->efuse.epoch)
		return;
	if (unlikely(efuse_translates(ec)))
		efuse_background_ended(ec, args);
	efuse_req_init(&req, ec, args->efuse.fm, args);
	req.sent = &freq->in.h;
	req.error = error;
	efuse_changes_of(&ch, args);
	efuse_replied(&req, &ch);
	if (efuse_is_io(args))
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	trace_efuse_request(&req, error);
}
