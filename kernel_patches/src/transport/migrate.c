// SPDX-License-Identifier: GPL-2.0
/*
 * Replies that FUSE would reject.
 *
 * A daemon may reply on another descriptor than the one that delivered the request. FUSE finds no
 * such request and rejects the reply. eFuse looks for the request on the connection's other
 * descriptors, so that a daemon with one channel per worker may reply from any thread.
 */
#include "transport_i.h"

/* Takes the unanswered request with this number out of the table of @fud. NULL: not there. */
static struct fuse_req *efuse_request_extract(struct fuse_dev *fud, u64 unique, u32 hash)
{
	struct fuse_pqueue *fpq = &fud->pq;
	struct fuse_req *req, *found = NULL;

	spin_lock(&fpq->lock);
	list_for_each_entry(req, &fpq->processing[hash], list) {
		if (req->in.h.unique == unique) {
			list_del_init(&req->list);
			found = req;
			break;
		}
	}
	spin_unlock(&fpq->lock);
	return found;
}

/**
 * efuse_request_migrate - move a request to the descriptor on which its reply arrived
 * @fud: the descriptor that got the reply
 * @unique: the request's number
 * @hash: the request's index in the hash tables of struct fuse_pqueue
 *
 * Context: any, without locks.
 * Return: true if another descriptor of the connection had the request; @fud has it now
 */
bool efuse_request_migrate(struct fuse_dev *fud, u64 unique, u32 hash)
{
	struct fuse_conn *fc = efuse_dev_conn(fud);
	struct fuse_req *req = NULL;
	struct fuse_dev *other;

	if (!efuse_conn_get(fc))
		return false;
	/*
	 * Exclude an abort, which would miss a request that is in neither table. A refused
	 * successor gets no requests.
	 */
	spin_lock(&efuse_chan(fc)->lock);
	if (efuse_dev_detached(fud)) {
		spin_unlock(&efuse_chan(fc)->lock);
		return false;
	}
	list_for_each_entry(other, &efuse_chan(fc)->devices, entry) {
		if (other != fud)
			req = efuse_request_extract(other, unique, hash);
		if (req)
			break;
	}
	if (req) {
		spin_lock(&fud->pq.lock);
		list_add_tail(&req->list, &fud->pq.processing[hash]);
		spin_unlock(&fud->pq.lock);
	}
	spin_unlock(&efuse_chan(fc)->lock);
	return req;
}

/**
 * efuse_reply_refused - is the error of a reply outside the range that FUSE accepts?
 * @fc: connection
 * @oh: the reply's header; its error becomes -EIO if the request is to be ended here
 * @nbytes: size of the reply in bytes; becomes 0 if the request is to be ended here
 *
 * FUSE refuses such a reply and waits for a valid one, which does not come: the caller of the
 * request blocks and cannot even be killed. eFuse ends the request with EIO instead. The daemon's
 * write(2) fails with EINVAL, as for a truncated reply.
 *
 * Return: true if FUSE is to refuse the reply. False if it is to process the reply: either the
 *         error was valid, or it is -EIO now and *@nbytes is 0, which makes write(2) fail.
 */
bool efuse_reply_refused(const struct fuse_conn *fc, struct fuse_out_header *oh, size_t *nbytes)
{
	if (oh->error > -512 && oh->error <= 0)
		return false;
	/* No caller waits for the reply to an interrupt. CUSE has no struct efuse_conn. */
	if (oh->unique & 1 || !efuse_conn_get(fc))
		return true;
	oh->error = -EIO;
	*nbytes = 0;
	return false;
}
