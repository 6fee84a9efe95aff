// SPDX-License-Identifier: GPL-2.0
/* The list of connections, stacking depths, and the limits of requests. */
#include "core_i.h"

#include <linux/mm.h>
#include <linux/pagemap.h>

/* Protects the list of connections, and serializes attaching and detaching. Inside fuse_mutex. */
DEFINE_MUTEX(efuse_conn_mutex);
static LIST_HEAD(efuse_conns);

/* Adds a connection to the list of all connections. Takes efuse_conn_mutex. */
void efuse_conn_register(struct efuse_conn *ec)
{
	mutex_lock(&efuse_conn_mutex);
	list_add_tail(&ec->list, &efuse_conns);
	mutex_unlock(&efuse_conn_mutex);
}

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
	if (!efuse_dax(get_fuse_conn(inode))) /* DAX has other operations, and no folios. */
		mapping_set_release_always(inode->i_mapping); /* for efuse_release_folio() */
	if (inode->i_sb->s_stack_depth <= EFUSE_STACK_DEPTH)
		return;
	lockdep_set_class(&inode->i_rwsem, &efuse_deep_rwsem);
	lockdep_set_class(&inode->i_mapping->invalidate_lock, &efuse_deep_invalidate);
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
 * @in: what the kernel has offered
 * @out: what the daemon has accepted
 */
void efuse_conn_limits(struct fuse_conn *fc, const struct fuse_init_in *in,
		       const struct fuse_init_out *out)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	u32 bytes = fc->max_pages * PAGE_SIZE;

	if (!ec)
		return;
	ec->recovery.offers = *in;
	ec->recovery.accepts = *out;
	ec->daemon_write = min(bytes, fc->max_write);
	/* FUSE clears what a READ for the page cache leaves of a page, so parts are whole pages. */
	ec->daemon_read = min(bytes, fc->max_read & PAGE_MASK);
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
 * efuse_dev_refused - does a descriptor belong to a successor that was refused?
 * @fud: the descriptor
 *
 * Return: true if so; it must not have any effect on the connection
 */
bool efuse_dev_refused(const struct fuse_dev *fud)
{
	return efuse_dev_detached(fud);
}

/**
 * efuse_notify_refused - must a descriptor not notify the kernel?
 * @fud: the descriptor
 *
 * Return: true if it belongs to a successor that was refused, or that has not answered INIT yet
 */
bool efuse_notify_refused(const struct fuse_dev *fud)
{
	const struct efuse_conn *ec = efuse_conn_get(efuse_dev_conn(fud));

	return efuse_dev_detached(fud) || (ec && efuse_daemon_absent(ec));
}

/**
 * efuse_read_size - get the least size of a buffer for requests
 * @fc: the connection
 *
 * Return: bytes that a read(2) of the daemon must have room for
 */
u32 efuse_read_size(const struct fuse_conn *fc)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	/* A successor does not know the sizes before it has read INIT. */
	if (ec && efuse_daemon_absent(ec))
		return FUSE_MIN_READ_BUFFER;
	return max_t(u32, FUSE_MIN_READ_BUFFER, sizeof(struct fuse_in_header) +
		     sizeof(struct fuse_write_in) + efuse_daemon_max_write(fc));
}
