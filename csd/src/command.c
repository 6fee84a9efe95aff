// SPDX-License-Identifier: GPL-2.0
/*
 * Commands: what a core of a device does with the contents of the device's memory.
 *
 * A command is a request of the device's queue, like a read. A core is a worker. A core works on
 * one command from beginning to end. Commands are taken in the order in which they came.
 *
 * Each command has a clock of its own, which starts when the command starts. The medium and the
 * core begin with a range at the same time, and the range is done when both are:
 *   at = max(medium(at, bytes), at + time of the core * core_percent / 100).
 * The core sleeps until then if that is in the future. If it is in the past (the worker did not get
 * a CPU, or had to find the next range) nothing is added: the device would not have spent that
 * time.
 */
#include "csd_i.h"

#include <linux/hrtimer.h>
#include <linux/sched/clock.h>
#include <linux/sched/signal.h>

static struct workqueue_struct *csd_cores;

/* The task that waits for a command. */
struct csd_waiter {
	struct completion done;
	blk_status_t status;
};

static struct csd_request *csd_work_request(struct csd_work *work)
{
	return container_of(work, struct csd_request, work);
}

/**
 * csd_work_stopped - must a command be ended?
 * @work: the work of the command or hops
 *
 * Return: 0, or the negative errno to end it with
 */
int csd_work_stopped(struct csd_work *work)
{
	if (READ_ONCE(csd_work_request(work)->device->off))
		return -ENODEV;
	return READ_ONCE(work->cancelled) ? -EINTR : 0;
}

/* Sleeps until @at, or until the command has to be ended. Returns 0 or the errno to end it with. */
static int csd_core_sleep(struct csd_work *work, u64 at)
{
	struct csd_device *device = csd_work_request(work)->device;
	ktime_t until = ns_to_ktime(at);
	DEFINE_WAIT(wait);
	int err;

	while (!(err = csd_work_stopped(work)) && ktime_get_ns() < at) {
		prepare_to_wait(&device->core_wait, &wait, TASK_IDLE);
		if (!csd_work_stopped(work))
			schedule_hrtimeout_range(&until, 0, HRTIMER_MODE_ABS);
		finish_wait(&device->core_wait, &wait);
	}
	return err;
}

static int csd_block_run(struct csd_work *work, u64 pos, u32 len, u64 *core_at)
{
	struct csd_device *device = csd_work_request(work)->device;
	struct csd_command *cmd = work->command;
	u64 start;
	u64 ns;
	int ret;

	rcu_read_lock();
	/* The clock is that of the CPU, and time of other tasks must not be measured. */
	preempt_disable();
	start = local_clock();
	ret = cmd->block(cmd, csd_memory_block(&device->memory, pos), len);
	ns = local_clock() - start;
	preempt_enable();
	rcu_read_unlock();
	*core_at += csd_model_core(&device->model, ns);
	return ret;
}

static int csd_range_run(struct csd_work *work, const struct csd_range *range, u64 *at)
{
	struct csd_device *device = csd_work_request(work)->device;
	u64 media_at = csd_model_media(&device->model, *at, range->bytes);
	u64 pos = work->start + ((u64)range->sector << SECTOR_SHIFT);
	u64 core_at = *at;
	u32 left = range->bytes;
	u32 len;
	int ret = 0;

	for (; left && !ret; left -= len, pos += len) {
		len = min_t(u32, left, CSD_BLOCK_SIZE);
		ret = csd_work_stopped(work) ?: csd_block_run(work, pos, len, &core_at);
		cond_resched();
	}
	*at = max(media_at, core_at);
	return ret < 0 ? ret : csd_core_sleep(work, *at);
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

static int csd_work_run(struct csd_work *work, u64 *at)
{
	struct csd_command *cmd = work->command;
	struct csd_range range;
	int ret;

	for (;;) {
		ret = csd_work_stopped(work) ?: cmd->next(cmd, &range);
		if (ret <= 0)
			return ret;
		ret = csd_work_check(work, &range) ?: csd_range_run(work, &range, at);
		if (ret)
			return ret;
	}
}

/* Gives the core to the command that has waited longest, or makes it idle. */
static void csd_core_release(struct csd_device *device)
{
	struct csd_request *request;
	struct request *rq;

	spin_lock(&device->core_lock);
	rq = list_first_entry_or_null(&device->core_list, struct request, queuelist);
	if (rq) {
		list_del_init(&rq->queuelist);
		device->cores_waiting--;
	} else {
		device->cores_busy--;
	}
	spin_unlock(&device->core_lock);
	if (rq) {
		request = blk_mq_rq_to_pdu(rq);
		queue_work(csd_cores, &request->work.work);
	}
}

static void csd_core_work(struct work_struct *work_struct)
{
	struct csd_work *work = container_of(work_struct, struct csd_work, work);
	struct csd_request *request = csd_work_request(work);
	struct csd_device *device = request->device;
	struct csd_command *cmd = work->command;
	u64 begun = ktime_get_ns(), at = begun;

	cmd->waited_ns += begun - work->queued_ns;
	work->error = csd_work_run(work, &at);
	/* A command that was ended does not have to wait for time that it did not use. */
	if (csd_work_stopped(work))
		at = min(at, ktime_get_ns());
	at = csd_model_result(&device->model, at, work->error ? 0 : cmd->result(cmd));
	/* Concurrent updates make the mean less exact, nothing worse. */
	WRITE_ONCE(device->command_ns,
		   (3 * READ_ONCE(device->command_ns) + ktime_get_ns() - begun) / 4);
	/* After the request has ended, the device may be freed. */
	csd_core_release(device);
	csd_request_end(blk_mq_rq_from_pdu(request), BLK_STS_OK, at);
}

/**
 * csd_work_queue - give a command to a core as soon as one is free
 * @device: the device
 * @rq: the command's request, which the device ends
 */
void csd_work_queue(struct csd_device *device, struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);
	bool free;

	atomic64_inc(&device->commands);
	request->work.queued_ns = ktime_get_ns();
	spin_lock(&device->core_lock);
	free = device->cores_busy < device->cores;
	if (free) {
		device->cores_busy++;
	} else {
		list_add_tail(&rq->queuelist, &device->core_list);
		device->cores_waiting++;
	}
	spin_unlock(&device->core_lock);
	if (free)
		queue_work(csd_cores, &request->work.work);
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
 * csd_work_send - send a command or hops to a device, and wait for the end
 * @bdev: the device's block device, a whole disk or a partition
 * @cmd: the command; NULL if @hops is sent
 * @hops: the hops; NULL if @cmd is sent
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int csd_work_send(struct block_device *bdev, struct csd_command *cmd, struct csd_hops *hops)
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
	request->work.hops = hops;
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

void csd_work_init(struct csd_work *work)
{
	INIT_WORK(&work->work, csd_core_work);
}

int csd_cores_init(void)
{
	/* The number of cores is limited per device, not by the workqueue. */
	csd_cores = alloc_workqueue("csd", WQ_UNBOUND, WQ_MAX_ACTIVE);
	return csd_cores ? 0 : -ENOMEM;
}

void csd_cores_exit(void)
{
	destroy_workqueue(csd_cores);
}
