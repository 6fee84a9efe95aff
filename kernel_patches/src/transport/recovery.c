// SPDX-License-Identifier: GPL-2.0
/*
 * A connection outlives its daemon, if "recovery" is set: its state, and its requests meanwhile.
 *
 * The state is enum efuse_daemon. Each change of it is under the lock of the background queue
 * (bg_lock), like the end of the connection, so that no request of the background slips between.
 *
 *   serving   to dead: the last descriptor is closed
 *   dead      to starting: a process takes the mount over; INIT is sent to it (takeover.c)
 *   starting  to serving: the reply to INIT promises what callers rely on
 *   starting  to dead: the reply promises less, or the successor has died as well
 *   any       to the end of the connection, as on plain FUSE: abort, unmount, or the deadline
 *
 * No request that was sent to one daemon is read by the next one. When the last descriptor is
 * closed, the queues of the CPUs are emptied and held:
 *
 * - A request whose caller waits ends with EFUSE_LOST_UNREAD or EFUSE_LOST_READ, which no daemon
 *   can send. efuse_send() sees them, waits, and sends the same arguments again (again.c).
 * - A request in the background goes back to FUSE's own queue of the background, which is held. For
 *   FUSE it is still being sent: waiting for write-back goes on, and no page is lost.
 * - Interrupts are dropped with their requests. A request that is sent again is interrupted again,
 *   since the signal of its caller is still pending.
 * - FORGETs are dropped. The next daemon has answered none of the lookups that they count. It has
 *   declared that a nodeid stands for its inode for ever (stable_nodeids), so it needs no lookup
 *   counts to keep a nodeid alive, and it must accept FORGETs of more lookups than it has answered:
 *   the kernel goes on counting from where it was.
 */
#include "transport_i.h"

#include <linux/cred.h>
#include <linux/sched/signal.h>

/*
 * Does the connection outlive its daemon? Only if INIT was answered, and if the nodeids that the
 * kernel has mean the same to a successor. A daemon with io_uring has the requests in its own
 * rings, from which they cannot be taken back, and FUSE does not ask whether a ring belongs to a
 * successor that was refused.
 */
static bool efuse_recovers(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->recovery.seconds) &&
	       (READ_ONCE(ec->stable_nodeids) || READ_ONCE(ec->recovery.translates)) &&
	       READ_ONCE(ec->daemon_read) && efuse_connected(ec->fc) && !efuse_may_ring(ec->fc);
}

static void efuse_daemon_notify(struct efuse_conn *ec)
{
	sysfs_notify_dirent(ec->recovery.node);
}

/* The record of a daemon's end begins with the first request that is lost. Under bg_lock. */
static void efuse_record_begin(struct efuse_recovery *recovery)
{
	if (recovery->recording)
		return;
	recovery->recording = true;
	recovery->died_ns = 0;
	atomic_set(&recovery->lost, 0);
	atomic_set(&recovery->resent, 0);
	atomic_set(&recovery->settled, 0);
	atomic_set(&recovery->failed, 0);
}

/**
 * efuse_background_held - must requests of the background wait for a daemon?
 * @fc: connection
 *
 * Context: under bg_lock.
 * Return: true if so; false also if the connection has ended, so that they end, too
 */
bool efuse_background_held(const struct fuse_conn *fc)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	return ec && READ_ONCE(ec->recovery.held) && efuse_connected(fc);
}

/**
 * efuse_request_kept - a request ends because its daemon did
 * @req: the request; its error is EFUSE_LOST_UNREAD, EFUSE_LOST_READ or no valid one
 *
 * Context: that of fuse_request_end().
 * Return: true if the request is in the background and is sent again; it has not ended then.
 *         Otherwise the request is to end with its error, which is changed here if the request
 *         must not be sent again
 */
bool efuse_request_kept(struct fuse_req *req)
{
	struct fuse_conn *fc = efuse_sent_on(req);
	struct efuse_conn *ec = efuse_conn_get(fc);
	bool kept;

	if (!ec || !test_bit(FR_BACKGROUND, &req->flags))
		return false;
	if (!efuse_loses(ec) ||
	    (req->out.h.error != EFUSE_LOST_UNREAD && !efuse_repeatable(req->args))) {
		atomic_inc(&ec->recovery.failed);
		req->out.h.error = -EIO;
		return false;
	}
	efuse_room_restore(req->args);
	req->out.h.error = 0;
	set_bit(FR_PENDING, &req->flags);
	spin_lock(&efuse_chan(fc)->bg_lock);
	kept = efuse_connected(fc);
	if (kept) {
		list_add(&req->list, &efuse_chan(fc)->bg_queue);
		efuse_chan(fc)->active_background--;
		atomic_inc(&ec->recovery.resent);
		flush_bg_queue(efuse_chan(fc));
	}
	spin_unlock(&efuse_chan(fc)->bg_lock);
	if (!kept) {
		clear_bit(FR_PENDING, &req->flags);
		req->out.h.error = -ECONNABORTED;
	}
	return kept;
}

/*
 * The error of a request that no reader took, or could take. A daemon has read it before if it was
 * put back into its queue by a notification (FUSE_NOTIFY_RESEND).
 */
static int efuse_unread(const struct fuse_req *req)
{
	return req->in.h.unique & FUSE_UNIQUE_RESEND ? EFUSE_LOST_READ : EFUSE_LOST_UNREAD;
}

/**
 * efuse_copy_error - a copy between a request and the daemon's memory has failed
 * @req: the request
 * @replied: the copy was of the reply, not of the request
 *
 * Return: the error that the request ends with: -EIO, or that it is lost, if the copy failed
 *         because the daemon is being killed
 */
int efuse_copy_error(const struct fuse_req *req, bool replied)
{
	const struct efuse_conn *ec = efuse_conn_get(efuse_sent_on(req));

	if (!ec || !fatal_signal_pending(current) || !test_bit(FR_ISREPLY, &req->flags) ||
	    !efuse_recovers(ec))
		return -EIO;
	return replied ? EFUSE_LOST_READ : efuse_unread(req);
}

/*
 * End requests that a daemon has @read, or that none took. The replies to notifications have no use
 * any more.
 */
static void efuse_requests_lost(struct efuse_conn *ec, struct list_head *requests, bool read)
{
	struct fuse_req *req;
	int error;

	while (!list_empty(requests)) {
		req = list_first_entry(requests, struct fuse_req, list);
		error = read ? EFUSE_LOST_READ : efuse_unread(req);
		atomic_inc(&ec->recovery.lost);
		req->out.h.error = test_bit(FR_ISREPLY, &req->flags) ? error : -ECONNABORTED;
		clear_bit(FR_SENT, &req->flags);
		list_del_init(&req->list);
		fuse_request_end(req);
	}
}

/**
 * efuse_dev_lost - a descriptor is closed with requests that were read and not answered
 * @fc: connection
 * @fud: the descriptor
 * @requests: these requests; if they are not to fail, the list is empty on return
 *
 * The descriptor need not be the daemon's last one: a dying process closes them one after the
 * other. Others may still serve; then the requests are sent again immediately.
 *
 * Context: process context, may sleep.
 */
void efuse_dev_lost(struct fuse_conn *fc, struct fuse_dev *fud, struct list_head *requests)
{
	struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec || !efuse_recovers(ec))
		return;
	/* A successor may want a channel of its CPU as soon as the last descriptor is closed. */
	efuse_channel_close(fud);
	if (list_empty(requests))
		return;
	spin_lock(&efuse_chan(fc)->bg_lock);
	efuse_record_begin(&ec->recovery);
	spin_unlock(&efuse_chan(fc)->bg_lock);
	efuse_requests_lost(ec, requests, true);
}

/**
 * efuse_dev_leave - a descriptor that is being closed leaves its connection
 * @fc: connection
 * @fud: the descriptor
 *
 * It leaves the list of the connection's descriptors after its requests have ended, and what is
 * left in the list decides. fuse_conn.dev_count of Linux 6.12 would not do: a successor may come,
 * and be refused, before the list is as short as the count.
 *
 * Return: true if it was the last one. A refused successor's has left the connection before
 */
bool efuse_dev_leave(struct fuse_conn *fc, struct fuse_dev *fud)
{
	bool last = false;

	spin_lock(&efuse_chan(fc)->lock);
	if (!efuse_dev_detached(fud)) {
		list_del_init(&fud->entry);
		last = list_empty(&efuse_chan(fc)->devices);
	}
	spin_unlock(&efuse_chan(fc)->lock);
	return last;
}

/**
 * efuse_daemon_died - the last descriptor of a connection is closed
 * @fc: connection
 *
 * Context: process context, may sleep.
 * Return: true if the connection waits for a successor; false if it is to be aborted
 */
bool efuse_daemon_died(struct fuse_conn *fc)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	struct efuse_recovery *recovery;
	bool kept, first = false;
	LIST_HEAD(requests);

	if (!ec)
		return false;
	recovery = &ec->recovery;
	spin_lock(&efuse_chan(fc)->bg_lock);
	kept = efuse_recovers(ec);
	if (kept) {
		first = recovery->daemon == EFUSE_DAEMON_SERVING;
		WRITE_ONCE(recovery->daemon, EFUSE_DAEMON_DEAD);
		WRITE_ONCE(recovery->accepted, false);
		WRITE_ONCE(recovery->held, true);
		efuse_queues_hold(ec, &requests);
	}
	if (first) {
		efuse_record_begin(recovery);
		recovery->died_ns = ktime_get_boottime_ns();
		recovery->died_s = ktime_get_real_seconds();
		recovery->served_ns = 0;
		schedule_delayed_work(&recovery->deadline,
				      (unsigned long)READ_ONCE(recovery->seconds) * HZ);
	}
	spin_unlock(&efuse_chan(fc)->bg_lock);
	if (!kept)
		return false;
	efuse_requests_lost(ec, &requests, false);
	efuse_daemon_notify(ec);
	return true;
}

static bool efuse_waited(const struct efuse_conn *ec)
{
	/* Pairs with efuse_serve(): what it has done before is seen. */
	return smp_load_acquire(&ec->recovery.daemon) == EFUSE_DAEMON_SERVING ||
	       !efuse_connected(ec->fc);
}

/**
 * efuse_recovery_wait - wait until a daemon serves
 * @ec: connection
 * @killable: whether a caller that is being killed stops waiting
 *
 * Context: process context; the caller may hold locks of the VFS. It can be frozen.
 * Return: 0; -EINTR if the caller is being killed; -ENOTCONN if the connection has ended
 */
int efuse_recovery_wait(struct efuse_conn *ec, bool killable)
{
	unsigned int state = killable ? TASK_KILLABLE : TASK_IDLE;
	int err;

	/* An abort waits until the count is 0. */
	atomic_inc(&efuse_chan(ec->fc)->num_waiting);
	err = wait_event_state(ec->recovery.waitq, efuse_waited(ec),
			       (state | TASK_FREEZABLE_UNSAFE));
	if (atomic_dec_and_test(&efuse_chan(ec->fc)->num_waiting) && !efuse_connected(ec->fc))
		wake_up_all(&efuse_chan(ec->fc)->blocked_waitq);
	if (err)
		return -EINTR;
	return efuse_connected(ec->fc) ? 0 : -ENOTCONN;
}

/**
 * efuse_takeover_begin - a successor wants to take a connection over
 * @ec: connection
 *
 * Return: 0; -EBUSY if a daemon has a descriptor or another successor is starting; -ENOTCONN if the
 *         connection has ended
 */
int efuse_takeover_begin(struct efuse_conn *ec)
{
	struct efuse_recovery *recovery = &ec->recovery;
	int err = 0;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	if (!efuse_connected(ec->fc))
		err = -ENOTCONN;
	else if (recovery->daemon != EFUSE_DAEMON_DEAD)
		err = -EBUSY;
	if (!err) {
		WRITE_ONCE(recovery->daemon, EFUSE_DAEMON_STARTING);
		WRITE_ONCE(recovery->accepted, false);
		recovery->takeovers++;
	}
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (!err)
		efuse_daemon_notify(ec);
	return err;
}

/* Takes a descriptor from its connection. Under the lock of the connection's descriptors. */
static void efuse_dev_detach(struct fuse_dev *fud)
{
	spin_lock(&fud->pq.lock);
	fud->pq.connected = 0;
	spin_unlock(&fud->pq.lock);
	list_del_init(&fud->entry);
}

/**
 * efuse_dev_cloned - a descriptor was attached to the connection of another one
 * @fc: connection
 * @from: the other descriptor; if it was refused meanwhile, so is the new one
 * @to: the new descriptor
 */
void efuse_dev_cloned(struct fuse_conn *fc, const struct fuse_dev *from, struct fuse_dev *to)
{
	spin_lock(&efuse_chan(fc)->lock);
	if (efuse_dev_detached(from) && !efuse_dev_detached(to))
		efuse_dev_detach(to);
	spin_unlock(&efuse_chan(fc)->lock);
}

/**
 * efuse_takeover_end - a successor is refused, or has died before it answered INIT
 * @ec: connection
 * @takeover: number of the takeover
 *
 * The successor's descriptors do not belong to the connection any more.
 *
 * Context: process context.
 * Return: true if this takeover was going on
 */
bool efuse_takeover_end(struct efuse_conn *ec, u32 takeover)
{
	struct efuse_recovery *recovery = &ec->recovery;
	struct fuse_dev *fud, *next;
	bool ended;

	spin_lock(&efuse_chan(ec->fc)->lock);
	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	ended = recovery->daemon == EFUSE_DAEMON_STARTING && recovery->takeovers == takeover &&
		!recovery->accepted && efuse_connected(ec->fc);
	if (ended)
		WRITE_ONCE(recovery->daemon, EFUSE_DAEMON_DEAD);
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (ended) {
		list_for_each_entry_safe(fud, next, &efuse_chan(ec->fc)->devices, entry)
			efuse_dev_detach(fud);
	}
	spin_unlock(&efuse_chan(ec->fc)->lock);
	if (!ended)
		return false;
	efuse_queues_wake_all(ec->fc);
	efuse_daemon_notify(ec);
	return true;
}

/**
 * efuse_takeover_accept - the successor has answered INIT as callers need it
 * @ec: connection
 * @takeover: number of the takeover
 *
 * Context: process context; the daemon's write(2), so nothing here waits for the daemon.
 */
void efuse_takeover_accept(struct efuse_conn *ec, u32 takeover)
{
	struct efuse_recovery *recovery = &ec->recovery;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	if (recovery->daemon == EFUSE_DAEMON_STARTING && recovery->takeovers == takeover &&
	    efuse_connected(ec->fc)) {
		WRITE_ONCE(recovery->accepted, true);
		WRITE_ONCE(recovery->incarnation, recovery->incarnation + 1);
		efuse_queues_admit(ec);
		WRITE_ONCE(recovery->held, false);
		flush_bg_queue(efuse_chan(ec->fc));
		queue_work(system_unbound_wq, &recovery->serve);
	}
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
}

/* Is the connection to go on with a successor? Sets @takeover to its number. Under bg_lock. */
static bool efuse_serves(const struct efuse_recovery *recovery, u32 *takeover)
{
	*takeover = recovery->takeovers;
	return recovery->daemon == EFUSE_DAEMON_STARTING && recovery->accepted;
}

/*
 * The successor serves from now on.
 *
 * No daemon has told the kernel of changes by other clients since the last one died. In exclusive
 * mode there are no other clients. In other modes, what is known ends before callers go on. That
 * may wait for write-back, and this work for memory; so the requests of the background went on
 * before.
 *
 * If the successor dies meanwhile and another one is accepted, the work is queued again for that
 * one: there were changes by other clients between both.
 */
static void efuse_serve(struct work_struct *work)
{
	struct efuse_conn *ec = container_of(work, struct efuse_conn, recovery.serve);
	struct efuse_recovery *recovery = &ec->recovery;
	u32 first, takeover;
	bool serves;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	serves = efuse_serves(recovery, &first);
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (!serves)
		return;
	/* Another version may implement what the last one did not. */
	WRITE_ONCE(ec->no_terminals, false);
	if (READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE) {
		efuse_epoch_void(ec);
		efuse_timeouts_expire(ec->fc);
	}
	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	serves = efuse_serves(recovery, &takeover) && takeover == first;
	if (serves) {
		efuse_queues_open(ec);
		recovery->served_ns = ktime_get_boottime_ns();
		recovery->recording = false;
		/* Pairs with efuse_waited(). */
		smp_store_release(&recovery->daemon, EFUSE_DAEMON_SERVING);
		cancel_delayed_work(&recovery->deadline);
	}
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (!serves)
		return;
	wake_up_all(&recovery->waitq);
	efuse_polls_wake(ec->fc);
	efuse_daemon_notify(ec);
	if (recovery->translates)
		efuse_unresolved_start(ec);
}

/* No successor has come in time: the connection ends. */
static void efuse_deadline(struct work_struct *work)
{
	struct efuse_conn *ec = container_of(to_delayed_work(work), struct efuse_conn,
					     recovery.deadline);

	if (READ_ONCE(ec->recovery.daemon) != EFUSE_DAEMON_SERVING)
		efuse_abort(ec->fc);
}

/**
 * efuse_recovery_translate - from now on, FUSE gets numbers in place of the daemon's handles
 * @ec: connection
 *
 * Files that are open already keep the daemon's handles. With `stable_nodeids`, so do all files: a
 * successor may get the nodeids and handles of the first daemon.
 */
void efuse_recovery_translate(struct efuse_conn *ec)
{
	if (READ_ONCE(ec->stable_nodeids))
		return;
	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	WRITE_ONCE(ec->recovery.translates, true);
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
}

/**
 * efuse_recovery_set - set how long callers wait for a successor
 * @ec: connection
 * @seconds: the time since the daemon's end; 0: the connection ends with its daemon
 *
 * If callers are waiting, the time counts for them, too.
 *
 * Return: 0, or -EOPNOTSUPP if the daemon has negotiated io_uring
 */
int efuse_recovery_set(struct efuse_conn *ec, u32 seconds)
{
	struct efuse_recovery *recovery = &ec->recovery;
	s64 left;

	if (seconds && efuse_may_ring(ec->fc))
		return -EOPNOTSUPP;
	/* First: FUSE needs handles that another daemon can be asked for. */
	if (seconds)
		efuse_recovery_translate(ec);
	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	WRITE_ONCE(recovery->seconds, seconds);
	if (recovery->daemon != EFUSE_DAEMON_SERVING) {
		left = (s64)seconds * MSEC_PER_SEC -
		       (s64)div_u64(ktime_get_boottime_ns() - recovery->died_ns, NSEC_PER_MSEC);
		mod_delayed_work(system_wq, &recovery->deadline,
				 msecs_to_jiffies(clamp_t(s64, left, 0, INT_MAX)));
	}
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	return 0;
}

/* Prepares the recovery of a new connection. */
void efuse_recovery_add(struct efuse_conn *ec)
{
	init_waitqueue_head(&ec->recovery.waitq);
	INIT_DELAYED_WORK(&ec->recovery.deadline, efuse_deadline);
	INIT_WORK(&ec->recovery.serve, efuse_serve);
	ec->recovery.cred = get_current_cred();
	efuse_moves_add(ec);
	efuse_nodeids_add(ec);
	efuse_handles_add(ec);
	efuse_locks_add(ec);
	efuse_unresolved_add(ec);
}

/* A connection is unmounted: no successor comes any more. May sleep. */
void efuse_recovery_settle(struct efuse_conn *ec)
{
	cancel_delayed_work_sync(&ec->recovery.deadline);
	cancel_work_sync(&ec->recovery.serve);
	efuse_unresolved_settle(ec);
}

/* Frees what a connection needed for recovery, after the last reference to it is gone. */
void efuse_recovery_free(struct efuse_conn *ec)
{
	efuse_handles_free(ec);
	efuse_locks_free(ec);
	efuse_nodeids_free(ec);
	put_cred(ec->recovery.cred);
}
