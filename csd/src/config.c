// SPDX-License-Identifier: GPL-2.0
/* /sys/kernel/config/csd: one directory for each device, with one value in each file. */
#include "csd_i.h"

#include <linux/module.h>

#define CSD_MAX_SIZE_MIB	SZ_1M
#define CSD_MAX_QUEUES		64	/* the kernel creates at most one per CPU */
#define CSD_MAX_DEPTH		1024
#define CSD_MAX_CORES		64
#define CSD_MAX_PERCENT		100000
#define CSD_MAX_MIB_PER_S	SZ_16M
#define CSD_MAX_NS		(60 * NSEC_PER_SEC)
#define CSD_MAX_SHARE		1000000

/**
 * struct csd_number - a number of a device that can be set
 * @offset: offset of the u64 in struct csd_device
 * @least: smallest valid value
 * @most: greatest valid value
 * @fixed: cannot be set while there is power
 * @set: sets the value if that takes more than storing it, else NULL
 */
struct csd_number {
	size_t offset;
	u64 least;
	u64 most;
	bool fixed;
	void (*set)(struct csd_device *device, u64 value);
};

static struct csd_device *csd_device_of(struct config_item *item)
{
	return container_of(item, struct csd_device, item);
}

static int csd_value_parse(const char *page, u64 least, u64 most, u64 *value)
{
	int err = kstrtoull(page, 0, value);

	if (err)
		return err;
	return *value < least || *value > most ? -ERANGE : 0;
}

static u64 *csd_number_of(struct csd_device *device, const struct csd_number *number)
{
	return (void *)device + number->offset;
}

static ssize_t csd_number_show(struct config_item *item, const struct csd_number *number,
			       char *page)
{
	return sysfs_emit(page, "%llu\n", READ_ONCE(*csd_number_of(csd_device_of(item), number)));
}

/* Sets a number that can be set only without power. -EBUSY: there is power. */
static int csd_fixed_set(struct csd_device *device, u64 *number, u64 value)
{
	int err = 0;

	mutex_lock(&device->mutex);
	if (device->disk)
		err = -EBUSY;
	else
		WRITE_ONCE(*number, value);
	mutex_unlock(&device->mutex);
	return err;
}

static int csd_number_set(struct csd_device *device, const struct csd_number *number, u64 value)
{
	if (number->fixed)
		return csd_fixed_set(device, csd_number_of(device, number), value);
	if (number->set)
		number->set(device, value);
	else
		WRITE_ONCE(*csd_number_of(device, number), value);
	return 0;
}

static ssize_t csd_number_store(struct config_item *item, const struct csd_number *number,
				const char *page, size_t count)
{
	u64 value;
	int err = csd_value_parse(page, number->least, number->most, &value);

	return err ?: csd_number_set(csd_device_of(item), number, value) ?: count;
}

static ssize_t csd_counter_show(struct config_item *item, size_t offset, char *page)
{
	const atomic64_t *counter = (void *)csd_device_of(item) + offset;

	return sysfs_emit(page, "%lld\n", atomic64_read(counter));
}

#define CSD_NUMBER(name, field, ...)							\
static const struct csd_number csd_number_##name = {					\
	.offset = offsetof(struct csd_device, field), __VA_ARGS__			\
};											\
static ssize_t csd_##name##_show(struct config_item *item, char *page)			\
{											\
	return csd_number_show(item, &csd_number_##name, page);				\
}											\
static ssize_t csd_##name##_store(struct config_item *item, const char *page, size_t count) \
{											\
	return csd_number_store(item, &csd_number_##name, page, count);			\
}											\
CONFIGFS_ATTR(csd_, name)

#define CSD_COUNTER(name, field)							\
static ssize_t csd_##name##_show(struct config_item *item, char *page)			\
{											\
	return csd_counter_show(item, offsetof(struct csd_device, field), page);	\
}											\
CONFIGFS_ATTR_RO(csd_, name)

CSD_NUMBER(size_mib, size_mib, .least = 1, .most = CSD_MAX_SIZE_MIB, .fixed = true);
CSD_NUMBER(queues, queues, .least = 1, .most = CSD_MAX_QUEUES, .fixed = true);
CSD_NUMBER(depth, depth, .least = 1, .most = CSD_MAX_DEPTH, .fixed = true);
CSD_NUMBER(cores, cores, .least = 1, .most = CSD_MAX_CORES, .fixed = true);

CSD_NUMBER(model, model.model, .most = 1);
CSD_NUMBER(link_mib_per_s, model.link_mib_per_s, .most = CSD_MAX_MIB_PER_S);
CSD_NUMBER(link_latency_ns, model.link_latency_ns, .most = CSD_MAX_NS);
CSD_NUMBER(media_mib_per_s, model.media_mib_per_s, .most = CSD_MAX_MIB_PER_S);
CSD_NUMBER(media_latency_ns, model.media_latency_ns, .most = CSD_MAX_NS);
CSD_NUMBER(media_units, model.media_units, .least = 1, .most = CSD_MAX_UNITS);
CSD_NUMBER(core_percent, model.core_percent, .least = 100, .most = CSD_MAX_PERCENT);

CSD_NUMBER(fail_every, fail_every, .most = U32_MAX, .set = csd_device_fail_every);
CSD_NUMBER(fail_next, fail_next, .most = U32_MAX, .set = csd_device_fail_next);
CSD_NUMBER(delay_ns, delay_ns, .most = CSD_MAX_NS);
CSD_NUMBER(hold, hold, .most = 1, .set = csd_device_hold);

CSD_NUMBER(forced, schedule.forced, .most = CSD_KERNEL);
CSD_NUMBER(try_share, schedule.try_share, .most = CSD_MAX_SHARE);

CSD_COUNTER(link_read_bytes, model.link_read_bytes);
CSD_COUNTER(link_write_bytes, model.link_write_bytes);
CSD_COUNTER(media_read_bytes, model.media_read_bytes);
CSD_COUNTER(media_write_bytes, model.media_write_bytes);
CSD_COUNTER(core_busy_ns, model.core_busy_ns);
CSD_COUNTER(reads, reads);
CSD_COUNTER(writes, writes);
CSD_COUNTER(commands, commands);
CSD_COUNTER(chosen_device, schedule.chosen_device);
CSD_COUNTER(chosen_kernel, schedule.chosen_kernel);
CSD_COUNTER(chosen_policy, schedule.chosen_policy);
CSD_COUNTER(predicted_ns, schedule.predicted_ns);
CSD_COUNTER(actual_ns, schedule.actual_ns);
CSD_COUNTER(error_ns, schedule.error_ns);

static ssize_t csd_held_show(struct config_item *item, char *page)
{
	return sysfs_emit(page, "%llu\n", READ_ONCE(csd_device_of(item)->held));
}
CONFIGFS_ATTR_RO(csd_, held);

static const struct csd_number csd_number_logical_block_size = {
	.offset	= offsetof(struct csd_device, logical_block_size),
	.fixed	= true,
};

static ssize_t csd_logical_block_size_show(struct config_item *item, char *page)
{
	return csd_number_show(item, &csd_number_logical_block_size, page);
}

static ssize_t csd_logical_block_size_store(struct config_item *item, const char *page,
					    size_t count)
{
	u64 value;
	int err = csd_value_parse(page, SECTOR_SIZE, CSD_BLOCK_SIZE, &value);

	if (!err && value != SECTOR_SIZE && value != CSD_BLOCK_SIZE)
		err = -EINVAL;
	return err ?: csd_number_set(csd_device_of(item), &csd_number_logical_block_size,
				     value) ?: count;
}
CONFIGFS_ATTR(csd_, logical_block_size);

static ssize_t csd_index_show(struct config_item *item, char *page)
{
	return sysfs_emit(page, "%d\n", READ_ONCE(csd_device_of(item)->index));
}
CONFIGFS_ATTR_RO(csd_, index);

static ssize_t csd_power_show(struct config_item *item, char *page)
{
	return sysfs_emit(page, "%d\n", !!READ_ONCE(csd_device_of(item)->disk));
}

static ssize_t csd_power_store(struct config_item *item, const char *page, size_t count)
{
	struct csd_device *device = csd_device_of(item);
	u64 power;
	int err = csd_value_parse(page, 0, 1, &power);

	if (err)
		return err;
	mutex_lock(&device->mutex);
	if (!power)
		csd_device_off(device);
	else if (!device->disk)
		err = csd_device_on(device);
	mutex_unlock(&device->mutex);
	return err ?: count;
}
CONFIGFS_ATTR(csd_, power);

static struct configfs_attribute *csd_attrs[] = {
	&csd_attr_size_mib,
	&csd_attr_queues,
	&csd_attr_depth,
	&csd_attr_logical_block_size,
	&csd_attr_cores,
	&csd_attr_power,
	&csd_attr_index,
	&csd_attr_model,
	&csd_attr_link_mib_per_s,
	&csd_attr_link_latency_ns,
	&csd_attr_media_mib_per_s,
	&csd_attr_media_latency_ns,
	&csd_attr_media_units,
	&csd_attr_core_percent,
	&csd_attr_fail_every,
	&csd_attr_fail_next,
	&csd_attr_delay_ns,
	&csd_attr_hold,
	&csd_attr_forced,
	&csd_attr_try_share,
	&csd_attr_held,
	&csd_attr_link_read_bytes,
	&csd_attr_link_write_bytes,
	&csd_attr_media_read_bytes,
	&csd_attr_media_write_bytes,
	&csd_attr_core_busy_ns,
	&csd_attr_reads,
	&csd_attr_writes,
	&csd_attr_commands,
	&csd_attr_chosen_device,
	&csd_attr_chosen_kernel,
	&csd_attr_chosen_policy,
	&csd_attr_predicted_ns,
	&csd_attr_actual_ns,
	&csd_attr_error_ns,
	NULL,
};

static void csd_item_release(struct config_item *item)
{
	csd_device_free(csd_device_of(item));
}

static struct configfs_item_operations csd_item_ops = {
	.release	= csd_item_release,
};

static const struct config_item_type csd_item_type = {
	.ct_item_ops	= &csd_item_ops,
	.ct_attrs	= csd_attrs,
	.ct_owner	= THIS_MODULE,
};

static struct config_item *csd_group_make_item(struct config_group *group, const char *name)
{
	struct csd_device *device = csd_device_alloc();

	if (!device)
		return ERR_PTR(-ENOMEM);
	config_item_init_type_name(&device->item, name, &csd_item_type);
	return &device->item;
}

static void csd_group_drop_item(struct config_group *group, struct config_item *item)
{
	struct csd_device *device = csd_device_of(item);

	mutex_lock(&device->mutex);
	csd_device_off(device);
	mutex_unlock(&device->mutex);
	config_item_put(item);
}

static struct configfs_group_operations csd_group_ops = {
	.make_item	= csd_group_make_item,
	.drop_item	= csd_group_drop_item,
};

static const struct config_item_type csd_group_type = {
	.ct_group_ops	= &csd_group_ops,
	.ct_owner	= THIS_MODULE,
};

static struct configfs_subsystem csd_subsystem = {
	.su_group = {
		.cg_item = {
			.ci_namebuf	= "csd",
			.ci_type	= &csd_group_type,
		},
	},
};

int csd_config_init(void)
{
	config_group_init(&csd_subsystem.su_group);
	mutex_init(&csd_subsystem.su_mutex);
	return configfs_register_subsystem(&csd_subsystem);
}

void csd_config_exit(void)
{
	configfs_unregister_subsystem(&csd_subsystem);
}
