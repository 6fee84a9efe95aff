// SPDX-License-Identifier: GPL-2.0
/*
 * The time that a device takes for a request, computed when the request comes.
 *
 * A device has a medium, a link and cores. For the medium and the link, the time at which each part
 * is free again is kept: what comes at time `at` begins at max(at, free_at).
 *
 * - A pipe carries bytes one after the other, and ends a transfer at the new free_at:
 *	free_at = max(at, free_at) + bytes * 10^9 / (mib_per_s * 2^20).
 *   A pipe of 0 MiB/s is not limited, and takes no time.
 * - The medium has media_units units, and a pipe of media_mib_per_s behind them. An access takes
 *   the unit that is free first, for media_latency_ns, and then the pipe:
 *	unit = max(at, unit) + media_latency_ns, done = pipe(unit, bytes).
 * - The link has a pipe of link_mib_per_s for each direction, and a latency of link_latency_ns in
 *   which any number of transfers can be: done = pipe(at, bytes) + link_latency_ns.
 *
 * A read is done at link(medium(at)), a write at medium(link(at)). A request that moves no bytes,
 * such as a discard, is a write of 0 bytes. A command is charged the medium for each of its ranges,
 * and the link for its result. The time of its cores is computed in cores.c.
 *
 * Computing the end at the beginning is exact as long as requests come to each resource in the
 * order in which they came to the device: each resource serves in that order, in a time that
 * depends on nothing else. This holds for any number of reads, or of writes. If reads and writes
 * are mixed, or commands with either, an early request may find a resource taken by one that needs
 * it only later, and waits for it. The computed time is never shorter than a device's would be.
 */
#include "device_i.h"

#include <linux/math64.h>

static u64 csd_pipe_take(u64 *free_at, u64 at, u64 bytes, u64 mib_per_s)
{
	if (!mib_per_s)
		return at;
	/* The product of a request's bytes and 10^9 may need more than 64 bits. */
	*free_at = max(at, *free_at) + mul_u64_u64_div_u64(bytes, NSEC_PER_SEC, mib_per_s << 20);
	return *free_at;
}

static u64 csd_media_take(struct csd_model *model, u64 at, u64 bytes)
{
	u32 units = READ_ONCE(model->media_units);
	u64 *unit = &model->unit_free_at[0];
	u32 i;

	lockdep_assert_held(&model->lock);
	for (i = 1; i < units; i++)
		if (model->unit_free_at[i] < *unit)
			unit = &model->unit_free_at[i];
	*unit = max(at, *unit) + READ_ONCE(model->media_latency_ns);
	return csd_pipe_take(&model->media_free_at, *unit, bytes,
			     READ_ONCE(model->media_mib_per_s));
}

static u64 csd_link_take(struct csd_model *model, u64 *free_at, u64 at, u64 bytes)
{
	lockdep_assert_held(&model->lock);
	return csd_pipe_take(free_at, at, bytes, READ_ONCE(model->link_mib_per_s)) +
	       READ_ONCE(model->link_latency_ns);
}

/**
 * csd_model_media - a command reads from the medium
 * @model: model of the device
 * @at: time of the access, ns
 * @bytes: number of bytes
 *
 * Return: time at which the bytes are there, ns
 */
u64 csd_model_media(struct csd_model *model, u64 at, u64 bytes)
{
	unsigned long flags;

	atomic64_add(bytes, &model->media_read_bytes);
	if (!READ_ONCE(model->model))
		return at;
	spin_lock_irqsave(&model->lock, flags);
	at = csd_media_take(model, at, bytes);
	spin_unlock_irqrestore(&model->lock, flags);
	return at;
}

/**
 * csd_model_result - a command sends its result over the link
 * @model: model of the device
 * @at: time at which the result is complete, ns
 * @bytes: number of bytes
 *
 * Return: time at which the host has the result, ns
 */
u64 csd_model_result(struct csd_model *model, u64 at, u64 bytes)
{
	unsigned long flags;

	atomic64_add(bytes, &model->link_read_bytes);
	if (!READ_ONCE(model->model))
		return at;
	spin_lock_irqsave(&model->lock, flags);
	at = csd_link_take(model, &model->link_read_free_at, at, bytes);
	spin_unlock_irqrestore(&model->lock, flags);
	return at;
}

/**
 * csd_model_read - the host reads
 * @model: model of the device
 * @at: time at which the request came, ns
 * @bytes: number of bytes
 *
 * Return: time at which the host has the bytes, ns
 */
u64 csd_model_read(struct csd_model *model, u64 at, u64 bytes)
{
	unsigned long flags;

	atomic64_add(bytes, &model->media_read_bytes);
	atomic64_add(bytes, &model->link_read_bytes);
	if (!READ_ONCE(model->model))
		return at;
	spin_lock_irqsave(&model->lock, flags);
	at = csd_media_take(model, at, bytes);
	at = csd_link_take(model, &model->link_read_free_at, at, bytes);
	spin_unlock_irqrestore(&model->lock, flags);
	return at;
}

/**
 * csd_model_write - the host writes
 * @model: model of the device
 * @at: time at which the request came, ns
 * @bytes: number of bytes
 *
 * Return: time at which the bytes are on the medium, ns
 */
u64 csd_model_write(struct csd_model *model, u64 at, u64 bytes)
{
	unsigned long flags;

	atomic64_add(bytes, &model->link_write_bytes);
	atomic64_add(bytes, &model->media_write_bytes);
	if (!READ_ONCE(model->model))
		return at;
	spin_lock_irqsave(&model->lock, flags);
	at = csd_link_take(model, &model->link_write_free_at, at, bytes);
	at = csd_media_take(model, at, bytes);
	spin_unlock_irqrestore(&model->lock, flags);
	return at;
}

/**
 * csd_model_core - a core has worked
 * @model: model of the device
 * @ns: time that the host's CPU took for the work
 *
 * Return: time that the device's core takes for it, ns
 */
u64 csd_model_core(struct csd_model *model, u64 ns)
{
	if (READ_ONCE(model->model))
		ns = mul_u64_u32_div(ns, READ_ONCE(model->core_percent), 100);
	atomic64_add(ns, &model->core_busy_ns);
	return ns;
}

/**
 * csd_model_reset - make all resources free
 * @model: model of a device without power
 */
void csd_model_reset(struct csd_model *model)
{
	unsigned long flags;

	spin_lock_irqsave(&model->lock, flags);
	model->link_read_free_at = 0;
	model->link_write_free_at = 0;
	model->media_free_at = 0;
	memset(model->unit_free_at, 0, sizeof(model->unit_free_at));
	spin_unlock_irqrestore(&model->lock, flags);
}

/**
 * csd_model_init - set a new device's defaults: nothing takes time
 * @model: model of the device, zeroed
 */
void csd_model_init(struct csd_model *model)
{
	spin_lock_init(&model->lock);
	model->media_units = 1;
	model->core_percent = 100;
}
