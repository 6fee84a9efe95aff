// SPDX-License-Identifier: GPL-2.0
/*
 * Requests of the background that were kept out of FUSE's queue, and go back there, or end. RELEASE
 * is one, while a successor is being told of the locks of its file.
 */
#include "transport_i.h"

/**
 * efuse_background_fail - end a request of the background that is in no queue
 * @ec: connection
 * @req: the request
 *
 * Context: process context, without locks.
 */
void efuse_background_fail(struct efuse_conn *ec, struct fuse_req *req)
{
	if (!efuse_closes(req->args))
		atomic_inc(&ec->recovery.failed);
	/* For FUSE a request that ends was being sent. */
	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	efuse_chan(ec->fc)->active_background++;
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	req->out.h.error = efuse_closes(req->args) ? 0 : -EIO;
	clear_bit(FR_PENDING, &req->flags);
	fuse_request_end(req);
}

/**
 * efuse_background_return - give a request back to FUSE's queue of the background
 * @ec: connection
 * @req: the request
 *
 * Context: any that may take a spinlock.
 * Return: false if the connection has ended: its queues are closed, and would end the request under
 *	   bg_lock
 */
bool efuse_background_return(struct efuse_conn *ec, struct fuse_req *req)
{
	bool returned;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	returned = efuse_connected(ec->fc);
	if (returned) {
		list_add(&req->list, &efuse_chan(ec->fc)->bg_queue);
		flush_bg_queue(efuse_chan(ec->fc));
	}
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	return returned;
}

/**
 * efuse_closes_later - must a RELEASE wait, because a successor is being told of a lock?
 * @ec: connection
 * @req: a request of the background
 *
 * Telling it would open the file again after its end, by a handle that is freed meanwhile.
 *
 * Context: under bg_lock.
 * Return: true if it must; efuse_background_closes() gives it back to its queue
 */
bool efuse_closes_later(struct efuse_conn *ec, struct fuse_req *req)
{
	struct efuse_handle *handle;

	handle = efuse_closes(req->args) ? efuse_handle_find(ec, efuse_arg_fh(req->args)) : NULL;
	if (!handle || !READ_ONCE(handle->told))
		return false;
	handle->closing = req;
	return true;
}

/**
 * efuse_background_closes - a successor was told of a lock of a file, which may be closed now
 * @ec: connection
 * @handle: the file; may be freed on return
 *
 * Context: process context.
 */
void efuse_background_closes(struct efuse_conn *ec, struct efuse_handle *handle)
{
	struct fuse_req *req;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	req = handle->closing;
	handle->closing = NULL;
	WRITE_ONCE(handle->told, false);
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (req && !efuse_background_return(ec, req))
		efuse_background_fail(ec, req);
}
