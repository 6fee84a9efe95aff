// SPDX-License-Identifier: GPL-2.0
/*
 * Which channel a request is sent to. Each CPU has a home: the queue of its own channel,
 * or of the nearest CPU that has one. A request goes
 *
 * 1. where the program's select_channel() says; else
 * 2. with the policy "own", to its home, whatever waits there;
 * 3. to a channel of the node whose worker looks for work: nobody has to be woken;
 * 4. to its home, as long as fewer requests than the threshold are there;
 * 5. to the channel of the node with the shortest wait, if all of those have as many as
 *    the threshold, to that of any node.
 *
 * Requests of the background are parts of one large READ or WRITE: for them a home
 * that has one is loaded already.
 */
#include "efuse_i.h"

#include <linux/topology.h>

/* What a request costs at a channel that has not ended any. */
#define EFUSE_SERVICE_NS	1000

static u32 efuse_queue_load(const struct efuse_queue *queue)
{
	const struct efuse_channel *channel = rcu_dereference(queue->channel);

	return READ_ONCE(queue->depth) + (channel ? READ_ONCE(channel->held) : 0);
}

/* How long a request sent to @queue now would wait, and take, in ns. */
static u64 efuse_queue_delay(const struct efuse_queue *queue)
{
	const struct efuse_channel *channel = rcu_dereference(queue->channel);
	u32 service_ns;

	if (!channel)
		return U64_MAX;
	service_ns = READ_ONCE(channel->service_ns) ?: EFUSE_SERVICE_NS;
	return (u64)(efuse_queue_load(queue) + 1) * service_ns;
}

/* A queue of @node whose worker looks for work and is free; it is the caller's now. */
static struct efuse_queue *efuse_claim(struct efuse_conn *ec, int node, int cpu)
{
	struct efuse_channel *channel;
	int other;

	if (!atomic_read(&ec->nodes[node]->looking))
		return NULL;
	for_each_cpu_wrap(other, cpumask_of_node(node), cpu) {
		channel = rcu_dereference(ec->queues[other]->channel);
		if (channel && efuse_poll_claim(channel))
			return ec->queues[other];
	}
	return NULL;
}

/* That of @cpus where a request would be done first; @home if it is as good. */
static struct efuse_queue *efuse_least(struct efuse_conn *ec, const struct cpumask *cpus,
				       struct efuse_queue *home)
{
	u64 delay, least = efuse_queue_delay(home);
	struct efuse_queue *best = home;
	int cpu;

	for_each_cpu_wrap(cpu, cpus, home->cpu) {
		delay = efuse_queue_delay(ec->queues[cpu]);
		if (delay < least) {
			least = delay;
			best = ec->queues[cpu];
		}
	}
	return best;
}

/* 3 to 5 of the above. */
static struct efuse_queue *efuse_balance(struct efuse_conn *ec, struct efuse_queue *home,
					 bool background)
{
	u32 threshold = background && READ_ONCE(ec->spread) ? 1 : READ_ONCE(ec->threshold);
	struct efuse_channel *channel = rcu_dereference(home->channel);
	struct efuse_queue *found;

	if (channel && (efuse_poll_claim(channel) ||
			(atomic_read(&channel->coming) && efuse_queue_load(home) < threshold)))
		return home;
	found = efuse_claim(ec, home->node, home->cpu);
	if (found)
		return found;
	if (efuse_queue_load(home) < threshold)
		return home;
	found = efuse_least(ec, cpumask_of_node(home->node), home);
	if (nr_online_nodes > 1 && efuse_queue_load(found) >= threshold)
		found = efuse_least(ec, cpu_online_mask, found);
	return found;
}

/* What the program says, or NULL. */
static struct efuse_queue *efuse_select_channel(struct efuse_conn *ec, struct efuse_queue *home,
						const struct fuse_req *req, bool background)
{
	struct efuse_ops *ops = rcu_dereference(ec->ops);
	struct efuse_placement placement;
	int said;

	if (!ops || !ops->select_channel)
		return NULL;
	placement.ec = ec;
	placement.info = (struct efuse_placement_info) {
		.opcode = req->in.h.opcode,
		.cpu = raw_smp_processor_id(),
		.nodeid = req->in.h.nodeid,
		.home = home->cpu,
		.nr_cpus = nr_cpu_ids,
		.background = background,
		.threshold = READ_ONCE(ec->threshold),
	};
	said = ops->select_channel(&placement);
	if (said < 0)
		return NULL;
	if (said >= nr_cpu_ids || !cpu_possible(said) ||
	    !rcu_access_pointer(ec->queues[said]->channel)) {
		this_cpu_inc(ec->stats->garbage);
		return NULL;
	}
	return ec->queues[said];
}

/**
 * efuse_load_describe - what select_channel() may know of a channel
 * @placement: the request at hand
 * @cpu: whose channel
 *
 * Context: within rcu_read_lock().
 * Return: it, until the next call; NULL if that CPU has no channel
 */
const struct efuse_channel_load *efuse_load_describe(struct efuse_placement *placement, u32 cpu)
{
	struct efuse_channel_load *load = &placement->load;
	struct efuse_channel *channel;
	const struct efuse_queue *queue;

	if (cpu >= nr_cpu_ids || !cpu_possible(cpu))
		return NULL;
	queue = placement->ec->queues[cpu];
	channel = rcu_dereference(queue->channel);
	if (!channel)
		return NULL;
	load->node = queue->node;
	load->depth = READ_ONCE(queue->depth);
	load->in_flight = READ_ONCE(channel->held);
	load->looking = efuse_poll_free(channel);
	/* Only a hint: whoever puts a request into the queue looks again. */
	load->sleeping = waitqueue_active(&channel->waitq);
	load->service_ns = READ_ONCE(channel->service_ns);
	return load;
}

/**
 * efuse_queue_choose - where a request or a forget is to be sent
 * @fc: the connection
 * @req: the request; NULL: it is a forget, which nobody waits for
 *
 * Context: any; the caller may be moved to another CPU meanwhile.
 * Return: a queue, or FUSE's own for CUSE and for what io_uring carries: all but forgets
 */
struct fuse_iqueue *efuse_queue_choose(struct fuse_conn *fc, const struct fuse_req *req)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	struct efuse_queue *home, *found = NULL;
	bool background;

	if (!ec || (req && efuse_by_ring(fc)))
		return &efuse_chan(fc)->iq;
	rcu_read_lock();
	home = READ_ONCE(ec->queues[raw_smp_processor_id()]->home);
	/* Without a channel no other one has one either; see efuse_homes_find(). */
	if (req && rcu_access_pointer(home->channel)) {
		background = test_bit(FR_BACKGROUND, &req->flags);
		found = efuse_select_channel(ec, home, req, background);
		if (!found && READ_ONCE(ec->policy) == EFUSE_POLICY_LEAST)
			found = efuse_balance(ec, home, background);
	}
	rcu_read_unlock();
	if (!found)
		return &home->iq;
	if (found != home)
		efuse_count_channel(ec, EFUSE_ELSEWHERE);
	return &found->iq;
}

/* The next CPU of @cpus from @cpu on that has a channel, or -1. */
static int efuse_next_channel(struct efuse_conn *ec, const struct cpumask *cpus, int cpu)
{
	int other;

	for_each_cpu_wrap(other, cpus, cpu)
		if (rcu_access_pointer(ec->queues[other]->channel))
			return other;
	return -1;
}

/**
 * efuse_homes_find - a channel has come or goes: look for every CPU's home again
 * @ec: connection
 *
 * Context: under ec->channels_mutex.
 */
void efuse_homes_find(struct efuse_conn *ec)
{
	int cpu, found;

	lockdep_assert_held(&ec->channels_mutex);
	for_each_possible_cpu(cpu) {
		struct efuse_queue *queue = ec->queues[cpu];

		found = efuse_next_channel(ec, cpumask_of_node(queue->node), cpu);
		if (found < 0)
			found = efuse_next_channel(ec, cpu_possible_mask, cpu);
		WRITE_ONCE(queue->home, found < 0 ? queue : ec->queues[found]);
	}
}
