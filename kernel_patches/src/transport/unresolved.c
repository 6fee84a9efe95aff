// SPDX-License-Identifier: GPL-2.0
/*
 * Requests of the background, which get the nodeids and handles of the present daemon when they
 * leave FUSE's queue of the background. If the daemon has to be asked for them first, a work item
 * does that.
 *
 * The daemon's nodeid is put into the header that is sent; args->nodeid stays the kernel's.
 */
#include "transport_i.h"

#include <linux/workqueue.h>

/* Write-back waits for this work, so it must go on without memory for another worker. */
static struct workqueue_struct *efuse_unresolved_queue;

/* Gives a request FUSE's handle back. */
static void efuse_background_restore(struct fuse_args *args)
{
	u64 *handle = efuse_place_fh(args);

	if (args->efuse.serial && handle)
		*handle = args->efuse.handle;
	args->efuse.serial = 0;
}

/**
 * efuse_background_issued - a request of the background is about to be queued
 * @ec: connection
 * @args: the request
 *
 * The locks of a file that is closed are not told to a successor any more.
 *
 * Context: any that may take a spinlock.
 */
void efuse_background_issued(struct efuse_conn *ec, const struct fuse_args *args)
{
	if (efuse_closes(args))
		efuse_locks_end(ec, args);
}

/**
 * efuse_background_ended - a request of the background has ended, whether it was sent or not
 * @ec: connection
 * @args: the request, which gets FUSE's handle back
 *
 * Context: any.
 */
void efuse_background_ended(struct efuse_conn *ec, struct fuse_args *args)
{
	efuse_background_restore(args);
	if (efuse_closes(args))
		efuse_handle_released(ec, efuse_arg_fh(args));
}

/**
 * efuse_background_unready - a request leaves FUSE's queue of the background
 * @req: the request
 *
 * Translates it, if it can be done without asking the daemon.
 *
 * Context: under bg_lock.
 * Return: true if the request must not be sent yet; it comes back to the queue
 */
bool efuse_background_unready(struct fuse_req *req)
{
	struct efuse_conn *ec = efuse_conn_get(efuse_sent_on(req));
	struct fuse_args *args = req->args;
	struct efuse_file_id missing;
	struct efuse_file_ids ids;
	u64 *handle;
	u32 incarnation;

	if (!ec || !efuse_translates(ec) || !args->nodeid)
		return false;
	/* What it was translated for before must not count: at the end no queue refuses it. */
	efuse_background_restore(args);
	if (efuse_closes_later(ec, req))
		return true;
	if (!efuse_connected(ec->fc))
		return false;
	efuse_ids_get(args, &ids);
	incarnation = ec->recovery.incarnation;
	handle = efuse_place_fh(args);
	args->efuse.handle = ids.file.handle;
	if (efuse_ids_translate(ec, &ids, incarnation, &missing) != EFUSE_FOUND) {
		list_add_tail(&req->list, &ec->recovery.unresolved);
		queue_work(efuse_unresolved_queue, &ec->recovery.resolve);
		return true;
	}
	req->in.h.nodeid = ids.file.nodeid;
	if (handle)
		*handle = ids.file.handle;
	args->efuse.serial = incarnation + 1;
	return false;
}

/* Asks the daemon for what a request needs. Returns 0 or a negative errno. */
static ssize_t efuse_background_find(struct efuse_conn *ec, struct fuse_req *req)
{
	struct fuse_mount *fm = req->args->efuse.fm;
	struct efuse_file_id missing;
	enum efuse_found found;
	struct efuse_file_ids ids;
	ssize_t ret;

	do {
		efuse_ids_get(req->args, &ids);
		found = efuse_ids_translate(ec, &ids, READ_ONCE(ec->recovery.incarnation),
					    &missing);
		if (found == EFUSE_FOUND)
			return 0;
		/* This daemon has not opened the file, so there is nothing to close. */
		if (efuse_closes(req->args))
			return -ENOENT;
		ret = efuse_ids_find(fm, ec, found, &missing);
	} while (!ret);
	return ret;
}

static struct fuse_req *efuse_unresolved_first(struct efuse_conn *ec)
{
	struct fuse_req *req;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	req = list_first_entry_or_null(&ec->recovery.unresolved, struct fuse_req, list);
	if (req)
		list_del_init(&req->list);
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	return req;
}

static void efuse_unresolved_work(struct work_struct *work)
{
	struct efuse_conn *ec = container_of(work, struct efuse_conn, recovery.resolve);
	struct fuse_req *req;
	ssize_t ret;

	/* Also if no caller locks anything. */
	if (READ_ONCE(ec->recovery.locks.nr))
		efuse_locks_again(ec);
	while ((req = efuse_unresolved_first(ec))) {
		ret = efuse_background_find(ec, req);
		if ((ret && !efuse_lost(ret)) || !efuse_background_return(ec, req))
			efuse_background_fail(ec, req);
	}
}

/* Prepares the background of a new connection. */
void efuse_unresolved_add(struct efuse_conn *ec)
{
	INIT_LIST_HEAD(&ec->recovery.unresolved);
	INIT_WORK(&ec->recovery.resolve, efuse_unresolved_work);
}

/**
 * efuse_unresolved_start - a successor serves
 * @ec: connection
 */
void efuse_unresolved_start(struct efuse_conn *ec)
{
	queue_work(efuse_unresolved_queue, &ec->recovery.resolve);
}

/* A connection is unmounted. May sleep. */
void efuse_unresolved_settle(struct efuse_conn *ec)
{
	flush_work(&ec->recovery.resolve);
}

/* Module. */

int efuse_unresolved_init(void)
{
	efuse_unresolved_queue = alloc_workqueue("efuse_resolve", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return efuse_unresolved_queue ? 0 : -ENOMEM;
}

void efuse_unresolved_exit(void)
{
	destroy_workqueue(efuse_unresolved_queue);
}
