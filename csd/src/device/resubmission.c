// SPDX-License-Identifier: GPL-2.0
/*
 * Resubmission: one request reads a block, and then, from the completion of that read, the block
 * that the first one names, and so on.
 *
 * To the device each of these reads is an ordinary read of the host: it takes the time of the
 * medium and the link, can be held, and can fail. What is saved is the host's time, for the way up
 * to the reader and down again.
 *
 * The word, and sending the next read from the driver's completion with a program that finds it,
 * are XRP's (Zhong et al., OSDI 2022).
 */
#include "device_i.h"

static struct csd_resubmission *csd_resubmission_of(struct csd_request *request)
{
	return request->work.resubmission;
}

/* Reads the next block. Returns the time at which it arrives. */
static u64 csd_resubmission_read(struct csd_request *request)
{
	struct csd_device *device = request->device;
	struct csd_resubmission *resubmission = csd_resubmission_of(request);
	struct csd_range range = { .sector = resubmission->sector, .bytes = CSD_BLOCK_SIZE };
	u64 now = ktime_get_ns();

	request->work.error = csd_work_check(&request->work, &range);
	if (request->work.error)
		return now;
	atomic64_inc(&device->reads);
	csd_memory_read(&device->memory,
			request->work.start + ((u64)resubmission->sector << SECTOR_SHIFT),
			resubmission->data, CSD_BLOCK_SIZE);
	return csd_model_read(&device->model, now, CSD_BLOCK_SIZE);
}

/*
 * Handles a block that has arrived. True: another block has to be read now. False: the request has
 * ended, or is held.
 */
static bool csd_resubmission_next(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);
	struct csd_resubmission *resubmission = csd_resubmission_of(request);
	blk_status_t status = BLK_STS_OK;
	int err = csd_work_stopped(&request->work);

	if (err == -ENODEV) {
		status = BLK_STS_OFFLINE;
	} else if (err) {
		request->work.error = err;
	} else if (!request->work.error && resubmission->arrived(resubmission)) {
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
 * csd_resubmission_start - read blocks until one takes time to arrive
 * @rq: request of a resubmission
 *
 * Context: any; rcu_read_lock() may be held.
 */
void csd_resubmission_start(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	do {
		request->status = BLK_STS_OK;
		if (csd_request_wait(rq, csd_resubmission_read(request)))
			return;
	} while (csd_resubmission_next(rq));
}

/**
 * csd_resubmission_due - handle a block whose time of arrival has come, and go on
 * @rq: request of a resubmission
 *
 * Context: any.
 */
void csd_resubmission_due(struct request *rq)
{
	if (csd_resubmission_next(rq))
		csd_resubmission_start(rq);
}

/**
 * csd_resubmission_run - read blocks, each of which names the next
 * @bdev: the device's block device, a whole disk or a partition
 * @resubmission: the resubmission; the device does not use it any more when this returns
 *
 * A signal ends the resubmission. The block that is just being read then does not arrive.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; see csd_command_run()
 */
int csd_resubmission_run(struct block_device *bdev, struct csd_resubmission *resubmission)
{
	return csd_work_send(bdev, NULL, resubmission);
}
