// SPDX-License-Identifier: GPL-2.0
/* A connection's files in sysfs about its daemon: whether one serves, and the end of the last. */
#include "efuse_i.h"

#include <linux/sysfs.h>

static ssize_t recovery_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_conn_of(kobj)->recovery.seconds));
}

static ssize_t recovery_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			      size_t count)
{
	u32 seconds;
	int err = kstrtou32(buf, 10, &seconds);

	if (err)
		return err;
	if (seconds > EFUSE_MAX_RECOVERY)
		return -EINVAL;
	err = efuse_recovery_set(efuse_conn_of(kobj), seconds);
	return err ?: count;
}

static ssize_t daemon_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	static const char * const names[] = {
		[EFUSE_DAEMON_SERVING] = "serving",
		[EFUSE_DAEMON_DEAD] = "dead",
		[EFUSE_DAEMON_STARTING] = "starting",
	};
	const struct efuse_conn *ec = efuse_conn_of(kobj);

	return sysfs_emit(buf, "%s\n", efuse_connected(ec->fc) ?
			  names[READ_ONCE(ec->recovery.daemon)] : "none");
}

static ssize_t incarnation_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_conn_of(kobj)->recovery.incarnation));
}

static ssize_t daemon_exit_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	struct efuse_recovery *recovery = &ec->recovery;
	u64 died, until;
	s64 seconds;

	spin_lock(&efuse_chan(ec->fc)->bg_lock);
	died = recovery->died_ns;
	until = recovery->served_ns ?: ktime_get_boottime_ns();
	seconds = recovery->died_s;
	spin_unlock(&efuse_chan(ec->fc)->bg_lock);
	if (!died)
		return sysfs_emit(buf, "none\n");
	return sysfs_emit(buf, "%lld %d %d %d %d %llu\n", seconds, atomic_read(&recovery->lost),
			  atomic_read(&recovery->resent), atomic_read(&recovery->settled),
			  atomic_read(&recovery->failed), div_u64(until - died, NSEC_PER_MSEC));
}

static struct kobj_attribute recovery_attr = __ATTR_RW(recovery);
static struct kobj_attribute daemon_attr = __ATTR_RO(daemon);
static struct kobj_attribute incarnation_attr = __ATTR_RO(incarnation);
static struct kobj_attribute daemon_exit_attr = __ATTR_RO(daemon_exit);

static struct attribute *efuse_recovery_attrs[] = {
	&recovery_attr.attr,
	&daemon_attr.attr,
	&incarnation_attr.attr,
	&daemon_exit_attr.attr,
	NULL
};

const struct attribute_group efuse_recovery_group = {
	.attrs = efuse_recovery_attrs,
};
