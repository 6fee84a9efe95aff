// SPDX-License-Identifier: GPL-2.0
/* Connections. Every mount has a struct efuse_conn from its start to its end. */
#include "efuse_i.h"

#include <linux/mm.h>
#include <linux/random.h>

/* Protects the list of connections, and serializes attaching and detaching. Inside fuse_mutex. */
DEFINE_MUTEX(efuse_conn_mutex);
static LIST_HEAD(efuse_conns);

/* The mounted connection with this name in sysfs, or NULL. Under efuse_conn_mutex. */
struct efuse_conn *efuse_conn_find(u32 id)
{
	struct efuse_conn *ec;

	lockdep_assert_held(&efuse_conn_mutex);
	list_for_each_entry(ec, &efuse_conns, list)
		if (ec->id == id)
			return ec;
	return NULL;
}

/* The connection that a program set is attached to, or NULL. Under efuse_conn_mutex. */
struct efuse_conn *efuse_conn_of_ops(const struct efuse_ops *ops)
{
	struct efuse_conn *ec;

	lockdep_assert_held(&efuse_conn_mutex);
	list_for_each_entry(ec, &efuse_conns, list)
		if (rcu_access_pointer(ec->ops) == ops)
			return ec;
	return NULL;
}

/* Are answers independent of the caller? */
bool efuse_conn_caller_free(const struct efuse_conn *ec)
{
	return ec->fc->default_permissions || READ_ONCE(ec->caller_independent);
}

/**
 * efuse_stack_depth - check the mount option stack_depth
 * @depth: set to the depth
 * @wanted: value of the option
 *
 * Return: 0, or -EINVAL if the depth is 0 or more than the kernel allows
 */
int efuse_stack_depth(unsigned int *depth, unsigned int wanted)
{
	if (!wanted || wanted > FILESYSTEM_MAX_STACK_DEPTH)
		return -EINVAL;
	*depth = wanted;
	return 0;
}

/*
 * Lock classes of a mount that is deeper than EFUSE_STACK_DEPTH. Its files may be backed by files
 * of another eFuse mount, whose locks are then taken while those of the deeper mount are held.
 * Separate classes show lockdep this order.
 */
static struct lock_class_key efuse_deep_writers[SB_FREEZE_LEVELS];
static struct lock_class_key efuse_deep_rwsem;
static struct lock_class_key efuse_deep_invalidate;

/**
 * efuse_stack_on - set the stacking depth of a mount
 * @sb: superblock of the mount, which must not be visible yet
 * @depth: stacking depth, at least EFUSE_STACK_DEPTH
 */
void efuse_stack_on(struct super_block *sb, unsigned int depth)
{
	int i;

	sb->s_stack_depth = depth;
	if (depth <= EFUSE_STACK_DEPTH)
		return;
	for (i = 0; i < SB_FREEZE_LEVELS; i++)
		lockdep_set_class(&sb->s_writers.rw_sem[i], &efuse_deep_writers[i]);
}

/**
 * efuse_file_inode_init - initialize the inode of a regular file
 * @inode: the inode, which must not have been locked yet
 */
void efuse_file_inode_init(struct inode *inode)
{
	if (inode->i_sb->s_stack_depth <= EFUSE_STACK_DEPTH)
		return;
	lockdep_set_class(&inode->i_rwsem, &efuse_deep_rwsem);
	lockdep_set_class(&inode->i_mapping->invalidate_lock, &efuse_deep_invalidate);
}

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
	mutex_init(&ec->channels_mutex);
	INIT_LIST_HEAD(&ec->list);
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

	mutex_lock(&efuse_conn_mutex);
	list_add_tail(&ec->list, &efuse_conns);
	mutex_unlock(&efuse_conn_mutex);
	/* Pairs with efuse_conn_get(): requests see only a complete connection. */
	smp_store_release(&fc->efuse, ec);
	return 0;

out_free:
	efuse_queues_free(ec);
	free_percpu(ec->stats);
	kfree(ec);
	return err;
}

/**
 * efuse_limits_apply - let FUSE make requests of up to max_request bytes
 * @ec: connection
 *
 * Requests that are larger than the daemon accepts are sent to it in parts. Does nothing before
 * INIT's reply; efuse_conn_limits() calls this again then.
 */
void efuse_limits_apply(struct efuse_conn *ec)
{
	u32 bytes = READ_ONCE(ec->max_request);
	struct fuse_conn *fc = ec->fc;

	spin_lock(&fc->lock);
	if (ec->daemon_read) {
		fc->max_pages = max_t(u32, fc->max_pages, bytes / PAGE_SIZE);
		fc->max_read = max(fc->max_read, bytes);
		fc->max_write = max(fc->max_write, bytes);
	}
	spin_unlock(&fc->lock);
}

/**
 * efuse_conn_limits - note the largest requests that the daemon accepts, from INIT's reply
 * @fc: the connection
 */
void efuse_conn_limits(struct fuse_conn *fc)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	u32 bytes = fc->max_pages * PAGE_SIZE;

	if (!ec)
		return;
	ec->daemon_write = min(bytes, fc->max_write);
	ec->daemon_read = min(bytes, fc->max_read);
	efuse_limits_apply(ec);
}

/**
 * efuse_daemon_max_write - get the largest WRITE that is sent to the daemon
 * @fc: the connection
 *
 * Return: bytes of data; struct fuse_conn's max_write may be more
 */
u32 efuse_daemon_max_write(const struct fuse_conn *fc)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	return ec && ec->daemon_write ? ec->daemon_write : fc->max_write;
}

/**
 * efuse_read_size - get the least size of a buffer for requests
 * @fc: the connection
 *
 * Return: bytes that a read(2) of the daemon must have room for
 */
u32 efuse_read_size(const struct fuse_conn *fc)
{
	return max_t(u32, FUSE_MIN_READ_BUFFER, sizeof(struct fuse_in_header) +
		     sizeof(struct fuse_write_in) + efuse_daemon_max_write(fc));
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
 * efuse_conn_settle - wait until an unmounted connection holds no backing file any more
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
	efuse_later_settle(ec);
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
