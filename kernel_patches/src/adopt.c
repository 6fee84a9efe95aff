// SPDX-License-Identifier: GPL-2.0
/*
 * Replies that FUSE makes nothing of.
 *
 * Replies on another descriptor than the one that brought the request. In FUSE such a
 * reply finds nothing. A daemon whose workers have a channel each, and who answers from
 * yet another thread, need not know which worker it was.
 */
#include "efuse_i.h"

/* The request of that number that @fud has brought and nobody has answered, no longer there. */
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
 * efuse_request_adopt - make a request one that a descriptor may answer
 * @fud: the descriptor
 * @unique: the request's number
 * @hash: where it stands in the tables of requests
 *
 * Context: any, without locks.
 * Return: whether another descriptor of the connection had it
 */
bool efuse_request_adopt(struct fuse_dev *fud, u64 unique, u32 hash)
{
	struct fuse_conn *fc = efuse_dev_conn(fud);
	struct fuse_req *req = NULL;
	struct fuse_dev *other;

	if (!efuse_conn_get(fc))
		return false;
	/* Against who aborts, which would not see a request between two tables. */
	spin_lock(&efuse_chan(fc)->lock);
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
 * efuse_reply_refused - is a reply's error none that a request can have?
 * @fc: connection
 * @oh: the reply's head
 * @nbytes: of the reply
 *
 * FUSE refuses such a reply and waits for another, which does not come: its caller cannot
 * even be killed. Here the request ends with EIO, and the daemon is told that its reply
 * was none (EINVAL), as with a reply that is cut short.
 *
 * Return: whether nothing more is to be done; @nbytes is what no reply has otherwise
 */
bool efuse_reply_refused(const struct fuse_conn *fc, struct fuse_out_header *oh, size_t *nbytes)
{
	if (oh->error > -512 && oh->error <= 0)
		return false;
	/* An interrupt has no caller. CUSE is none of ours. */
	if (oh->unique & 1 || !efuse_conn_get(fc))
		return true;
	oh->error = -EIO;
	*nbytes = 0;
	return false;
}
