// SPDX-License-Identifier: GPL-2.0
/*
 * Hops: one request that reads a block, and then, from the completion of that, the one that the
 * block says is next.
 *
 * To the device each hop is a read of the host's: it takes the medium's and the link's time, may be
 * held, and may fail. What it saves is the host's: the way up to the reader and down again.
 *
 * That the driver sends the next read from its completion, with a program that looks for it, is
 * from XRP (Zhong et al., OSDI 2022).
 */
#include "csd_i.h"

static struct csd_hops *csd_hops_of(struct csd_request *request)
{
	return request->work.hops;
}

/* Read the block, and return when it is there. */
static u64 csd_hops_read(struct csd_request *request)
{
	struct csd_device *device = request->device;
	struct csd_hops *hops = csd_hops_of(request);
	struct csd_range range = { .sector = hops->sector, .bytes = CSD_BLOCK_SIZE };
	u64 now = ktime_get_ns();

	request->work.error = csd_work_check(&request->work, &range);
	if (request->work.error)
		return now;
	atomic64_inc(&device->reads);
	csd_memory_read(&device->memory,
			request->work.start + ((u64)hops->sector << SECTOR_SHIFT), hops->data,
			CSD_BLOCK_SIZE);
	return csd_model_read(&device->model, now, CSD_BLOCK_SIZE);
}

/* The block has arrived. Is another to be read now? Else the request has ended, or is held. */
static bool csd_hops_next(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);
	blk_status_t status = BLK_STS_OK;
	int err = csd_work_stopped(&request->work);

	if (err == -ENODEV) {
		status = BLK_STS_OFFLINE;
	} else if (err) {
		request->work.error = err;
	} else if (!request->work.error && csd_hops_of(request)->arrived(csd_hops_of(request))) {
		if (csd_request_hold(request->device, rq))
			return false;
		if (!csd_device_fails(request->device))
			return true;
		status = BLK_STS_IOERR;
	}
	blk_mq_end_request(rq, status);
	return false;
}

/**
 * csd_hops_go - go on with the next block
 * @rq: hops
 *
 * Context: any; rcu_read_lock() may be held.
 */
void csd_hops_go(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	do {
		request->status = BLK_STS_OK;
		if (csd_request_wait(rq, csd_hops_read(request)))
			return;
	} while (csd_hops_next(rq));
}

/**
 * csd_hops_due - it was time for the block that was read last
 * @rq: hops
 *
 * Context: any.
 */
void csd_hops_due(struct request *rq)
{
	if (csd_hops_next(rq))
		csd_hops_go(rq);
}

/**
 * csd_hops_run - read blocks, each of which says which is next
 * @bdev: of the device, all or a part
 * @hops: what; the device does not touch it any more when this returns
 *
 * A signal ends it behind the block that is just being read, which has not arrived then.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; see csd_command_run()
 */
int csd_hops_run(struct block_device *bdev, struct csd_hops *hops)
{
	return csd_work_send(bdev, NULL, hops);
}
