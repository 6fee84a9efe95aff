// SPDX-License-Identifier: GPL-2.0
/*
 * Requests of the background that were kept out of FUSE's queue, and go back there, or end.
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
