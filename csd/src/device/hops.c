// SPDX-License-Identifier: GPL-2.0
/*
 * Hops: one request that reads a block, and then, from the completion of that read, the block that
 * the first one names, and so on.
 *
 * To the device each hop is an ordinary read of the host: it takes the time of the medium and the
 * link, can be held, and can fail. What is saved is the host's time, for the way up to the reader
 * and down again.
 *
 * Sending the next read from the driver's completion, with a program that finds it, is taken from
 * XRP (Zhong et al., OSDI 2022).
 */
#include "device_i.h"

static struct csd_hops *csd_hops_of(struct csd_request *request)
{
	return request->work.hops;
}

/* Reads the next block. Returns the time at which it arrives. */
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

/*
 * Handles a block that has arrived. True: another block has to be read now. False: the request has
 * ended, or is held.
 */
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
		if (!csd_request_fails(request->device))
			return true;
		status = BLK_STS_IOERR;
	}
	blk_mq_end_request(rq, status);
	return false;
}

/**
 * csd_hops_go - read blocks until one takes time to arrive
 * @rq: request of hops
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
 * csd_hops_due - handle a block whose time of arrival has come, and go on
 * @rq: request of hops
 *
 * Context: any.
 */
void csd_hops_due(struct request *rq)
{
	if (csd_hops_next(rq))
		csd_hops_go(rq);
}

/**
 * csd_hops_run - read blocks, each of which names the next
 * @bdev: the device's block device, a whole disk or a partition
 * @hops: the hops; the device does not use them any more when this returns
 *
 * A signal ends the hops. The block that is just being read then does not arrive.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; see csd_command_run()
 */
int csd_hops_run(struct block_device *bdev, struct csd_hops *hops)
{
	return csd_work_send(bdev, NULL, hops);
}
