// SPDX-License-Identifier: GPL-2.0
/* The directory paths of a connection in sysfs: settings of the paths, and their counters. */
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
	[EFUSE_PATH_NS] = "ns",
	[EFUSE_PATH_TIMED] = "timed",
	[EFUSE_PATH_PROBES] = "probes",
	[EFUSE_PATH_PREDICTED] = "predicted",
	[EFUSE_PATH_PREDICTED_NS] = "predicted_ns",
	[EFUSE_PATH_ACTUAL_NS] = "actual_ns",
	[EFUSE_PATH_ERROR_NS] = "error_ns",
};

struct efuse_path_attr {
	struct kobj_attribute attr;
	u8 path;
	u8 counter;
};

/* Attributes that all connections share; filled in for the first connection, under fuse_mutex. */
static struct efuse_path_attr efuse_path_attrs[EFUSE_NR_PATHS][EFUSE_NR_PATH_COUNTERS];
static struct efuse_path_attr efuse_latency_attrs[EFUSE_NR_PATHS];
static struct attribute *efuse_path_lists[EFUSE_NR_PATHS][EFUSE_NR_PATH_COUNTERS + 2];
static struct attribute_group efuse_path_groups[EFUSE_NR_PATHS];

static struct efuse_conn *efuse_conn_of_paths(struct kobject *kobj)
{
	return container_of(kobj->parent, struct efuse_conn, kobj);
}

static ssize_t forced_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 path = READ_ONCE(efuse_conn_of_paths(kobj)->forced_path);

	return sysfs_emit(buf, "%s\n", efuse_path_names[path]);
}

static ssize_t forced_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	int path = sysfs_match_string(efuse_path_names, buf);

	if (path < 0)
		return path;
	WRITE_ONCE(efuse_conn_of_paths(kobj)->forced_path, path);
	return count;
}

static struct kobj_attribute forced_attr = __ATTR_RW(forced);

static ssize_t max_request_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_conn_of_paths(kobj)->max_request));
}

/* The limit can only be raised: FUSE relies on that while it makes a request. */
static ssize_t max_request_store(struct kobject *kobj, struct kobj_attribute *attr,
				 const char *buf, size_t count)
{
	struct efuse_conn *ec = efuse_conn_of_paths(kobj);
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
			  efuse_stats_sum(efuse_conn_of_paths(kobj),
					  offsetof(struct efuse_stats, evicted)));
}

static struct kobj_attribute evicted_attr = __ATTR_RO(evicted);

static const struct attribute *efuse_paths_attrs[] = {
	&forced_attr.attr,
	&max_request_attr.attr,
	&max_readdir_number.attr.attr,
	&round_number.attr.attr,
	&probes_number.attr.attr,
	&evicted_attr.attr,
	NULL
};

static ssize_t efuse_path_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_path_attr *path = container_of(attr, struct efuse_path_attr, attr);
	struct efuse_conn *ec = efuse_conn_of_paths(kobj);

	/* Requests are timed only while their times are being read. */
	if (path->counter == EFUSE_PATH_NS)
		efuse_watch_times(ec);
	return sysfs_emit(buf, "%llu\n",
			  efuse_stats_sum(ec, offsetof(struct efuse_stats,
						       path[path->path][path->counter])));
}

static ssize_t efuse_latency_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_path_attr *path = container_of(attr, struct efuse_path_attr, attr);
	struct efuse_conn *ec = efuse_conn_of_paths(kobj);
	int i, len = 0;

	efuse_watch_times(ec);
	for (i = 0; i < EFUSE_NR_LATENCIES; i++)
		len += sysfs_emit_at(buf, len, "%llu%c",
				     efuse_stats_sum(ec, offsetof(struct efuse_stats,
								  latency[path->path][i])),
				     i == EFUSE_NR_LATENCIES - 1 ? '\n' : ' ');
	return len;
}

static void efuse_path_attr_fill(struct efuse_path_attr *path, const char *name, int nr,
				 ssize_t (*show)(struct kobject *kobj,
						 struct kobj_attribute *attr, char *buf))
{
	sysfs_attr_init(&path->attr.attr);
	path->attr.attr.name = name;
	path->attr.attr.mode = 0444;
	path->attr.show = show;
	path->path = nr;
}

static void efuse_path_sysfs_fill(void)
{
	int i, j;

	for (i = EFUSE_PATH_AUTO + 1; i < EFUSE_NR_PATHS; i++) {
		for (j = 0; j < EFUSE_NR_PATH_COUNTERS; j++) {
			struct efuse_path_attr *path = &efuse_path_attrs[i][j];

			efuse_path_attr_fill(path, efuse_path_counter_names[j], i, efuse_path_show);
			path->counter = j;
			efuse_path_lists[i][j] = &path->attr.attr;
		}
		efuse_path_attr_fill(&efuse_latency_attrs[i], "latency", i, efuse_latency_show);
		efuse_path_lists[i][j] = &efuse_latency_attrs[i].attr.attr;
		efuse_path_groups[i].name = efuse_path_names[i];
		efuse_path_groups[i].attrs = efuse_path_lists[i];
	}
}

int efuse_path_sysfs_add(struct efuse_conn *ec)
{
	int i, err;

	lockdep_assert_held(&fuse_mutex);
	if (!efuse_path_groups[EFUSE_PATH_DAEMON].name)
		efuse_path_sysfs_fill();

	ec->paths_kobj = kobject_create_and_add("paths", &ec->kobj);
	if (!ec->paths_kobj)
		return -ENOMEM;
	err = sysfs_create_files(ec->paths_kobj, efuse_paths_attrs);
	for (i = EFUSE_PATH_AUTO + 1; !err && i < EFUSE_NR_PATHS; i++)
		err = sysfs_create_group(ec->paths_kobj, &efuse_path_groups[i]);
	if (err)
		efuse_path_sysfs_remove(ec);
	return err;
}

void efuse_path_sysfs_remove(struct efuse_conn *ec)
{
	kobject_put(ec->paths_kobj);
	ec->paths_kobj = NULL;
}
