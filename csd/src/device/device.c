// SPDX-License-Identifier: GPL-2.0
/*
 * The block device: requests, faults and power.
 *
 * While requests are held, a new request waits in a list. After that, or without a hold
 * immediately, the device decides whether the request fails, carries it out, and ends it by a timer
 * at the time that model.c computes. All but the end, and the work of a resubmission, is done in
 * process context, where memory can be waited for.
 *
 * Power fails as if the plug was pulled: requests that are held, that wait for their time or that
 * come later fail, and data that the host had not sent is lost. Data that was written is there when
 * power is back.
 */
#include "device_i.h"

#include <linux/bvec.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/slab.h>

#define CSD_MAX_SECTORS		2048	/* of a read or write */

static DEFINE_IDA(csd_indexes);

static LIST_HEAD(csd_powered);
static DEFINE_SPINLOCK(csd_powered_lock);

static const struct block_device_operations csd_fops = {
	.owner = THIS_MODULE,
};

static void csd_request_complete(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	if (req_op(rq) == REQ_OP_DRV_IN && request->work.resubmission && !request->status)
		csd_resubmission_due(rq);
	else
		blk_mq_end_request(rq, request->status);
}

static enum hrtimer_restart csd_request_due(struct hrtimer *timer)
{
	struct csd_request *request = container_of(timer, struct csd_request, timer);

	blk_mq_complete_request(blk_mq_rq_from_pdu(request));
	return HRTIMER_NORESTART;
}

/* Copies between the request's pages and the device's memory. */
static int csd_request_copy(struct csd_device *device, struct request *rq)
{
	u64 pos = (u64)blk_rq_pos(rq) << SECTOR_SHIFT;
	struct req_iterator iter;
	struct bio_vec bvec;
	void *buffer;
	int err = 0;

	rq_for_each_segment(bvec, rq, iter) {
		buffer = bvec_kmap_local(&bvec);
		if (rq_data_dir(rq) == WRITE)
			err = csd_memory_write(&device->memory, pos, buffer, bvec.bv_len);
		else
			csd_memory_read(&device->memory, pos, buffer, bvec.bv_len);
		kunmap_local(buffer);
		if (err)
			break;
		pos += bvec.bv_len;
		cond_resched();
	}
	return err;
}

static void csd_request_read(struct csd_device *device, struct request *rq)
{
	u64 at = csd_model_read(&device->model, ktime_get_ns(), blk_rq_bytes(rq));

	atomic64_inc(&device->reads);
	csd_request_copy(device, rq);
	csd_request_end(rq, BLK_STS_OK, at);
}

static void csd_request_write(struct csd_device *device, struct request *rq)
{
	u64 at = csd_model_write(&device->model, ktime_get_ns(), blk_rq_bytes(rq));

	atomic64_inc(&device->writes);
	csd_request_end(rq, errno_to_blk_status(csd_request_copy(device, rq)), at);
}

static void csd_request_zero(struct csd_device *device, struct request *rq)
{
	u64 at = csd_model_write(&device->model, ktime_get_ns(), 0);

	csd_memory_zero(&device->memory, (u64)blk_rq_pos(rq) << SECTOR_SHIFT, blk_rq_bytes(rq));
	csd_request_end(rq, BLK_STS_OK, at);
}

static void csd_request_do(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);
	struct csd_device *device = request->device;

	if (READ_ONCE(device->off)) {
		csd_request_end(rq, BLK_STS_OFFLINE, 0);
		return;
	}
	if (csd_request_fails(device)) {
		csd_request_end(rq, BLK_STS_IOERR, ktime_get_ns());
		return;
	}
	switch (req_op(rq)) {
	case REQ_OP_READ:
		csd_request_read(device, rq);
		break;
	case REQ_OP_WRITE:
		csd_request_write(device, rq);
		break;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		csd_request_zero(device, rq);
		break;
	case REQ_OP_DRV_IN:
		if (request->work.resubmission)
			csd_resubmission_start(rq);
		else
			csd_work_queue(device, rq);
		break;
	default:
		csd_request_end(rq, BLK_STS_NOTSUPP, 0);
	}
}

static blk_status_t csd_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct csd_request *request = blk_mq_rq_to_pdu(bd->rq);

	blk_mq_start_request(bd->rq);
	/* A layout's read takes no time of the device. */
	if (req_op(bd->rq) == REQ_OP_READ && csd_layout_catch(bd->rq))
		csd_request_end(bd->rq, BLK_STS_OK, 0);
	else if (!csd_request_hold(request->device, bd->rq))
		csd_request_do(bd->rq);
	return BLK_STS_OK;
}

static int csd_init_request(struct blk_mq_tag_set *tags, struct request *rq, unsigned int hctx,
			    CSD_NODE node)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	request->device = tags->driver_data;
	csd_timer_setup(&request->timer, csd_request_due);
	csd_work_init(&request->work);
	return 0;
}

static void csd_exit_request(struct blk_mq_tag_set *tags, struct request *rq, unsigned int hctx)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	/* The timer function that ended the request last may still be running. */
	hrtimer_cancel(&request->timer);
}

static const struct blk_mq_ops csd_mq_ops = {
	.queue_rq	= csd_queue_rq,
	.complete	= csd_request_complete,
	.init_request	= csd_init_request,
	.exit_request	= csd_exit_request,
};

/* Carries out the held requests, in the order in which they came. */
static void csd_device_release(struct csd_device *device)
{
	struct request *rq, *next;
	LIST_HEAD(list);

	spin_lock_irq(&device->lock);
	list_splice_init(&device->held_list, &list);
	WRITE_ONCE(device->held, 0);
	spin_unlock_irq(&device->lock);
	list_for_each_entry_safe(rq, next, &list, queuelist) {
		list_del_init(&rq->queuelist);
		csd_request_do(rq);
	}
}

/**
 * csd_device_hold - hold requests, or release them
 * @device: the device
 * @hold: 1 to hold, 0 to release
 *
 * Context: process context, may sleep.
 */
void csd_device_hold(struct csd_device *device, u64 hold)
{
	spin_lock_irq(&device->lock);
	WRITE_ONCE(device->hold, hold);
	spin_unlock_irq(&device->lock);
	if (!hold)
		csd_device_release(device);
}

/**
 * csd_device_fail_every - let every n-th request fail
 * @device: the device
 * @every: n, counted from now on; 0: none fails
 */
void csd_device_fail_every(struct csd_device *device, u64 every)
{
	spin_lock_irq(&device->lock);
	WRITE_ONCE(device->fail_every, every);
	device->fail_count = 0;
	spin_unlock_irq(&device->lock);
}

/**
 * csd_device_fail_next - let the next requests fail
 * @device: the device
 * @next: number of requests to fail
 */
void csd_device_fail_next(struct csd_device *device, u64 next)
{
	spin_lock_irq(&device->lock);
	WRITE_ONCE(device->fail_next, next);
	spin_unlock_irq(&device->lock);
}

static int csd_tags_alloc(struct csd_device *device)
{
	device->tags = (struct blk_mq_tag_set) {
		.ops		= &csd_mq_ops,
		.nr_hw_queues	= device->queues,
		.queue_depth	= device->depth,
		.numa_node	= NUMA_NO_NODE,
		.cmd_size	= sizeof(struct csd_request),
		.flags		= CSD_MERGE | BLK_MQ_F_BLOCKING | BLK_MQ_F_NO_SCHED_BY_DEFAULT,
		.driver_data	= device,
	};
	return blk_mq_alloc_tag_set(&device->tags);
}

static struct gendisk *csd_disk_alloc(struct csd_device *device)
{
	struct queue_limits limits = {
		.logical_block_size		= device->logical_block_size,
		.physical_block_size		= CSD_BLOCK_SIZE,
		.max_hw_sectors			= CSD_MAX_SECTORS,
		.max_segments			= CSD_MAX_SECTORS * SECTOR_SIZE / PAGE_SIZE,
		.max_hw_discard_sectors		= UINT_MAX >> SECTOR_SHIFT,
		.max_write_zeroes_sectors	= UINT_MAX >> SECTOR_SHIFT,
		.discard_granularity		= PAGE_SIZE,
	};
	struct gendisk *disk = blk_mq_alloc_disk(&device->tags, &limits, NULL);

	if (IS_ERR(disk))
		return disk;
	disk->fops = &csd_fops;
	set_capacity(disk, device->size_mib << (20 - SECTOR_SHIFT));
	snprintf(disk->disk_name, sizeof(disk->disk_name), "csd%d", device->index);
	return disk;
}

/**
 * csd_device_on - give a device power
 * @device: the device, without power; its mutex is held
 *
 * Context: process context, may sleep: the partitions are read.
 * Return: 0 or a negative errno
 */
int csd_device_on(struct csd_device *device)
{
	struct gendisk *disk;
	int err;

	lockdep_assert_held(&device->mutex);
	csd_memory_truncate(&device->memory, device->size_mib << 20);
	csd_model_reset(&device->model);
	device->off = false;
	device->index = ida_alloc(&csd_indexes, GFP_KERNEL);
	if (device->index < 0) {
		err = device->index;
		goto out_index;
	}
	err = csd_tags_alloc(device);
	if (err)
		goto out_ida;
	disk = csd_disk_alloc(device);
	if (IS_ERR(disk)) {
		err = PTR_ERR(disk);
		goto out_tags;
	}
	err = add_disk(disk);
	if (err)
		goto out_disk;
	WRITE_ONCE(device->disk, disk);
	spin_lock(&csd_powered_lock);
	list_add_tail(&device->link, &csd_powered);
	spin_unlock(&csd_powered_lock);
	return 0;

out_disk:
	put_disk(disk);
out_tags:
	blk_mq_free_tag_set(&device->tags);
out_ida:
	ida_free(&csd_indexes, device->index);
out_index:
	device->index = -1;
	return err;
}

static bool csd_request_cut(struct request *rq, void *unused)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	/*
	 * Otherwise the timer function is ending the request now, or there is no timer and the
	 * request will see that the power has gone.
	 */
	if (hrtimer_try_to_cancel(&request->timer) == 1) {
		request->status = BLK_STS_OFFLINE;
		blk_mq_complete_request(rq);
	}
	return true;
}

/**
 * csd_device_off - take the power from a device, if it has any
 * @device: the device; its mutex is held
 *
 * Context: process context, may sleep.
 */
void csd_device_off(struct csd_device *device)
{
	lockdep_assert_held(&device->mutex);
	if (!device->disk)
		return;
	spin_lock(&csd_powered_lock);
	list_del(&device->link);
	spin_unlock(&csd_powered_lock);
	spin_lock_irq(&device->lock);
	WRITE_ONCE(device->off, true);
	spin_unlock_irq(&device->lock);
	csd_device_release(device);
	wake_up_all(&device->core_wait);
	/* A file system may wait for requests in flight before it notices that the disk is gone. */
	blk_mq_tagset_busy_iter(&device->tags, csd_request_cut, NULL);
	blk_mark_disk_dead(device->disk);
	del_gendisk(device->disk);
	put_disk(device->disk);
	WRITE_ONCE(device->disk, NULL);
	blk_mq_free_tag_set(&device->tags);
	ida_free(&csd_indexes, device->index);
	WRITE_ONCE(device->index, -1);
}

/**
 * csd_device_alloc - make a device without power
 *
 * Return: the device, or NULL
 */
struct csd_device *csd_device_alloc(void)
{
	struct csd_device *device = kvzalloc(sizeof(*device), GFP_KERNEL);

	if (!device)
		return NULL;
	mutex_init(&device->mutex);
	device->index = -1;
	device->size_mib = 256;
	device->queues = 1;
	device->depth = 64;
	device->logical_block_size = SECTOR_SIZE;
	device->cores = 1;
	xa_init(&device->memory);
	csd_model_init(&device->model);
	spin_lock_init(&device->lock);
	INIT_LIST_HEAD(&device->held_list);
	spin_lock_init(&device->schedule.lock);
	device->schedule.try_share = 40;
	spin_lock_init(&device->core_lock);
	INIT_LIST_HEAD(&device->core_list);
	init_waitqueue_head(&device->core_wait);
	return device;
}

/**
 * csd_device_free - free a device without power, and the contents of its memory
 * @device: the device
 *
 * Context: process context, may sleep.
 */
void csd_device_free(struct csd_device *device)
{
	csd_memory_truncate(&device->memory, 0);
	kvfree(device);
}

/**
 * csd_device_is - is a block device one of csd.ko?
 * @bdev: a block device, a whole disk or a partition
 *
 * Return: true if so
 */
bool csd_device_is(struct block_device *bdev)
{
	return bdev->bd_disk->fops == &csd_fops;
}

/**
 * csd_device_get - get the device behind a block device
 * @bdev: a block device of csd.ko, a whole disk or a partition
 *
 * Context: any but interrupts.
 * Return: the device, to be released with csd_device_put(); NULL if it has no power any more
 */
struct csd_device *csd_device_get(struct block_device *bdev)
{
	struct csd_device *device, *found = NULL;

	spin_lock(&csd_powered_lock);
	list_for_each_entry(device, &csd_powered, link) {
		if (device->disk == bdev->bd_disk) {
			config_item_get(&device->item);
			found = device;
			break;
		}
	}
	spin_unlock(&csd_powered_lock);
	return found;
}

/**
 * csd_device_put - release a reference to a device
 * @device: the device
 *
 * Context: process context, may sleep: if the device was removed, it may be freed here.
 */
void csd_device_put(struct csd_device *device)
{
	config_item_put(&device->item);
}

/* RCU callbacks that free pages may still be pending. */
void csd_devices_exit(void)
{
	csd_cores_exit();
	rcu_barrier();
}

int csd_devices_init(void)
{
	return csd_cores_init();
}
