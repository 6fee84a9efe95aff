// SPDX-License-Identifier: GPL-2.0
/*
 * Polling instead of sleeping: a worker polls for its next request, a caller for its answer. Both
 * do so for a bounded time, and only on different CPUs.
 *
 * efuse_channel.polls counts the polling workers. The low half counts free workers. The high half
 * counts workers that a sender has claimed and is sending a request to.
 */
#include "transport_i.h"

#include <linux/sched/clock.h>
#include <linux/sched/stat.h>

#define EFUSE_POLL_FREE		1
#define EFUSE_POLL_CLAIMED	0x10000
#define EFUSE_POLL_FREE_MASK	0xffff

/* After this many skipped polls, one is tried although polling has not paid off. */
#define EFUSE_SPIN_PAUSE	32

/* Is polling worth a try now? */
static bool efuse_spin_try(struct efuse_spin *spin)
{
	u8 skipped;

	/* With one CPU, polling keeps the other side from running. */
	if (num_online_cpus() == 1)
		return false;
	if (READ_ONCE(spin->credit))
		return true;
	skipped = READ_ONCE(spin->skipped) + 1;
	WRITE_ONCE(spin->skipped, skipped % EFUSE_SPIN_PAUSE);
	return skipped == EFUSE_SPIN_PAUSE;
}

static void efuse_spin_update(struct efuse_spin *spin, bool hit)
{
	u8 credit = READ_ONCE(spin->credit);

	if (hit && credit < EFUSE_MAX_SPIN_CREDIT)
		WRITE_ONCE(spin->credit, credit + 1);
	else if (!hit && credit)
		WRITE_ONCE(spin->credit, credit - 1);
}

/* Is there other work for this CPU or this task? */
static bool efuse_wanted(void)
{
	return need_resched() || !single_task_running() || signal_pending(current);
}

static atomic_t *efuse_nr_polling(struct efuse_channel *channel)
{
	return &channel->ec->nodes[channel->queue->node]->nr_polling;
}

static void efuse_poll_begin(struct efuse_channel *channel)
{
	atomic_add(EFUSE_POLL_FREE, &channel->polls);
	atomic_inc(efuse_nr_polling(channel));
}

/* Full barrier: either a sender sees the polling worker, or the worker sees what was sent. */
static void efuse_poll_end(struct efuse_channel *channel)
{
	int done, old = atomic_read(&channel->polls);

	do {
		done = old >= EFUSE_POLL_CLAIMED ? EFUSE_POLL_CLAIMED : EFUSE_POLL_FREE;
	} while (!atomic_try_cmpxchg(&channel->polls, &old, old - done));
	if (done == EFUSE_POLL_FREE)
		atomic_dec(efuse_nr_polling(channel));
}

/**
 * efuse_poll_free - count the polling workers that no sender has claimed
 * @channel: the channel
 *
 * Return: their number
 */
u32 efuse_poll_free(const struct efuse_channel *channel)
{
	return atomic_read(&channel->polls) & EFUSE_POLL_FREE_MASK;
}

/**
 * efuse_poll - poll a channel's queue for a while, as one of its workers
 * @channel: the channel
 *
 * A sender that puts something into the queue meanwhile wakes no worker; see efuse_queue_wake().
 *
 * Context: process context.
 * Return: true if the queue has something, or the connection ended
 */
bool efuse_poll(struct efuse_channel *channel)
{
	const struct fuse_iqueue *fiq = &efuse_chan(channel->ec->fc)->iq;
	struct efuse_conn *ec = channel->ec;
	u64 ns = READ_ONCE(ec->spin_ns);
	bool filled;
	u64 end;

	/*
	 * One polling worker per channel is enough. If the channel's CPU is offline, the worker
	 * would occupy another CPU.
	 */
	if (!ns || efuse_poll_any(channel) || !cpu_online(channel->queue->cpu) ||
	    !efuse_spin_try(&channel->spin))
		return false;
	end = local_clock() + ns;
	efuse_poll_begin(channel);
	do {
		filled = efuse_queue_filled(channel->queue) || !READ_ONCE(fiq->connected);
		if (filled || efuse_wanted())
			break;
		cpu_relax();
	} while (local_clock() < end);
	efuse_poll_end(channel);
	efuse_spin_update(&channel->spin, filled);
	efuse_count_channel(ec, filled ? EFUSE_POLL_HITS : EFUSE_POLL_MISSES);
	return filled;
}

/**
 * efuse_poll_claim - claim a free polling worker of a channel
 * @channel: the channel
 *
 * Return: true if there was one
 */
bool efuse_poll_claim(struct efuse_channel *channel)
{
	int old = atomic_read(&channel->polls);

	do {
		if (!(old & EFUSE_POLL_FREE_MASK))
			return false;
	} while (!atomic_try_cmpxchg(&channel->polls, &old,
				     old - EFUSE_POLL_FREE + EFUSE_POLL_CLAIMED));
	atomic_dec(efuse_nr_polling(channel));
	return true;
}

/**
 * efuse_request_spin - poll for the answer of a request for a while
 * @req: a request that was sent
 *
 * Context: process context; the caller may hold locks that allow sleeping.
 */
void efuse_request_spin(struct fuse_req *req)
{
	struct efuse_conn *ec = efuse_conn_get(efuse_sent_on(req));
	struct efuse_queue *queue = req->iq->priv;
	u64 ns = ec ? READ_ONCE(ec->spin_ns) : 0;
	bool hit = false;
	u64 end;

	/*
	 * FUSE's own queue has no channel. A worker on this very CPU cannot run while this polls.
	 */
	if (!ns || !queue || !rcu_access_pointer(queue->channel) ||
	    queue->cpu == raw_smp_processor_id() || !efuse_spin_try(&queue->spin))
		return;
	end = local_clock() + ns;
	do {
		hit = test_bit(FR_FINISHED, &req->flags);
		if (hit || efuse_wanted())
			break;
		cpu_relax();
	} while (local_clock() < end);
	efuse_spin_update(&queue->spin, hit);
	efuse_count_channel(ec, hit ? EFUSE_SPIN_HITS : EFUSE_SPIN_MISSES);
}
