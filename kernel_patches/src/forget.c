// SPDX-License-Identifier: GPL-2.0
/* FORGETs: a nodeid that the daemon forgets loses its extents, and what is known of it. */
#include "efuse_i.h"

/**
 * efuse_forget_request - the daemon is about to forget a nodeid
 * @ec: connection
 * @nodeid: the nodeid
 *
 * Ends all extents of the nodeid, unless the kernel holds an inode of it.
 *
 * Context: process context, may sleep.
 */
void efuse_forget_request(struct efuse_conn *ec, u64 nodeid)
{
	bool held;

	if (!xa_load(&ec->backed, nodeid))
		return;
	/* A holder of killsb may be waiting for the daemon, which is the current task. */
	held = down_read_trylock(&ec->fc->killsb);
	if (!held || !efuse_inode_alive(ec, nodeid))
		efuse_extents_forget(ec, nodeid);
	if (held)
		up_read(&ec->fc->killsb);
}

/* Gives a FORGET the daemon's nodeid. Returns false if the daemon does not know of the inode. */
static bool efuse_forget_translate(struct efuse_conn *ec, struct fuse_forget_link *forget,
				   u64 *nodeid, u64 *nlookup)
{
	if (!efuse_translates(ec) || forget->efuse_kind == EFUSE_FORGET_RAW)
		return true;
	forget->efuse_serial = 1 + efuse_nodeid_forgotten(ec, nodeid, nlookup,
							  forget->efuse_kind == EFUSE_FORGET_ALL);
	return *nlookup;
}

/**
 * efuse_forgotten - a FORGET is about to be queued
 * @fc: connection
 * @forget: the FORGET
 * @nodeid: the kernel's nodeid of the inode; set to the daemon's
 * @nlookup: number of lookups; set to how many of them the present daemon has answered
 *
 * Context: process context, may sleep; memory reclaim may call this.
 * Return: true if there is nothing to tell the daemon, and @forget is freed
 */
bool efuse_forgotten(struct fuse_conn *fc, struct fuse_forget_link *forget, u64 *nodeid,
		     u64 *nlookup)
{
	struct efuse_conn *ec = efuse_conn_get(fc);

	forget->efuse_nodeid = *nodeid;
	if (!ec)
		return false;
	forget->efuse_changes = !READ_ONCE(ec->stable_nodeids);
	if (forget->efuse_changes)
		efuse_epoch_enter(ec, efuse_bucket_identity(*nodeid));
	efuse_extents_forget(ec, *nodeid);
	if (efuse_forget_translate(ec, forget, nodeid, nlookup))
		return false;
	if (forget->efuse_changes)
		efuse_epoch_leave(ec, efuse_bucket_identity(forget->efuse_nodeid));
	kfree(forget);
	return true;
}

/**
 * efuse_forget_read - the daemon is about to read a FORGET
 * @fiq: the queue that the FORGET was in
 * @forget: the FORGET
 *
 * Ends the extents that were mapped and the values that were published for the nodeid while the
 * FORGET was queued. If the kernel holds an inode of this nodeid again, it is still the same inode,
 * since the daemon has not forgotten it yet: then its extents stay.
 *
 * Context: process context, may sleep.
 */
void efuse_forget_read(struct fuse_iqueue *fiq, const struct fuse_forget_link *forget)
{
	struct efuse_conn *ec = efuse_conn_get(efuse_queue_conn(fiq));
	u64 nodeid = forget->efuse_nodeid;

	if (!ec)
		return;
	efuse_forget_request(ec, nodeid);
	/* A file without a name is freed now or soon. */
	efuse_epoch_bump(ec, efuse_bucket_inode(0, EFUSE_KIND_VOLUME));
	if (forget->efuse_changes)
		efuse_epoch_leave(ec, efuse_bucket_identity(nodeid));
}
