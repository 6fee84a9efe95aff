// SPDX-License-Identifier: GPL-2.0
/*
 * What every request may go through: it is held, fails, waits for its time, is cancelled, and ends.
 */
#include "device_i.h"

#include <linux/hrtimer.h>

/**
 * csd_request_wait - wait, by a timer, until the device is done with a request
 * @rq: a request that needs nothing but the wait
 * @at: time at which it is done, without the device's delay_ns
 *
 * Context: any.
 * Return: true if the request waits; it completes at that time, or when the power goes. False if
 *         that time has come, or the power has gone
 */
bool csd_request_wait(struct request *rq, u64 at)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);
	struct csd_device *device = request->device;
	unsigned long flags;
	bool waits;

	at += READ_ONCE(device->delay_ns);
	if (at <= ktime_get_ns())
		return false;
	/* Either csd_device_off() finds the timer, or this finds that the power has gone. */
	spin_lock_irqsave(&device->lock, flags);
	waits = !device->off;
	if (waits)
		hrtimer_start(&request->timer, ns_to_ktime(at), HRTIMER_MODE_ABS);
	spin_unlock_irqrestore(&device->lock, flags);
	return waits;
}

/**
 * csd_request_end - end a request at a given time
 * @rq: a request that needs nothing but its end
 * @status: status to end it with
 * @at: time at which to end it, without the device's delay_ns
 *
 * Context: process context.
 */
void csd_request_end(struct request *rq, blk_status_t status, u64 at)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	request->status = status;
	if (csd_request_wait(rq, at))
		return;
	if (READ_ONCE(request->device->off))
		request->status = BLK_STS_OFFLINE;
	blk_mq_end_request(rq, request->status);
}

/**
 * csd_request_fails - must the next request fail?
 * @device: the device
 *
 * Context: any. Must be called once for each request.
 * Return: true if it must
 */
bool csd_request_fails(struct csd_device *device)
{
	unsigned long flags;
	bool fails = false;

	if (!READ_ONCE(device->fail_every) && !READ_ONCE(device->fail_next))
		return false;
	spin_lock_irqsave(&device->lock, flags);
	if (device->fail_every && ++device->fail_count == device->fail_every) {
		device->fail_count = 0;
		fails = true;
	}
	if (device->fail_next) {
		WRITE_ONCE(device->fail_next, device->fail_next - 1);
		fails = true;
	}
	spin_unlock_irqrestore(&device->lock, flags);
	return fails;
}

/* Has the sender left? Requests of a file system have no such sender. */
static bool csd_request_cancelled(struct request *rq)
{
	const struct csd_request *request = blk_mq_rq_to_pdu(rq);

	return req_op(rq) == REQ_OP_DRV_IN && READ_ONCE(request->work.cancelled);
}

/**
 * csd_request_hold - hold a request if the device holds requests now
 * @device: the request's device
 * @rq: the request
 *
 * Context: any.
 * Return: true if it is held; it is carried out when requests are released, or ended by
 *         csd_request_leave()
 */
bool csd_request_hold(struct csd_device *device, struct request *rq)
{
	unsigned long flags;
	bool hold;

	if (!READ_ONCE(device->hold))
		return false;
	spin_lock_irqsave(&device->lock, flags);
	hold = device->hold && !device->off && !csd_request_cancelled(rq);
	if (hold) {
		list_add_tail(&rq->queuelist, &device->held_list);
		WRITE_ONCE(device->held, device->held + 1);
	}
	spin_unlock_irqrestore(&device->lock, flags);
	return hold;
}

/* Takes a request out of the list of held ones. Returns whether it was there. */
static bool csd_request_unhold(struct csd_device *device, struct request *rq)
{
	struct request *held;
	bool found = false;

	spin_lock_irq(&device->lock);
	list_for_each_entry(held, &device->held_list, queuelist) {
		found = held == rq;
		if (found)
			break;
	}
	if (found) {
		list_del_init(&rq->queuelist);
		WRITE_ONCE(device->held, device->held - 1);
	}
	spin_unlock_irq(&device->lock);
	return found;
}

/**
 * csd_request_leave - have a cancelled request end soon, whatever the device waits for
 * @rq: a command or resubmission that is marked as cancelled; it may have ended, but is not freed
 *
 * Context: process context.
 */
void csd_request_leave(struct request *rq)
{
	struct csd_request *request = blk_mq_rq_to_pdu(rq);

	if (csd_request_unhold(request->device, rq)) {
		request->work.error = -EINTR;
		blk_mq_end_request(rq, BLK_STS_OK);
	} else if (hrtimer_try_to_cancel(&request->timer) == 1) {
		blk_mq_complete_request(rq);
	}
	wake_up_all(&request->device->core_wait);
}
