// SPDX-License-Identifier: GPL-2.0
/* The counters of a connection, kept per CPU, and the files in sysfs of those per opcode. */
#include "core_i.h"

#include <linux/sysfs.h>

static const char * const efuse_counter_names[EFUSE_NR_COUNTERS] = {
	[EFUSE_REQUESTS] = "requests",
	[EFUSE_HITS] = "hits",
	[EFUSE_REFUSED] = "refused",
	[EFUSE_DAEMON] = "daemon",
	[EFUSE_ERRORS] = "errors",
	[EFUSE_MISS] = "miss",
	[EFUSE_STALE] = "stale",
	[EFUSE_EXPIRED] = "expired",
	[EFUSE_OTHER_UID] = "other_uid",
	[EFUSE_NOT_ALIVE] = "not_alive",
	[EFUSE_NO_HANDLER] = "no_handler",
	[EFUSE_DECLINED] = "declined",
	[EFUSE_INVALID_VERDICT] = "invalid_verdict",
	[EFUSE_UNMAPPED] = "unmapped",
	[EFUSE_FAILED] = "failed",
	[EFUSE_HIT_NS] = "hit_ns",
	[EFUSE_HIT_TIMED] = "hit_timed",
	[EFUSE_DAEMON_NS] = "daemon_ns",
	[EFUSE_DAEMON_TIMED] = "daemon_timed",
};

/* The opcodes of <linux/fuse.h> that are answered, and their directories in sysfs. */
static const struct {
	u8 opcode;
	const char *name;
} efuse_opcodes[] = {
	{ FUSE_LOOKUP, "lookup" },
	{ FUSE_GETATTR, "getattr" },
	{ FUSE_SETATTR, "setattr" },
	{ FUSE_READLINK, "readlink" },
	{ FUSE_SYMLINK, "symlink" },
	{ FUSE_MKNOD, "mknod" },
	{ FUSE_MKDIR, "mkdir" },
	{ FUSE_UNLINK, "unlink" },
	{ FUSE_RMDIR, "rmdir" },
	{ FUSE_RENAME, "rename" },
	{ FUSE_LINK, "link" },
	{ FUSE_OPEN, "open" },
	{ FUSE_READ, "read" },
	{ FUSE_WRITE, "write" },
	{ FUSE_STATFS, "statfs" },
	{ FUSE_RELEASE, "release" },
	{ FUSE_FSYNC, "fsync" },
	{ FUSE_SETXATTR, "setxattr" },
	{ FUSE_GETXATTR, "getxattr" },
	{ FUSE_LISTXATTR, "listxattr" },
	{ FUSE_REMOVEXATTR, "removexattr" },
	{ FUSE_FLUSH, "flush" },
	{ FUSE_INIT, "init" },
	{ FUSE_OPENDIR, "opendir" },
	{ FUSE_READDIR, "readdir" },
	{ FUSE_RELEASEDIR, "releasedir" },
	{ FUSE_FSYNCDIR, "fsyncdir" },
	{ FUSE_GETLK, "getlk" },
	{ FUSE_SETLK, "setlk" },
	{ FUSE_SETLKW, "setlkw" },
	{ FUSE_ACCESS, "access" },
	{ FUSE_CREATE, "create" },
	{ FUSE_BMAP, "bmap" },
	{ FUSE_DESTROY, "destroy" },
	{ FUSE_IOCTL, "ioctl" },
	{ FUSE_POLL, "poll" },
	{ FUSE_FALLOCATE, "fallocate" },
	{ FUSE_READDIRPLUS, "readdirplus" },
	{ FUSE_RENAME2, "rename2" },
	{ FUSE_LSEEK, "lseek" },
	{ FUSE_COPY_FILE_RANGE, "copy_file_range" },
	{ FUSE_SETUPMAPPING, "setupmapping" },
	{ FUSE_REMOVEMAPPING, "removemapping" },
	{ FUSE_SYNCFS, "syncfs" },
	{ FUSE_TMPFILE, "tmpfile" },
	{ FUSE_STATX, "statx" },
	{ EFUSE_COPY_FILE_RANGE_64, "copy_file_range_64" },
};

struct efuse_stat_attr {
	struct kobj_attribute attr;
	u8 opcode;
	u8 counter;
};

/* Attributes that all connections share; filled in for the first connection, under fuse_mutex. */
static struct efuse_stat_attr efuse_stat_attrs[ARRAY_SIZE(efuse_opcodes)][EFUSE_NR_COUNTERS];
static struct attribute *efuse_stat_lists[ARRAY_SIZE(efuse_opcodes)][EFUSE_NR_COUNTERS + 1];
static struct attribute_group efuse_stat_groups[ARRAY_SIZE(efuse_opcodes)];

/* The sum over all CPUs of the u64 counter at @offset in struct efuse_stats. */
u64 efuse_stats_sum(const struct efuse_conn *ec, size_t offset)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(u64 *)((char *)per_cpu_ptr(ec->stats, cpu) + offset));
	return sum;
}

static ssize_t efuse_stat_show(struct kobject *kobj, struct kobj_attribute *attr,
			       char *buf)
{
	struct efuse_conn *ec = container_of(kobj->parent, struct efuse_conn, kobj);
	struct efuse_stat_attr *stat = container_of(attr, struct efuse_stat_attr, attr);

	/* Requests are timed only while their times are being read. */
	if (stat->counter == EFUSE_HIT_NS || stat->counter == EFUSE_DAEMON_NS)
		efuse_watch_times(ec);
	return sysfs_emit(buf, "%llu\n",
			  efuse_stats_sum(ec, offsetof(struct efuse_stats,
						       op[stat->opcode][stat->counter])));
}

static void efuse_stats_fill(void)
{
	int i, j;

	for (i = 0; i < ARRAY_SIZE(efuse_opcodes); i++) {
		for (j = 0; j < EFUSE_NR_COUNTERS; j++) {
			struct efuse_stat_attr *stat = &efuse_stat_attrs[i][j];

			sysfs_attr_init(&stat->attr.attr);
			stat->attr.attr.name = efuse_counter_names[j];
			stat->attr.attr.mode = 0444;
			stat->attr.show = efuse_stat_show;
			stat->opcode = efuse_opcodes[i].opcode;
			stat->counter = j;
			efuse_stat_lists[i][j] = &stat->attr.attr;
		}
		efuse_stat_groups[i].name = efuse_opcodes[i].name;
		efuse_stat_groups[i].attrs = efuse_stat_lists[i];
	}
}

int efuse_stats_add(struct efuse_conn *ec)
{
	int i, err;

	lockdep_assert_held(&fuse_mutex);
	if (!efuse_stat_groups[0].name)
		efuse_stats_fill();

	ec->stats_kobj = kobject_create_and_add("stats", &ec->kobj);
	if (!ec->stats_kobj)
		return -ENOMEM;
	for (i = 0; i < ARRAY_SIZE(efuse_opcodes); i++) {
		err = sysfs_create_group(ec->stats_kobj, &efuse_stat_groups[i]);
		if (err) {
			efuse_stats_remove(ec);
			return err;
		}
	}
	return 0;
}

void efuse_stats_remove(struct efuse_conn *ec)
{
	kobject_put(ec->stats_kobj);
	ec->stats_kobj = NULL;
}
