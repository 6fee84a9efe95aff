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
 * efuse_stack_depth - the mount option stack_depth
 * @depth: set
 * @wanted: what the option says
 *
 * Return: 0, or -EINVAL where the kernel stacks no file systems so deep
 */
int efuse_stack_depth(unsigned int *depth, unsigned int wanted)
{
	if (!wanted || wanted > FILESYSTEM_MAX_STACK_DEPTH)
		return -EINVAL;
	*depth = wanted;
	return 0;
}

/*
 * A mount whose files back another one's is locked while that one's locks are held. Lockdep is to
 * tell them apart: what is deeper is locked first.
 */
static struct lock_class_key efuse_deep_writers[SB_FREEZE_LEVELS];
static struct lock_class_key efuse_deep_rwsem;
static struct lock_class_key efuse_deep_invalidate;

/**
 * efuse_stack_on - fix how deep a mount is stacked
 * @sb: of the mount, which nobody sees yet
 * @depth: its depth, at least EFUSE_STACK_DEPTH
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
 * efuse_file_inode_init - a regular file has a new inode
 * @inode: the inode, which nobody has locked yet
 */
void efuse_file_inode_init(struct inode *inode)
{
	if (inode->i_sb->s_stack_depth <= EFUSE_STACK_DEPTH)
		return;
	lockdep_set_class(&inode->i_rwsem, &efuse_deep_rwsem);
	lockdep_set_class(&inode->i_mapping->invalidate_lock, &efuse_deep_invalidate);
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
	ec->round = EFUSE_ROUND;
	ec->probes = EFUSE_PROBES;
	ec->max_readdir = EFUSE_READDIR;
	ec->spin_ns = EFUSE_SPIN_NS;
	ec->threshold = EFUSE_THRESHOLD;
	ec->spread = 1;
	mutex_init(&ec->channels_mutex);
	INIT_LIST_HEAD(&ec->list);
	/* Somewhere, so that a value out of another connection's maps is void here. */
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
	/* Requests see the connection only when it is whole. */
	smp_store_release(&fc->efuse, ec);
	return 0;

out_free:
	efuse_queues_free(ec);
	free_percpu(ec->stats);
	kfree(ec);
	return err;
}

/**
 * efuse_limits_apply - let FUSE make requests as large as asked for
 * @ec: connection; larger ones than the daemon takes go to it in parts
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
 * efuse_conn_limits - the daemon has said in INIT's reply how large requests may be
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
 * efuse_daemon_max_write - how much of a WRITE the daemon must have room for
 * @fc: the connection
 */
u32 efuse_daemon_max_write(const struct fuse_conn *fc)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	return ec && ec->daemon_write ? ec->daemon_write : fc->max_write;
}

/**
 * efuse_read_size - how large the buffer of who reads requests must be
 * @fc: the connection
 */
u32 efuse_read_size(const struct fuse_conn *fc)
{
	return max_t(u32, FUSE_MIN_READ_BUFFER, sizeof(struct fuse_in_header) +
		     sizeof(struct fuse_write_in) + efuse_daemon_max_write(fc));
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
	efuse_extents_clear(ec);
	efuse_sysfs_remove(ec);
}

/**
 * efuse_conn_settle - wait until an unmounted connection holds nothing
 * @fc: the connection
 *
 * So that what its backing files lie on can be unmounted next.
 *
 * Context: process context, may sleep; not under fuse_mutex, since with its last
 * file another mount may end.
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
 * efuse_conn_free - the last reference to the connection is gone
 * @fc: the connection
 */
void efuse_conn_free(struct fuse_conn *fc)
{
	if (fc->efuse)
		kobject_put(&fc->efuse->kobj);
}
