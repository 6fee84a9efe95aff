// SPDX-License-Identifier: GPL-2.0
/* paths/ of a connection in sysfs: settings, and a file with the counters of each path. */
#include "efuse_i.h"

#include <linux/sysfs.h>

static const char * const efuse_path_names[EFUSE_NR_PATHS] = {
	[EFUSE_PATH_AUTO] = "auto",
	[EFUSE_PATH_DAEMON] = "daemon",
	[EFUSE_PATH_DIRECT] = "direct",
	[EFUSE_PATH_CACHE] = "cache",
	[EFUSE_PATH_DEVICE] = "device",
};

static const char * const efuse_path_counter_names[EFUSE_NR_PATH_COUNTERS] = {
	[EFUSE_PATH_CHOSEN] = "chosen",
	[EFUSE_PATH_REQUESTS] = "requests",
	[EFUSE_PATH_PARTIAL] = "partial",
	[EFUSE_PATH_BYTES] = "bytes",
	[EFUSE_PATH_PROBES] = "probes",
	[EFUSE_PATH_PREDICTED] = "predicted",
	[EFUSE_PATH_PREDICTED_NS] = "predicted_ns",
	[EFUSE_PATH_ACTUAL_NS] = "actual_ns",
	[EFUSE_PATH_ERROR_NS] = "error_ns",
};

static ssize_t forced_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 path = READ_ONCE(efuse_conn_of(kobj)->forced_path);

	return sysfs_emit(buf, "%s\n", efuse_path_names[path]);
}

static ssize_t forced_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	int path = sysfs_match_string(efuse_path_names, buf);

	if (path < 0)
		return path;
	WRITE_ONCE(efuse_conn_of(kobj)->forced_path, path);
	return count;
}

static struct kobj_attribute forced_attr = __ATTR_RW(forced);

static ssize_t max_request_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_conn_of(kobj)->max_request));
}

/* The limit can only be raised: FUSE relies on that while it makes a request. */
static ssize_t max_request_store(struct kobject *kobj, struct kobj_attribute *attr,
				 const char *buf, size_t count)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	u32 bytes;
	int err = kstrtou32(buf, 10, &bytes);

	if (err)
		return err;
	if (bytes % PAGE_SIZE || bytes > EFUSE_MAX_PAGES * PAGE_SIZE ||
	    bytes < READ_ONCE(ec->max_request))
		return -EINVAL;
	/* Workers carry out WRITEs of write-back that are larger than the daemon accepts. */
	err = bytes ? efuse_deferred_prepare(ec) : 0;
	if (err)
		return err;
	WRITE_ONCE(ec->max_request, bytes);
	efuse_limits_apply(ec);
	return count;
}

static struct kobj_attribute max_request_attr = __ATTR_RW(max_request);

static struct efuse_number max_readdir_number = {
	__ATTR(max_readdir, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, max_readdir), PAGE_SIZE, EFUSE_MAX_READDIR, PAGE_SIZE
};

static struct efuse_number round_number = {
	__ATTR(round, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, round), 1, EFUSE_MAX_ROUND, 1
};

static struct efuse_number probes_number = {
	__ATTR(probes, 0644, efuse_number_show, efuse_number_store),
	offsetof(struct efuse_conn, probes), 0, EFUSE_MAX_PROBES, 1
};

static ssize_t evicted_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n",
			  efuse_stats_sum(efuse_conn_of(kobj),
					  offsetof(struct efuse_stats, evicted)));
}

static struct kobj_attribute evicted_attr = __ATTR_RO(evicted);

struct efuse_path_attr {
	struct kobj_attribute attr;
	u8 path;
};

static ssize_t efuse_path_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 path = container_of(attr, struct efuse_path_attr, attr)->path;
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int i, len = 0;

	for (i = 0; i < EFUSE_NR_PATH_COUNTERS; i++)
		len += sysfs_emit_at(buf, len, "%s %llu\n", efuse_path_counter_names[i],
				     efuse_stats_sum(ec, offsetof(struct efuse_stats,
								  path[path][i])));
	len += sysfs_emit_at(buf, len, "ns %llu\ntimed %llu\nlatency",
			     EFUSE_TIMES_SUM(ec, path[path].ns),
			     EFUSE_TIMES_SUM(ec, path[path].timed));
	for (i = 0; i < EFUSE_NR_LATENCIES; i++)
		len += sysfs_emit_at(buf, len, " %llu", EFUSE_TIMES_SUM(ec, latency[path][i]));
	return len + sysfs_emit_at(buf, len, "\n");
}

#define EFUSE_PATH_ATTR(name, number) { __ATTR(name, 0444, efuse_path_show, NULL), number }

static struct efuse_path_attr efuse_path_attrs[] = {
	EFUSE_PATH_ATTR(daemon, EFUSE_PATH_DAEMON),
	EFUSE_PATH_ATTR(direct, EFUSE_PATH_DIRECT),
	EFUSE_PATH_ATTR(cache, EFUSE_PATH_CACHE),
	EFUSE_PATH_ATTR(device, EFUSE_PATH_DEVICE),
};

/* efuse_path_list[] lists each of them. */
static_assert(ARRAY_SIZE(efuse_path_attrs) == 4);

static struct attribute *efuse_path_list[] = {
	&forced_attr.attr,
	&max_request_attr.attr,
	&max_readdir_number.attr.attr,
	&round_number.attr.attr,
	&probes_number.attr.attr,
	&evicted_attr.attr,
	&efuse_path_attrs[0].attr.attr,
	&efuse_path_attrs[1].attr.attr,
	&efuse_path_attrs[2].attr.attr,
	&efuse_path_attrs[3].attr.attr,
	NULL
};

const struct attribute_group efuse_path_group = {
	.name = "paths",
	.attrs = efuse_path_list,
};
