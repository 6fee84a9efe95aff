// SPDX-License-Identifier: GPL-2.0
/*
 * Commands and resubmissions on their way to a device. Each is a request of the device's queue,
 * like a read. cores.c carries out commands, resubmission.c carries out resubmissions.
 */
#include "device_i.h"

#include <linux/sched/signal.h>

/* The task that waits for a command. */
struct csd_waiter {
	struct completion done;
	blk_status_t status;
};

/**
 * csd_work_stopped - must a command be ended?
 * @work: the work of the command or resubmission
 *
 * Return: 0, or the negative errno to end it with
 */
int csd_work_stopped(struct csd_work *work)
{
	if (READ_ONCE(csd_work_request(work)->device->off))
		return -ENODEV;
	return READ_ONCE(work->cancelled) ? -EINTR : 0;
}

/**
 * csd_work_check - is a range within the block device?
 * @work: work on the block device
 * @range: the range
 *
 * Return: 0; -ERANGE if it is not within the block device; -EINVAL if it is empty or does not begin
 *         at a block of the device
 */
int csd_work_check(const struct csd_work *work, const struct csd_range *range)
{
	sector_t sectors = work->size >> SECTOR_SHIFT;

	if (range->sector > sectors ||
	    DIV_ROUND_UP(range->bytes, SECTOR_SIZE) > sectors - range->sector)
		return -ERANGE;
	if (!range->bytes ||
	    !IS_ALIGNED(work->start + ((u64)range->sector << SECTOR_SHIFT), CSD_BLOCK_SIZE))
		return -EINVAL;
	return 0;
}

static CSD_END_IO(csd_command_done)
{
	struct csd_waiter *waiter = rq->end_io_data;

	waiter->status = status;
	complete(&waiter->done);
	return RQ_END_IO_NONE;
}

/*
 * Waits until the device is done with a request. After a signal the device is told to end it soon.
 */
static void csd_command_wait(struct csd_request *request, struct csd_waiter *waiter)
{
	if (!wait_for_completion_interruptible(&waiter->done))
		return;
	WRITE_ONCE(request->work.cancelled, true);
	/* The request has not been freed yet, so the device exists. */
	csd_request_leave(blk_mq_rq_from_pdu(request));
	wait_for_completion(&waiter->done);
}

/**
 * csd_work_send - send a command or resubmission to a device, and wait for the end
 * @bdev: the device's block device, a whole disk or a partition
 * @cmd: the command; NULL if @resubmission is sent
 * @resubmission: the resubmission; NULL if @cmd is sent
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int csd_work_send(struct block_device *bdev, struct csd_command *cmd,
		  struct csd_resubmission *resubmission)
{
	struct csd_waiter waiter = {
		.done = COMPLETION_INITIALIZER_ONSTACK(waiter.done),
	};
	struct csd_request *request;
	struct request *rq;
	int err;

	rq = blk_mq_alloc_request(bdev_get_queue(bdev), REQ_OP_DRV_IN, 0);
	if (IS_ERR(rq))
		return PTR_ERR(rq);
	request = blk_mq_rq_to_pdu(rq);
	request->work.command = cmd;
	request->work.resubmission = resubmission;
	request->work.start = (u64)get_start_sect(bdev) << SECTOR_SHIFT;
	request->work.size = bdev_nr_bytes(bdev);
	request->work.cancelled = false;
	request->work.error = 0;
	rq->end_io = csd_command_done;
	rq->end_io_data = &waiter;
	blk_execute_rq_nowait(rq, false);
	csd_command_wait(request, &waiter);
	err = request->work.error ?: blk_status_to_errno(waiter.status);
	blk_mq_free_request(rq);
	return err;
}

/**
 * csd_command_run - run a command on a core of a device
 * @bdev: the device's block device, a whole disk or a partition
 * @cmd: the command; the device does not use it any more when this returns
 *
 * After a signal the device ends the command before the next block.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno: one that @cmd's functions returned; -EINTR after a signal; -ERANGE
 *         or -EINVAL if a range is not within @bdev or does not begin at a block of the device;
 *         -ENODEV if the device is gone; -EIO if it failed
 */
int csd_command_run(struct block_device *bdev, struct csd_command *cmd)
{
	return csd_work_send(bdev, cmd, NULL);
}
