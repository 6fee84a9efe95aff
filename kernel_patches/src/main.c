// SPDX-License-Identifier: GPL-2.0
/*
 * Start and end of eFuse within the FUSE module, and of connections. Every mount has a struct
 * efuse_conn from its start to its end.
 */
#include "efuse_i.h"

#include <linux/random.h>

/**
 * efuse_conn_add - create eFuse's half of a connection
 * @fc: a connection that is about to be mounted and has its device number
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
	ec->round = EFUSE_ROUND;
	ec->probes = EFUSE_PROBES;
	ec->max_readdir = EFUSE_READDIR;
	ec->spin_ns = EFUSE_SPIN_NS;
	ec->threshold = EFUSE_THRESHOLD;
	ec->spread = 1;
	ec->revalidate = true;
	atomic64_set(&ec->clock_offset, ktime_mono_to_real(0));
	mutex_init(&ec->channels_mutex);
	INIT_LIST_HEAD(&ec->list);
	efuse_recovery_add(ec);
	/* A random start makes values from maps of another connection void here. */
	atomic64_set(&ec->epoch, (u64)get_random_u32() + 1);
	atomic64_set(&ec->floor, atomic64_read(&ec->epoch));
	get_random_bytes(&ec->caller_key, sizeof(ec->caller_key));

	ec->stats = alloc_percpu(struct efuse_stats);
	if (!ec->stats)
		goto out_free;

	err = efuse_queues_add(ec);
	if (err)
		goto out_free;
	efuse_extents_add(ec);

	err = efuse_sysfs_add(ec);
	if (err)
		return err;

	efuse_conn_register(ec);
	/* Pairs with efuse_conn_get(): requests see only a complete connection. */
	smp_store_release(&fc->efuse, ec);
	return 0;

out_free:
	efuse_queues_free(ec);
	efuse_recovery_free(ec);
	free_percpu(ec->stats);
	kfree(ec);
	return err;
}

/**
 * efuse_conn_remove - a connection is unmounted: detach its programs, remove it from sysfs
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
	efuse_extents_clear(ec);
	efuse_sysfs_remove(ec);
}

/**
 * efuse_conn_settle - wait until an unmounted connection holds no backing file and no work any more
 * @fc: the connection
 *
 * After that, the file systems of its backing files can be unmounted. If the caller is killed,
 * backing files may still be open when this returns.
 *
 * Context: process context, may sleep; not under fuse_mutex, since closing the last backing file
 *	    may end another FUSE mount.
 */
void efuse_conn_settle(struct fuse_conn *fc)
{
	struct efuse_conn *ec = fc->efuse;

	if (!ec)
		return;
	efuse_recovery_settle(ec);
	efuse_deferred_settle(ec);
	efuse_extents_settle(ec);
}

/**
 * efuse_conn_free - release eFuse's half of a connection, when the last reference to it is gone
 * @fc: the connection
 */
void efuse_conn_free(struct fuse_conn *fc)
{
	if (fc->efuse)
		kobject_put(&fc->efuse->kobj);
}

int efuse_init(void)
{
	int err;

	err = efuse_extents_init();
	if (err)
		return err;
	err = efuse_unresolved_init();
	if (err)
		goto out_extents;
	err = efuse_sysfs_init();
	if (err)
		goto out_unresolved;

	/* These two cannot be unregistered: they end with the BTF of the module. */
	err = efuse_kfuncs_init();
	if (!err)
		err = efuse_ops_init();
	if (!err)
		return 0;
	efuse_sysfs_exit();
out_unresolved:
	efuse_unresolved_exit();
out_extents:
	efuse_extents_exit();
	return err;
}

void efuse_exit(void)
{
	efuse_sysfs_exit();
	efuse_unresolved_exit();
	efuse_extents_exit();
}
