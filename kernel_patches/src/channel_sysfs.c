// SPDX-License-Identifier: GPL-2.0
/* channels/ of a connection in sysfs: the queue of each CPU, and the channel that serves it. */
#include "efuse_i.h"

#include <linux/sysfs.h>

/* @kobj is channels/<cpu> of a connection. */
static struct efuse_conn *efuse_conn_of_channel(struct kobject *kobj)
{
	return container_of(kobj->parent->parent, struct efuse_conn, kobj);
}

static struct efuse_queue *efuse_queue_of(struct kobject *kobj)
{
	struct efuse_conn *ec = efuse_conn_of_channel(kobj);
	int cpu;

	/* efuse_channel_sysfs_add() made the name from a number. */
	if (WARN_ON_ONCE(kstrtoint(kobject_name(kobj), 10, &cpu)))
		cpu = 0;
	return ec->queues[cpu];
}

static ssize_t node_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", efuse_queue_of(kobj)->node);
}

static struct kobj_attribute node_attr = __ATTR_RO(node);

static ssize_t depth_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_queue_of(kobj)->depth));
}

static struct kobj_attribute depth_attr = __ATTR_RO(depth);

static ssize_t sent_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", READ_ONCE(efuse_queue_of(kobj)->sent));
}

static struct kobj_attribute sent_attr = __ATTR_RO(sent);

static ssize_t stolen_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", READ_ONCE(efuse_queue_of(kobj)->stolen));
}

static struct kobj_attribute stolen_attr = __ATTR_RO(stolen);

/* A u32 of the CPU's channel; 0 if the CPU has no channel. */
#define EFUSE_CHANNEL_ATTR(name, value)							\
	static ssize_t name##_show(struct kobject *kobj, struct kobj_attribute *attr,	\
				   char *buf)						\
	{										\
		struct efuse_channel *channel;						\
		u32 number;								\
											\
		rcu_read_lock();							\
		channel = rcu_dereference(efuse_queue_of(kobj)->channel);		\
		number = channel ? (value) : 0;						\
		rcu_read_unlock();							\
		return sysfs_emit(buf, "%u\n", number);					\
	}										\
	static struct kobj_attribute name##_attr = __ATTR_RO(name)

static u32 efuse_sleepers(struct efuse_channel *channel)
{
	size_t count;

	spin_lock_irq(&channel->waitq.lock);
	count = list_count_nodes(&channel->waitq.head);
	spin_unlock_irq(&channel->waitq.lock);
	return count;
}

EFUSE_CHANNEL_ATTR(slots, channel->slots);
EFUSE_CHANNEL_ATTR(in_flight, READ_ONCE(channel->nr_in_flight));
EFUSE_CHANNEL_ATTR(service_ns, READ_ONCE(channel->service_ns));
EFUSE_CHANNEL_ATTR(polling, efuse_poll_free(channel));
EFUSE_CHANNEL_ATTR(sleeping, efuse_sleepers(channel));

/* A counter of events on the CPU. */
struct efuse_channel_count {
	struct kobj_attribute attr;
	enum efuse_channel_counter counter;
};

static ssize_t count_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	const struct efuse_channel_count *count = container_of(attr, struct efuse_channel_count,
								 attr);
	const struct efuse_stats *stats = per_cpu_ptr(efuse_conn_of_channel(kobj)->stats,
						      efuse_queue_of(kobj)->cpu);

	return sysfs_emit(buf, "%llu\n", READ_ONCE(stats->channel[count->counter]));
}

#define EFUSE_CHANNEL_COUNT(name, counter)			\
	static struct efuse_channel_count name##_count = {	\
		__ATTR(name, 0444, count_show, NULL), counter	\
	}

EFUSE_CHANNEL_COUNT(poll_hits, EFUSE_POLL_HITS);
EFUSE_CHANNEL_COUNT(poll_misses, EFUSE_POLL_MISSES);
EFUSE_CHANNEL_COUNT(spin_hits, EFUSE_SPIN_HITS);
EFUSE_CHANNEL_COUNT(spin_misses, EFUSE_SPIN_MISSES);
EFUSE_CHANNEL_COUNT(elsewhere, EFUSE_ELSEWHERE);
EFUSE_CHANNEL_COUNT(others_woken, EFUSE_OTHERS_WOKEN);
EFUSE_CHANNEL_COUNT(brought, EFUSE_BROUGHT);
EFUSE_CHANNEL_COUNT(refused, EFUSE_REPLY_REFUSED);

static const struct attribute *efuse_channel_attrs[] = {
	&node_attr.attr,
	&slots_attr.attr,
	&depth_attr.attr,
	&in_flight_attr.attr,
	&service_ns_attr.attr,
	&polling_attr.attr,
	&sleeping_attr.attr,
	&sent_attr.attr,
	&stolen_attr.attr,
	&poll_hits_count.attr.attr,
	&poll_misses_count.attr.attr,
	&spin_hits_count.attr.attr,
	&spin_misses_count.attr.attr,
	&elsewhere_count.attr.attr,
	&others_woken_count.attr.attr,
	&brought_count.attr.attr,
	&refused_count.attr.attr,
	NULL
};

/* Attributes of channels/ itself, for all channels of the connection. */
static const char * const efuse_policy_names[EFUSE_NR_POLICIES] = {
	[EFUSE_POLICY_LEAST] = "least",
	[EFUSE_POLICY_OWN] = "own",
};

static struct efuse_conn *efuse_conn_of_channels(struct kobject *kobj)
{
	return container_of(kobj->parent, struct efuse_conn, kobj);
}

static ssize_t policy_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 policy = READ_ONCE(efuse_conn_of_channels(kobj)->policy);

	return sysfs_emit(buf, "%s\n", efuse_policy_names[policy]);
}

static ssize_t policy_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	struct efuse_conn *ec = efuse_conn_of_channels(kobj);
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

static const struct attribute *efuse_channels_attrs[] = {
	&policy_attr.attr,
	&spin_ns_number.attr.attr,
	&threshold_number.attr.attr,
	&spread_number.attr.attr,
	NULL
};

static int efuse_channel_sysfs_add_one(struct efuse_conn *ec, struct efuse_queue *queue)
{
	char name[12];

	snprintf(name, sizeof(name), "%d", queue->cpu);
	queue->kobj = kobject_create_and_add(name, ec->channels_kobj);
	if (!queue->kobj)
		return -ENOMEM;
	return sysfs_create_files(queue->kobj, efuse_channel_attrs);
}

int efuse_channel_sysfs_add(struct efuse_conn *ec)
{
	int cpu, err;

	ec->channels_kobj = kobject_create_and_add("channels", &ec->kobj);
	if (!ec->channels_kobj)
		return -ENOMEM;
	err = sysfs_create_files(ec->channels_kobj, efuse_channels_attrs);
	for_each_possible_cpu(cpu) {
		if (err)
			break;
		err = efuse_channel_sysfs_add_one(ec, ec->queues[cpu]);
	}
	if (err)
		efuse_channel_sysfs_remove(ec);
	return err;
}

void efuse_channel_sysfs_remove(struct efuse_conn *ec)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		kobject_put(ec->queues[cpu]->kobj);
		ec->queues[cpu]->kobj = NULL;
	}
	kobject_put(ec->channels_kobj);
	ec->channels_kobj = NULL;
}
