// SPDX-License-Identifier: GPL-2.0
/* Sends a request again whose daemon has ended before the reply. */
#include "transport_i.h"

#include <linux/sched.h>

/*
 * Is it useless to send the request again? It is for a file system that ends, for a FORGET, and for
 * the FLUSH of a file that a successor would have to open first: it has nothing to flush. It is,
 * too, for the FLUSH of a process that exits, if the file has no locks, which a FLUSH also ends. No
 * signal would end the wait of that process, and no program sees the result of its FLUSH.
 */
static bool efuse_again_useless(const struct efuse_req *req, ssize_t *ret)
{
	const struct fuse_args *args = req->args;

	switch (args->opcode) {
	case FUSE_DESTROY:
		*ret = -ENOTCONN;
		return true;
	case FUSE_FORGET:
		*ret = 0;
		return true;
	case FUSE_FLUSH:
		if (efuse_translates(req->ec)) {
			/* A successor that comes later does not hear of these locks. */
			efuse_locks_end(req->ec, args);
			*ret = 0;
			return efuse_daemon_absent(req->ec);
		}
		*ret = -EINTR;
		return current->flags & PF_EXITING && !args->efuse.locked;
	default:
		return false;
	}
}

/*
 * Must the request be sent again also if the caller is being killed? The FLUSH of a file that is
 * closed ends the owner's locks, and no later request does: the process has the file no more.
 */
static bool efuse_again_certain(const struct fuse_args *args)
{
	return args->opcode == FUSE_FLUSH && args->efuse.locked;
}

static ssize_t efuse_once_more(struct efuse_req *req, struct mnt_idmap *idmap)
{
	atomic_inc(&req->ec->recovery.resent);
	efuse_room_restore(req->args);
	return efuse_ask_daemon(idmap, req->fm, req->args);
}

/* A request that was perhaps carried out. Returns as __fuse_simple_request() does. */
static ssize_t efuse_unsure(struct efuse_req *req, struct mnt_idmap *idmap)
{
	ssize_t ret;

	switch (efuse_settle(req, &ret)) {
	case EFUSE_NOT_DONE:
		return efuse_once_more(req, idmap);
	case EFUSE_DONE:
		atomic_inc(&req->ec->recovery.settled);
		return ret;
	case EFUSE_LOST_AGAIN:
		return ret;
	default:
		return -EIO;
	}
}

/**
 * efuse_send_again - a request was lost: wait for a daemon, and send it again
 * @req: the request
 * @idmap: the mount's idmap, for __fuse_simple_request()
 * @ret: EFUSE_LOST_UNREAD or EFUSE_LOST_READ
 *
 * The request's changes stay begun all the time, so that nothing is answered from before them.
 *
 * Context: process context, may sleep.
 * Return: what __fuse_simple_request() returns
 */
ssize_t efuse_send_again(struct efuse_req *req, struct mnt_idmap *idmap, ssize_t ret)
{
	struct efuse_recovery *recovery = &req->ec->recovery;
	bool read = false;
	ssize_t useless;
	int err;

	while (efuse_lost(ret)) {
		if (!efuse_loses(req->ec))
			return -EIO;
		read |= ret != EFUSE_LOST_UNREAD;
		if (efuse_again_useless(req, &useless))
			return useless;
		err = efuse_recovery_wait(req->ec, !efuse_again_certain(req->args));
		if (err) {
			atomic_inc(&recovery->failed);
			return err;
		}
		if (!read || efuse_repeatable(req->args)) {
			ret = efuse_once_more(req, idmap);
			continue;
		}
		ret = efuse_unsure(req, idmap);
		if (ret == -EIO)
			atomic_inc(&recovery->failed);
	}
	return ret;
}
