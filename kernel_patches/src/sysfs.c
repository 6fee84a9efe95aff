// SPDX-License-Identifier: GPL-2.0
/* /sys/fs/efuse. It is an ABI: docs/sysfs.md describes each file, and each line of a file. */
#include "efuse_i.h"

#include <linux/sysfs.h>

static struct kobject *efuse_kobj;
static struct kobject *efuse_connections_kobj;

static const char * const efuse_consistency_names[EFUSE_NR_CONSISTENCIES] = {
	[EFUSE_STRICT] = "strict",
	[EFUSE_TTL] = "ttl",
	[EFUSE_CTO] = "cto",
	[EFUSE_EXCLUSIVE] = "exclusive",
};

static const char * const efuse_exit_names[] = {
	[EFUSE_EXIT_NONE] = "none",
	[EFUSE_EXIT_UNREGISTER] = "unregister",
	[EFUSE_EXIT_REPLACE] = "replace",
	[EFUSE_EXIT_UNMOUNT] = "unmount",
};

static const char * const efuse_exit_messages[] = {
	[EFUSE_EXIT_UNREGISTER] = "the link of the program set ended",
	[EFUSE_EXIT_REPLACE] = "another program set took its place",
	[EFUSE_EXIT_UNMOUNT] = "the file system was unmounted",
};

static ssize_t state_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", rcu_access_pointer(efuse_conn_of(kobj)->ops) ?
			  "attached" : "plain");
}

static ssize_t connected_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", efuse_connected(efuse_conn_of(kobj)->fc));
}

static ssize_t ops_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_ops *ops;
	ssize_t len;

	rcu_read_lock();
	ops = rcu_dereference(efuse_conn_of(kobj)->ops);
	len = sysfs_emit(buf, "%s\n", ops ? ops->name : "none");
	rcu_read_unlock();
	return len;
}

static ssize_t enable_seq_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(efuse_conn_of(kobj)->enable_seq));
}

static ssize_t exit_info_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	ssize_t len;

	mutex_lock(&efuse_conn_mutex);
	if (ec->exit_kind == EFUSE_EXIT_NONE)
		len = sysfs_emit(buf, "none\n");
	else
		len = sysfs_emit(buf, "%s %lld %s\n", efuse_exit_names[ec->exit_kind],
				 ec->exit_code, efuse_exit_messages[ec->exit_kind]);
	mutex_unlock(&efuse_conn_mutex);
	return len;
}

static ssize_t consistency_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 mode = READ_ONCE(efuse_conn_of(kobj)->consistency);

	return sysfs_emit(buf, "%s\n", efuse_consistency_names[mode]);
}

static ssize_t consistency_store(struct kobject *kobj, struct kobj_attribute *attr,
				 const char *buf, size_t count)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int mode = sysfs_match_string(efuse_consistency_names, buf);

	if (mode < 0)
		return mode;
	WRITE_ONCE(ec->consistency, mode);
	/* Values that were learned under the rules of another mode are void. */
	efuse_epoch_void(ec);
	efuse_timeouts_expire(ec->fc);
	return count;
}

/* A property that the file system declares: a bool member of struct efuse_conn. */
struct efuse_declaration {
	struct kobj_attribute attr;
	size_t offset;
};

static bool *efuse_declared(struct kobject *kobj, struct kobj_attribute *attr)
{
	struct efuse_declaration *decl = container_of(attr, struct efuse_declaration, attr);

	return (void *)efuse_conn_of(kobj) + decl->offset;
}

static ssize_t efuse_declaration_show(struct kobject *kobj, struct kobj_attribute *attr,
				      char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(*efuse_declared(kobj, attr)));
}

static ssize_t efuse_declaration_store(struct kobject *kobj, struct kobj_attribute *attr,
				       const char *buf, size_t count)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	bool *declared = efuse_declared(kobj, attr);
	bool value, ended;
	int err = kstrtobool(buf, &value);

	if (err)
		return err;
	ended = READ_ONCE(*declared) && !value;
	/* First: FUSE needs a number for a handle that the daemon was not asked for. */
	if (value && declared == &ec->lazy_open)
		efuse_recovery_translate(ec);
	WRITE_ONCE(*declared, value);
	efuse_epoch_void(ec);
	/* FUSE's own caches may rely on the declaration that has ended. */
	if (ended)
		efuse_timeouts_expire(ec->fc);
	return count;
}

#define EFUSE_DECLARATION(member) {						\
	.attr = __ATTR(member, 0644, efuse_declaration_show, efuse_declaration_store), \
	.offset = offsetof(struct efuse_conn, member),				\
}

static struct efuse_declaration efuse_declarations[] = {
	EFUSE_DECLARATION(stable_nodeids),
	EFUSE_DECLARATION(nodeid_per_file),
	EFUSE_DECLARATION(caller_independent),
	EFUSE_DECLARATION(no_open),
	EFUSE_DECLARATION(no_flush),
	EFUSE_DECLARATION(lazy_atime),
	EFUSE_DECLARATION(lazy_open),
	EFUSE_DECLARATION(revalidate),
};

/* efuse_conn_attrs[] lists each of them. */
static_assert(ARRAY_SIZE(efuse_declarations) == 8);

static ssize_t epoch_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);

	/* Programs know the daemon's nodeids, and values have the kernel's: no epoch is valid. */
	return sysfs_emit(buf, "%llu\n", efuse_translated(ec) ? 0 : efuse_epoch_now(ec));
}

/* Check what was written to a file that only accepts "1". Returns 0 or a negative errno. */
static int efuse_told(const char *buf)
{
	bool value;
	int err = kstrtobool(buf, &value);

	if (err)
		return err;
	return value ? 0 : -EINVAL;
}

static ssize_t invalidate_store(struct kobject *kobj, struct kobj_attribute *attr,
				const char *buf, size_t count)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int err = efuse_told(buf);

	if (err)
		return err;
	efuse_epoch_void(ec);
	efuse_timeouts_expire(ec->fc);
	WRITE_ONCE(ec->no_terminals, false);
	return count;
}

static ssize_t abort_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	int err = efuse_told(buf);

	if (err)
		return err;
	efuse_abort(efuse_conn_of(kobj)->fc);
	return count;
}

static ssize_t waiting_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	const struct fuse_conn *fc = efuse_conn_of(kobj)->fc;

	return sysfs_emit(buf, "%d\n", atomic_read(&efuse_chan(fc)->num_waiting));
}

static ssize_t io_uring_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", efuse_by_ring(efuse_conn_of(kobj)->fc));
}

/* A counter of the whole connection: a u64 member of struct efuse_stats. */
struct efuse_total {
	struct kobj_attribute attr;
	size_t offset;
};

static ssize_t efuse_total_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_total *total = container_of(attr, struct efuse_total, attr);

	return sysfs_emit(buf, "%llu\n", efuse_stats_sum(efuse_conn_of(kobj), total->offset));
}

#define EFUSE_TOTAL(member) {							\
	.attr = __ATTR(member, 0444, efuse_total_show, NULL),			\
	.offset = offsetof(struct efuse_stats, member),				\
}

static struct efuse_total efuse_totals[] = {
	EFUSE_TOTAL(learned),
	EFUSE_TOTAL(map_full),
	EFUSE_TOTAL(invalid_verdicts),
};

/* Any user may read this, so the memory is allocated once, and stays. */
static ssize_t watch_times_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int err;

	mutex_lock(&efuse_conn_mutex);
	err = efuse_times_add(ec);
	mutex_unlock(&efuse_conn_mutex);
	if (err)
		return err;
	WRITE_ONCE(ec->timed_until, get_jiffies_64() + EFUSE_WATCH_S * HZ);
	return sysfs_emit(buf, "%d\n", EFUSE_WATCH_S);
}

static struct kobj_attribute state_attr = __ATTR_RO(state);
static struct kobj_attribute connected_attr = __ATTR_RO(connected);
static struct kobj_attribute ops_attr = __ATTR_RO(ops);
static struct kobj_attribute enable_seq_attr = __ATTR_RO(enable_seq);
static struct kobj_attribute exit_info_attr = __ATTR_RO(exit_info);
static struct kobj_attribute consistency_attr = __ATTR_RW(consistency);
static struct kobj_attribute epoch_attr = __ATTR_RO_MODE(epoch, 0400);
static struct kobj_attribute invalidate_attr = __ATTR_WO(invalidate);
static struct kobj_attribute abort_attr = __ATTR_WO(abort);
static struct kobj_attribute waiting_attr = __ATTR_RO(waiting);
static struct kobj_attribute io_uring_attr = __ATTR_RO(io_uring);
static struct kobj_attribute watch_times_attr = __ATTR_RO(watch_times);

static struct attribute *efuse_conn_attrs[] = {
	&state_attr.attr,
	&connected_attr.attr,
	&ops_attr.attr,
	&enable_seq_attr.attr,
	&exit_info_attr.attr,
	&consistency_attr.attr,
	&efuse_declarations[0].attr.attr,
	&efuse_declarations[1].attr.attr,
	&efuse_declarations[2].attr.attr,
	&efuse_declarations[3].attr.attr,
	&efuse_declarations[4].attr.attr,
	&efuse_declarations[5].attr.attr,
	&efuse_declarations[6].attr.attr,
	&efuse_declarations[7].attr.attr,
	&epoch_attr.attr,
	&invalidate_attr.attr,
	&abort_attr.attr,
	&waiting_attr.attr,
	&io_uring_attr.attr,
	&watch_times_attr.attr,
	&efuse_totals[0].attr.attr,
	&efuse_totals[1].attr.attr,
	&efuse_totals[2].attr.attr,
	NULL
};

static const struct attribute_group efuse_conn_group = {
	.attrs = efuse_conn_attrs,
};

static const struct attribute_group *efuse_conn_groups[] = {
	&efuse_conn_group,
	&efuse_recovery_group,
	&efuse_opcode_group,
	&efuse_path_group,
	&efuse_channel_group,
	NULL
};

/* An RCU path walk may still use the connection: efuse_dentry_ended(), efuse_attr_ended(). */
static void efuse_conn_free_rcu(struct rcu_head *head)
{
	struct efuse_conn *ec = container_of(head, struct efuse_conn, rcu);

	free_percpu(ec->times);
	free_percpu(ec->stats);
	efuse_epochs_free(ec);
	efuse_order_free(ec);
	kfree(ec);
}

static void efuse_conn_release(struct kobject *kobj)
{
	struct efuse_conn *ec = efuse_conn_of(kobj);

	sysfs_put(ec->connected_node);
	sysfs_put(ec->recovery.node);
	efuse_deferred_free(ec);
	efuse_extents_free(ec);
	efuse_queues_free(ec);
	efuse_recovery_free(ec);
	call_rcu(&ec->rcu, efuse_conn_free_rcu);
}

static const struct kobj_type efuse_conn_ktype = {
	.sysfs_ops = &kobj_sysfs_ops,
	.release = efuse_conn_release,
	.default_groups = efuse_conn_groups,
};

/* Create the connection's directory. On failure the connection is freed with its kobject. */
int efuse_sysfs_add(struct efuse_conn *ec)
{
	int err;

	err = kobject_init_and_add(&ec->kobj, &efuse_conn_ktype, efuse_connections_kobj,
				   "%u", ec->id);
	if (err) {
		kobject_put(&ec->kobj);
		return err;
	}
	ec->connected_node = sysfs_get_dirent(ec->kobj.sd, "connected");
	ec->recovery.node = sysfs_get_dirent(ec->kobj.sd, "daemon");
	return 0;
}

void efuse_sysfs_remove(struct efuse_conn *ec)
{
	kobject_del(&ec->kobj);
}

static ssize_t version_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", EFUSE_VERSION);
}

static struct kobj_attribute version_attr = __ATTR_RO(version);

int efuse_sysfs_init(void)
{
	int err;

	efuse_opcode_sysfs_init();
	err = efuse_channel_sysfs_init();
	if (err)
		goto out_exit;
	err = -ENOMEM;
	efuse_kobj = kobject_create_and_add("efuse", fs_kobj);
	if (!efuse_kobj)
		goto out_exit;
	efuse_connections_kobj = kobject_create_and_add("connections", efuse_kobj);
	if (!efuse_connections_kobj)
		goto out_exit;
	err = sysfs_create_file(efuse_kobj, &version_attr.attr);
	if (err)
		goto out_exit;
	return 0;

out_exit:
	efuse_sysfs_exit();
	return err;
}

void efuse_sysfs_exit(void)
{
	kobject_put(efuse_connections_kobj);
	kobject_put(efuse_kobj);
	efuse_connections_kobj = NULL;
	efuse_kobj = NULL;
	efuse_channel_sysfs_exit();
}
