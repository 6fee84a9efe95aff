// SPDX-License-Identifier: GPL-2.0
/*
 * Cores: they do what commands ask for with the contents of the device's memory.
 *
 * A core is a worker. A core works on one command from beginning to end. Commands are taken in the
 * order in which they came.
 *
 * Each command has a clock of its own, which starts when the command starts. The medium and the
 * core begin with a range at the same time, and the range is done when both are:
 *   at = max(medium(at, bytes), at + time of the core * core_percent / 100).
 * The core sleeps until then if that is in the future. If it is in the past (the worker did not get
 * a CPU, or had to find the next range) nothing is added: the device would not have spent that
 * time.
 */
#include "device_i.h"

#include <linux/hrtimer.h>
#include <linux/sched/clock.h>

static struct workqueue_struct *csd_cores;

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
