// SPDX-License-Identifier: GPL-2.0
/* Notifications of the daemon that invalidate or store something. */
#include "cache_i.h"

/* Apply the changes of a notification, then call the program's notify(). */
static void efuse_notify(struct efuse_conn *ec, struct efuse_changes *ch,
			 struct efuse_notify *n)
{
	struct efuse_ops *ops;

	efuse_epoch_begin(ec, ch);
	efuse_epoch_end(ec, ch, 0);
	n->epoch = ch->epoch;

	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	if (ops && ops->notify)
		ops->notify(n);
	rcu_read_unlock();
}

static void efuse_notify_content(struct fuse_conn *fc, u64 nodeid, u32 code)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	struct efuse_notify n = { .code = code };
	struct efuse_changes ch = {};

	if (!ec)
		return;
	nodeid = efuse_nodeid_kernel(fc, nodeid);
	n.nodeid = nodeid;
	efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR));
	efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT));
	efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_XATTR));
	efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_RIGHTS));
	efuse_changes_add(&ch, efuse_bucket_inode(0, EFUSE_KIND_VOLUME));
	/* STORE itself updates the pages. */
	if (code == EFUSE_NOTIFY_INVAL_INODE)
		efuse_changes_add(&ch, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
	efuse_notify(ec, &ch, &n);
}

void efuse_notify_inode(struct fuse_conn *fc, u64 nodeid)
{
	efuse_notify_content(fc, nodeid, EFUSE_NOTIFY_INVAL_INODE);
}

void efuse_notify_store(struct fuse_conn *fc, u64 nodeid)
{
	efuse_notify_content(fc, nodeid, EFUSE_NOTIFY_STORE);
}

/* Returns the kernel's nodeid for @child, the daemon's nodeid. */
u64 efuse_notify_entry(struct fuse_conn *fc, u64 parent, u64 child, const struct qstr *name)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	struct efuse_notify n = {
		.code = child ? EFUSE_NOTIFY_DELETE : EFUSE_NOTIFY_INVAL_ENTRY,
		.name = name->name,
		.len = name->len,
	};
	struct efuse_changes ch = {};

	if (!ec)
		return child;
	parent = efuse_nodeid_kernel(fc, parent);
	child = child ? efuse_nodeid_kernel(fc, child) : 0;
	n.nodeid = parent;
	efuse_changes_add(&ch, efuse_bucket_entry(parent, name->name, name->len));
	efuse_changes_add(&ch, efuse_bucket_inode(parent, EFUSE_KIND_ATTR));
	if (child)
		efuse_changes_add(&ch, efuse_bucket_inode(child, EFUSE_KIND_ATTR));
	efuse_changes_add(&ch, efuse_bucket_inode(0, EFUSE_KIND_VOLUME));
	efuse_notify(ec, &ch, &n);
	return child;
}

/*
 * FUSE has decremented an inode's link count after the reply of an UNLINK, RMDIR or RENAME, or set
 * it to 0 for a DELETE, although the file may have other links. Attributes that were requested
 * before that may already be without the link, so that FUSE would count it twice. They have to be
 * requested again.
 */
void efuse_links_dropped(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	if (ec)
		efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
}

/* All values so far are void: the daemon's INC_EPOCH, which Linux 7.3 has. */
void efuse_notify_all(struct fuse_conn *fc)
{
	struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec)
		return;
	efuse_epoch_void(ec);
	efuse_timeouts_expire(fc);
}
