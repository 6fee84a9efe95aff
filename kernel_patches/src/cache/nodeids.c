// SPDX-License-Identifier: GPL-2.0
/*
 * The nodeids of a daemon that numbers its inodes for itself, after it has taken the place of one
 * that has died.
 *
 * The kernel goes on using the nodeids that it has. A table has the present daemon's nodeid for
 * each, once it is known. Both are the same until the first successor serves. The root has the
 * same nodeid at all daemons.
 *
 * A successor's inode that is new to the kernel gets a number that no inode has had. The nodeids of
 * an earlier daemon may still be in replies that are being read, in FORGETs of inodes that are
 * being evicted, and in file handles (name_to_handle_at(2)), so none of them may become another
 * inode's.
 *
 * What is known of an earlier daemon's nodeids stays in the tables until it is replaced, or until
 * the kernel forgets the inode.
 */
#include "cache_i.h"

#include <linux/sched/mm.h>

/* The first number of those that the kernel gives itself. See also EFUSE_FH_OWN. */
#define EFUSE_NODEID_OWN	BIT_ULL(61)

/**
 * struct efuse_nodeid - a nodeid of the kernel, and that of a daemon for the same inode
 * @rcu: for freeing
 * @kernel: the kernel's nodeid
 * @daemon: the daemon's
 * @count: lookups that this daemon has answered, without those that it was told to forget
 * @before: the lookups that the kernel's inode counted when @daemon became known: an earlier
 *	    daemon's
 * @incarnation: number of the daemon
 * @generation: the inode's generation in the kernel
 * @its: the generation that the daemon reports for it
 * @numbered: the daemon counts st_ino as nodeids
 */
struct efuse_nodeid {
	struct rcu_head rcu;
	u64 kernel;
	u64 daemon;
	u64 generation;
	u64 its;
	u64 count;
	u64 before;
	u32 incarnation;
	bool numbered;
};

/* Is there nothing to translate, because no successor has served yet? */
static bool efuse_nodeids_plain(const struct efuse_conn *ec, u32 incarnation)
{
	return !ec->recovery.translates || !incarnation;
}

/* Under RCU, or the lock of the tables. */
static struct efuse_nodeid *efuse_nodeid_find(struct xarray *table, u64 key, u32 incarnation)
{
	struct efuse_nodeid *nodeid = xa_load(table, key);

	return nodeid && nodeid->incarnation == incarnation ? nodeid : NULL;
}

/**
 * efuse_nodeid_daemon - get a daemon's nodeid for one of the kernel's
 * @ec: connection
 * @kernel: the kernel's nodeid
 * @incarnation: number of the daemon
 *
 * Context: any.
 * Return: the daemon's nodeid; 0 if it is not known
 */
u64 efuse_nodeid_daemon(struct efuse_conn *ec, u64 kernel, u32 incarnation)
{
	const struct efuse_nodeid *nodeid;
	u64 daemon;

	if (efuse_nodeids_plain(ec, incarnation) || kernel == FUSE_ROOT_ID)
		return kernel;
	rcu_read_lock();
	nodeid = efuse_nodeid_find(&ec->recovery.by_kernel, kernel, incarnation);
	daemon = nodeid ? nodeid->daemon : 0;
	rcu_read_unlock();
	return daemon;
}

/**
 * efuse_nodeid_kernel - get the kernel's nodeid for one of the present daemon's
 * @fc: connection
 * @daemon: the daemon's nodeid
 *
 * Context: any.
 * Return: the kernel's nodeid; 0 if the kernel does not know of such an inode
 */
u64 efuse_nodeid_kernel(const struct fuse_conn *fc, u64 daemon)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	const struct efuse_nodeid *nodeid;
	u32 incarnation;
	u64 kernel;

	if (!ec)
		return daemon;
	incarnation = READ_ONCE(ec->recovery.incarnation);
	if (efuse_nodeids_plain(ec, incarnation) || daemon == FUSE_ROOT_ID)
		return daemon;
	rcu_read_lock();
	nodeid = efuse_nodeid_find(&ec->recovery.by_daemon, daemon, incarnation);
	kernel = nodeid ? nodeid->kernel : 0;
	rcu_read_unlock();
	return kernel;
}

/* Removes a pair from both tables, and frees it. Under their lock. */
static void efuse_nodeid_free(struct efuse_conn *ec, struct efuse_nodeid *nodeid)
{
	if (xa_load(&ec->recovery.by_daemon, nodeid->daemon) == nodeid)
		xa_erase(&ec->recovery.by_daemon, nodeid->daemon);
	xa_erase(&ec->recovery.by_kernel, nodeid->kernel);
	kfree_rcu(nodeid, rcu);
}

/* Adds a pair to both tables. Under their lock. Returns NULL if there is no memory. */
static struct efuse_nodeid *efuse_nodeid_new(struct efuse_conn *ec, u64 kernel, u64 daemon,
					     u32 incarnation)
{
	struct efuse_nodeid *nodeid = kzalloc(sizeof(*nodeid), GFP_KERNEL_ACCOUNT);
	struct efuse_nodeid *old;

	if (!nodeid)
		return NULL;
	nodeid->kernel = kernel;
	nodeid->daemon = daemon;
	nodeid->incarnation = incarnation;
	old = xa_load(&ec->recovery.by_kernel, kernel);
	if (old)
		efuse_nodeid_free(ec, old);
	if (xa_err(xa_store(&ec->recovery.by_kernel, kernel, nodeid, GFP_KERNEL_ACCOUNT)))
		goto out_free;
	if (xa_err(xa_store(&ec->recovery.by_daemon, daemon, nodeid, GFP_KERNEL_ACCOUNT)))
		goto out_erase;
	return nodeid;

out_erase:
	xa_erase(&ec->recovery.by_kernel, kernel);
out_free:
	kfree_rcu(nodeid, rcu);
	return NULL;
}

/* Has the kernel used a number for an inode? Under the lock of the tables. */
static bool efuse_nodeid_used(struct fuse_mount *fm, struct efuse_conn *ec, u64 kernel)
{
	return xa_load(&ec->recovery.by_kernel, kernel) || efuse_inode_present(fm, kernel);
}

/* A number for an inode that the kernel does not know yet. Under the lock of the tables. */
static u64 efuse_nodeid_choose(struct fuse_mount *fm, struct efuse_conn *ec)
{
	u64 kernel;

	/* Only a daemon that uses such numbers by itself has used them before. */
	do
		kernel = EFUSE_NODEID_OWN + ec->recovery.next_nodeid++;
	while (efuse_nodeid_used(fm, ec, kernel));
	return kernel;
}

/* Takes over what the kernel has counted and noted of its inode for earlier daemons. */
static void efuse_nodeid_inherit(struct fuse_mount *fm, struct efuse_nodeid *nodeid)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid->kernel);
	if (inode) {
		nodeid->before = READ_ONCE(get_fuse_inode(inode)->nlookup);
		nodeid->generation = inode->i_generation;
		nodeid->numbered = !efuse_ino_real(inode);
	}
	rcu_read_unlock();
}

/* The pair for an answer; a new one if the nodeid is new. Under the lock of the tables. */
static struct efuse_nodeid *efuse_nodeid_answered(struct fuse_mount *fm, struct efuse_conn *ec,
						  const struct fuse_entry_out *entry, u64 known,
						  u32 incarnation)
{
	struct efuse_recovery *recovery = &ec->recovery;
	struct efuse_nodeid *nodeid;
	u64 kernel = known;

	nodeid = efuse_nodeid_find(&recovery->by_daemon, entry->nodeid, incarnation);
	if (nodeid)
		return nodeid;
	if (!known || efuse_nodeid_find(&recovery->by_kernel, known, incarnation))
		kernel = efuse_nodeid_choose(fm, ec);
	nodeid = efuse_nodeid_new(ec, kernel, entry->nodeid, incarnation);
	if (!nodeid)
		return NULL;
	nodeid->generation = entry->generation;
	nodeid->its = entry->generation;
	nodeid->numbered = !READ_ONCE(recovery->ino_real);
	if (kernel == known)
		efuse_nodeid_inherit(fm, nodeid);
	return nodeid;
}

/**
 * efuse_nodeid_replied - the daemon has answered a lookup
 * @fm: mount
 * @ec: connection
 * @entry: the answer, whose nodeid is not 0; gets the kernel's nodeid
 * @known: nodeid of the inode that the kernel knows under that name, and whose nodeid at the daemon
 *	   is not known; 0 if there is none
 * @incarnation: number of the daemon
 *
 * Context: process context, may sleep.
 * Return: false if there is no memory, or if the daemon is not the present one any more
 */
bool efuse_nodeid_replied(struct fuse_mount *fm, struct efuse_conn *ec,
			  struct fuse_entry_out *entry, u64 known, u32 incarnation)
{
	struct efuse_nodeid *nodeid = NULL;
	unsigned int nofs;

	if (efuse_nodeids_plain(ec, incarnation) || entry->nodeid == FUSE_ROOT_ID)
		return true;
	mutex_lock(&ec->recovery.nodeids_mutex);
	/* Reclaim may forget inodes. */
	nofs = memalloc_nofs_save();
	if (incarnation == READ_ONCE(ec->recovery.incarnation))
		nodeid = efuse_nodeid_answered(fm, ec, entry, known, incarnation);
	if (nodeid) {
		nodeid->count++;
		if (nodeid->numbered && entry->attr.ino == entry->nodeid)
			entry->attr.ino = nodeid->kernel;
		if (entry->generation == nodeid->its)
			entry->generation = nodeid->generation;
		entry->nodeid = nodeid->kernel;
	}
	memalloc_nofs_restore(nofs);
	mutex_unlock(&ec->recovery.nodeids_mutex);
	return nodeid;
}

/**
 * efuse_nodeid_ino - get the st_ino of an inode of the kernel
 * @ec: connection
 * @kernel: the kernel's nodeid
 * @ino: st_ino in the reply of a daemon
 * @incarnation: number of the daemon
 *
 * Context: any.
 * Return: @kernel if the daemon counts st_ino as nodeids; otherwise @ino
 */
u64 efuse_nodeid_ino(struct efuse_conn *ec, u64 kernel, u64 ino, u32 incarnation)
{
	const struct efuse_nodeid *nodeid;

	if (efuse_nodeids_plain(ec, incarnation))
		return ino;
	rcu_read_lock();
	nodeid = efuse_nodeid_find(&ec->recovery.by_kernel, kernel, incarnation);
	if (nodeid && nodeid->numbered && nodeid->daemon == ino)
		ino = kernel;
	rcu_read_unlock();
	return ino;
}

/**
 * efuse_nodeid_forgotten - the kernel forgets lookups
 * @ec: connection
 * @nodeid: the kernel's nodeid; set to the daemon's
 * @nlookup: number of lookups; set to how many of them the present daemon has answered. If that is
 *	     0, there is nothing to tell the daemon
 * @evicted: these are all lookups of an inode that is evicted
 *
 * Context: process context, may sleep; memory reclaim may call this.
 * Return: number of the daemon
 */
u32 efuse_nodeid_forgotten(struct efuse_conn *ec, u64 *nodeid, u64 *nlookup, bool evicted)
{
	struct efuse_recovery *recovery = &ec->recovery;
	struct efuse_nodeid *known;
	u32 incarnation;

	if (efuse_nodeids_plain(ec, READ_ONCE(recovery->incarnation)) || *nodeid == FUSE_ROOT_ID)
		return 0;
	mutex_lock(&recovery->nodeids_mutex);
	incarnation = READ_ONCE(recovery->incarnation);
	known = xa_load(&recovery->by_kernel, *nodeid);
	if (known && known->incarnation == incarnation) {
		*nodeid = known->daemon;
		if (evicted) {
			*nlookup -= min(*nlookup, known->before);
			known->before = 0;
		}
		*nlookup = min(*nlookup, known->count);
		known->count -= *nlookup;
	} else {
		*nlookup = 0;
	}
	if (known && (known->incarnation != incarnation || !known->count))
		efuse_nodeid_free(ec, known);
	mutex_unlock(&recovery->nodeids_mutex);
	return incarnation;
}

/**
 * efuse_entry_return - give the lookup count of an answer back to the daemon
 * @ec: connection
 * @nodeid: the daemon's nodeid
 * @incarnation: number of the daemon
 */
void efuse_entry_return(struct efuse_conn *ec, u64 nodeid, u32 incarnation)
{
	struct fuse_forget_link *forget = nodeid ? fuse_alloc_forget() : NULL;

	if (!forget)
		return;
	forget->efuse_kind = EFUSE_FORGET_RAW;
	forget->efuse_serial = incarnation + 1;
	efuse_forget(ec->fc, forget, nodeid);
}

/* Prepares the tables of a new connection. */
void efuse_nodeids_add(struct efuse_conn *ec)
{
	mutex_init(&ec->recovery.nodeids_mutex);
	xa_init(&ec->recovery.by_kernel);
	xa_init(&ec->recovery.by_daemon);
}

/* Frees the tables of a connection after the last reference to it is gone. */
void efuse_nodeids_free(struct efuse_conn *ec)
{
	struct efuse_nodeid *nodeid;
	unsigned long index;

	xa_for_each(&ec->recovery.by_kernel, index, nodeid)
		kfree(nodeid);
	xa_destroy(&ec->recovery.by_kernel);
	xa_destroy(&ec->recovery.by_daemon);
}
