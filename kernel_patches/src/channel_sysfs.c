// SPDX-License-Identifier: GPL-2.0
/* channels/ of a connection in sysfs: settings, and a file for the queue of each CPU. */
#include "efuse_i.h"

#include <linux/sysfs.h>

/* A file of channels/: the queue of a CPU, and its channel. */
struct efuse_channel_attr {
	struct kobj_attribute attr;
	char name[12];
	int cpu;
};

static const char * const efuse_channel_counter_names[EFUSE_NR_CHANNEL_COUNTERS] = {
	[EFUSE_POLL_HITS] = "poll_hits",
	[EFUSE_POLL_MISSES] = "poll_misses",
	[EFUSE_SPIN_HITS] = "spin_hits",
	[EFUSE_SPIN_MISSES] = "spin_misses",
	[EFUSE_ELSEWHERE] = "elsewhere",
	[EFUSE_OTHERS_WOKEN] = "others_woken",
	[EFUSE_BROUGHT] = "brought",
	[EFUSE_REPLY_REFUSED] = "refused",
};

static u32 efuse_sleepers(struct efuse_channel *channel)
{
	size_t count;

	spin_lock_irq(&channel->waitq.lock);
	count = list_count_nodes(&channel->waitq.head);
	spin_unlock_irq(&channel->waitq.lock);
	return count;
}

static ssize_t efuse_channel_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	int cpu = container_of(attr, struct efuse_channel_attr, attr)->cpu;
	struct efuse_conn *ec = efuse_conn_of(kobj);
	const struct efuse_stats *stats = per_cpu_ptr(ec->stats, cpu);
	const struct efuse_queue *queue = ec->queues[cpu];
	u32 slots = 0, in_flight = 0, service_ns = 0, polling = 0, sleeping = 0;
	struct efuse_channel *channel;
	int i, len;

	rcu_read_lock();
	channel = rcu_dereference(queue->channel);
	if (channel) {
		slots = channel->slots;
		in_flight = READ_ONCE(channel->nr_in_flight);
		service_ns = READ_ONCE(channel->service_ns);
		polling = efuse_poll_free(channel);
		sleeping = efuse_sleepers(channel);
	}
	rcu_read_unlock();
	len = sysfs_emit(buf, "node %d\nslots %u\ndepth %u\nin_flight %u\nservice_ns %u\n"
			 "polling %u\nsleeping %u\nsent %llu\nstolen %llu\n",
			 queue->node, slots, READ_ONCE(queue->depth), in_flight, service_ns,
			 polling, sleeping, READ_ONCE(queue->sent), READ_ONCE(queue->stolen));
	for (i = 0; i < EFUSE_NR_CHANNEL_COUNTERS; i++)
		len += sysfs_emit_at(buf, len, "%s %llu\n", efuse_channel_counter_names[i],
				     READ_ONCE(stats->channel[i]));
	return len;
}

static const char * const efuse_policy_names[EFUSE_NR_POLICIES] = {
	[EFUSE_POLICY_LEAST] = "least",
	[EFUSE_POLICY_OWN] = "own",
};

static ssize_t policy_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 policy = READ_ONCE(efuse_conn_of(kobj)->policy);

	return sysfs_emit(buf, "%s\n", efuse_policy_names[policy]);
}

static ssize_t policy_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int policy = sysfs_match_string(efuse_policy_names, buf);

	if (policy < 0)
		return policy;
	WRITE_ONCE(ec->policy, policy);
	/* Other workers may be allowed to take what waits now. */
	efuse_queues_wake_all(ec->fc);
	return count;
}

static struct kobj_attribute policy_attr = __ATTR_RW(policy);

static struct efuse_number spin_ns_number = {
	__ATTR(spin_ns, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, spin_ns), 0, EFUSE_MAX_SPIN_NS, 1
};

static struct efuse_number threshold_number = {
	__ATTR(threshold, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, threshold), 1, EFUSE_MAX_THRESHOLD, 1
};

static struct efuse_number spread_number = {
	__ATTR(spread, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, spread), 0, 1, 1
};

static struct attribute * const efuse_channel_settings[] = {
	&policy_attr.attr,
	&spin_ns_number.attr.attr,
	&threshold_number.attr.attr,
	&spread_number.attr.attr,
};

/* One for each possible CPU. They and their list are allocated by efuse_channel_sysfs_init(). */
static struct efuse_channel_attr *efuse_channel_attrs;

struct attribute_group efuse_channel_group = {
	.name = "channels",
};

static void efuse_channel_attr_init(struct efuse_channel_attr *channel, int cpu)
{
	snprintf(channel->name, sizeof(channel->name), "%d", cpu);
	sysfs_attr_init(&channel->attr.attr);
	channel->attr.attr.name = channel->name;
	channel->attr.attr.mode = 0444;
	channel->attr.show = efuse_channel_show;
	channel->cpu = cpu;
}

/**
 * efuse_channel_sysfs_init - make the attributes of channels/, which all connections share
 *
 * Return: 0 or -ENOMEM; efuse_channel_sysfs_exit() frees them in both cases
 */
int efuse_channel_sysfs_init(void)
{
	size_t settings = ARRAY_SIZE(efuse_channel_settings), cpus = num_possible_cpus();
	struct efuse_channel_attr *channel;
	struct attribute **list;
	int cpu;

	efuse_channel_attrs = kcalloc(cpus, sizeof(*efuse_channel_attrs), GFP_KERNEL);
	efuse_channel_group.attrs = kcalloc(settings + cpus + 1, sizeof(*list), GFP_KERNEL);
	if (!efuse_channel_attrs || !efuse_channel_group.attrs)
		return -ENOMEM;
	channel = efuse_channel_attrs;
	list = efuse_channel_group.attrs;
	memcpy(list, efuse_channel_settings, sizeof(efuse_channel_settings));
	list += settings;
	for_each_possible_cpu(cpu) {
		efuse_channel_attr_init(channel, cpu);
		*list++ = &channel++->attr.attr;
	}
	return 0;
}

void efuse_channel_sysfs_exit(void)
{
	kfree(efuse_channel_group.attrs);
	kfree(efuse_channel_attrs);
}
