// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses the channel for a request. Each CPU has a home: the queue of its own channel, or of the
 * nearest CPU that has a channel. A request goes
 *
 * 1. to the channel that the program's select_channel() returns; else
 * 2. to its home, whatever waits there, if the policy is "own";
 * 3. to a channel of the home's NUMA node with a free worker that is polling, which needs no
 *    wake-up: to its home first, also if a worker of the home is about to poll, unless the home is
 *    loaded (4);
 * 4. to its home, while fewer requests than the threshold wait there or are at the daemon;
 * 5. to the channel of the node with the shortest expected delay: the number of requests there plus
 *    this one, times the mean time that a request takes there. If that channel has as many requests
 *    as the threshold, to the channel with the shortest expected delay on any node.
 *
 * Background requests are parts of one large READ or WRITE. With channels/spread set, a home that
 * has one request counts as loaded for them.
 */
#include "transport_i.h"

#include <linux/topology.h>

/* Assumed service time, in ns, of a channel that has not ended a request yet. */
#define EFUSE_SERVICE_NS	1000

static u32 efuse_queue_load(const struct efuse_queue *queue)
{
	const struct efuse_channel *channel = rcu_dereference(queue->channel);

	return READ_ONCE(queue->depth) + (channel ? READ_ONCE(channel->nr_in_flight) : 0);
}

/* Expected time, in ns, from sending a request to @queue now until its reply. */
static u64 efuse_queue_delay(const struct efuse_queue *queue)
{
	const struct efuse_channel *channel = rcu_dereference(queue->channel);
	u32 service_ns;

	if (!channel)
		return U64_MAX;
	service_ns = READ_ONCE(channel->service_ns) ?: EFUSE_SERVICE_NS;
	return (u64)(efuse_queue_load(queue) + 1) * service_ns;
}

/* Claims a free polling worker on @node. Returns its queue, or NULL. */
static struct efuse_queue *efuse_claim(struct efuse_conn *ec, int node, int cpu)
{
	struct efuse_channel *channel;
	int other;

	if (!atomic_read(&ec->nodes[node]->nr_polling))
		return NULL;
	for_each_cpu_wrap(other, cpumask_of_node(node), cpu) {
		channel = rcu_dereference(ec->queues[other]->channel);
		if (channel && efuse_poll_claim(channel))
			return ec->queues[other];
	}
	return NULL;
}

/* The queue of @cpus with the shortest expected delay; @home if none is shorter. */
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

/* Steps 3 to 5 of the list above. */
static struct efuse_queue *efuse_balance(struct efuse_conn *ec, struct efuse_queue *home,
					 bool background)
{
	u32 threshold = background && READ_ONCE(ec->spread) ? 1 : READ_ONCE(ec->threshold);
	struct efuse_channel *channel = rcu_dereference(home->channel);
	struct efuse_queue *found;

	if (channel && (efuse_poll_claim(channel) ||
			(atomic_read(&channel->nr_replying) && efuse_queue_load(home) < threshold)))
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

/* The queue that the program chooses, or NULL. */
static struct efuse_queue *efuse_select_channel(struct efuse_conn *ec, struct efuse_queue *home,
						const struct fuse_req *req, bool background)
{
	struct efuse_ops *ops = rcu_dereference(ec->ops);
	struct efuse_placement placement;
	int choice;

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
	choice = ops->select_channel(&placement);
	if (choice < 0)
		return NULL;
	if (choice >= nr_cpu_ids || !cpu_possible(choice) ||
	    !rcu_access_pointer(ec->queues[choice]->channel)) {
		this_cpu_inc(ec->stats->invalid_verdicts);
		return NULL;
	}
	return ec->queues[choice];
}

/**
 * efuse_load_describe - describe a channel's load to select_channel()
 * @placement: the request whose channel is being chosen
 * @cpu: the channel's CPU
 *
 * Context: within rcu_read_lock().
 * Return: the load, valid until the next call; NULL if the CPU has no channel
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
	load->in_flight = READ_ONCE(channel->nr_in_flight);
	load->polling = efuse_poll_free(channel);
	/* Only a hint: after queueing a request, the sender checks for sleepers again. */
	load->sleeping = waitqueue_active(&channel->waitq);
	load->service_ns = READ_ONCE(channel->service_ns);
	return load;
}

/**
 * efuse_queue_choose - choose the queue for a request or a forget
 * @fc: the connection
 * @req: the request; NULL for a forget, which has no caller waiting
 *
 * Context: any; the caller may be moved to another CPU meanwhile.
 * Return: a queue. FUSE's own for CUSE, and for requests but not forgets of a daemon that uses
 *         io_uring
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
	/* If the home has no channel, no CPU has one; see efuse_homes_find(). */
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

/* The first CPU of @cpus with a channel, searched from @cpu on; -1 if there is none. */
static int efuse_next_channel(struct efuse_conn *ec, const struct cpumask *cpus, int cpu)
{
	int other;

	for_each_cpu_wrap(other, cpus, cpu)
		if (rcu_access_pointer(ec->queues[other]->channel))
			return other;
	return -1;
}

/**
 * efuse_homes_find - set every CPU's home after a channel was added or removed
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
