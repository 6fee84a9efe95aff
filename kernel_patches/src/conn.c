// SPDX-License-Identifier: GPL-2.0
/* The connections that eFuse knows: every mount has one from its start. */
#include "efuse_i.h"

#include <linux/mm.h>
#include <linux/random.h>

/* Attaching, detaching and the list of connections; taken inside fuse_mutex. */
DEFINE_MUTEX(efuse_conn_mutex);
static LIST_HEAD(efuse_conns);

struct efuse_conn *efuse_conn_find(u32 id)
{
	struct efuse_conn *ec;

	lockdep_assert_held(&efuse_conn_mutex);
	list_for_each_entry(ec, &efuse_conns, list)
		if (ec->id == id)
			return ec;
	return NULL;
}

struct efuse_conn *efuse_conn_of_ops(const struct efuse_ops *ops)
{
	struct efuse_conn *ec;

	lockdep_assert_held(&efuse_conn_mutex);
	list_for_each_entry(ec, &efuse_conns, list)
		if (rcu_access_pointer(ec->ops) == ops)
			return ec;
	return NULL;
}

/* May an answer given to one caller be given to another? */
bool efuse_conn_caller_free(const struct efuse_conn *ec)
{
	return ec->fc->default_permissions || READ_ONCE(ec->caller_independent);
}

/**
 * efuse_conn_add - give a connection its half of eFuse
 * @fc: a connection about to be mounted, with its device number
 *
 * Context: process context, under fuse_mutex.
 * Return: 0 or a negative errno; the mount fails with it.
 */
int efuse_conn_add(struct fuse_conn *fc)
{
	struct efuse_conn *ec;
	int err = -ENOMEM;

	ec = kzalloc(sizeof(*ec), GFP_KERNEL);
	if (!ec)
		return -ENOMEM;
	ec->fc = fc;
	ec->id = fc->dev;
	ec->consistency = EFUSE_TTL;
	INIT_LIST_HEAD(&ec->list);
	/* Somewhere, so that a value out of another connection's maps is void here. */
	atomic64_set(&ec->epoch, (u64)get_random_u32() + 1);
	atomic64_set(&ec->floor, atomic64_read(&ec->epoch));

	ec->buckets = kvcalloc(EFUSE_NR_BUCKETS, sizeof(*ec->buckets), GFP_KERNEL);
	if (!ec->buckets)
		goto out_free;
	ec->stats = alloc_percpu(struct efuse_stats);
	if (!ec->stats)
		goto out_free;

	err = efuse_sysfs_add(ec);
	if (err)
		return err;

	mutex_lock(&efuse_conn_mutex);
	list_add_tail(&ec->list, &efuse_conns);
	mutex_unlock(&efuse_conn_mutex);
	/* Requests see the connection only when it is whole. */
	smp_store_release(&fc->efuse, ec);
	return 0;

out_free:
	kvfree(ec->buckets);
	kfree(ec);
	return err;
}

/**
 * efuse_conn_remove - the connection is unmounted: nobody can attach any more
 * @fc: the connection
 *
 * Context: process context, under fuse_mutex.
 */
void efuse_conn_remove(struct fuse_conn *fc)
{
	struct efuse_conn *ec = fc->efuse;

	if (!ec)
		return;
	mutex_lock(&efuse_conn_mutex);
	list_del_init(&ec->list);
	efuse_ops_detach(ec, EFUSE_EXIT_UNMOUNT, 0);
	mutex_unlock(&efuse_conn_mutex);
	efuse_sysfs_remove(ec);
}

/**
 * efuse_conn_free - the last reference to the connection is gone
 * @fc: the connection
 */
void efuse_conn_free(struct fuse_conn *fc)
{
	if (fc->efuse)
		kobject_put(&fc->efuse->kobj);
}
