// SPDX-License-Identifier: GPL-2.0
/*
 * FUSE's own caches of dentries and attributes, by the mode's rules. They live by
 * the time-outs of the daemon's replies, which are changed here before the caller
 * sees them: to none in strict mode; to years in exclusive mode, since those caches
 * are faster than any handler. And the bits that are the kernel's own are taken out.
 *
 * A raised time-out must not outlive what ended it. A reply that crossed a change of
 * what it tells gets none at all, since FUSE by itself would believe the reply that
 * arrives last.
 */
#include "efuse_i.h"

#include <linux/dcache.h>
#include <linux/pagemap.h>

/* What no daemon may claim. */
void efuse_strip(struct fuse_args *args)
{
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (entry)
		entry->attr.flags &= ~EFUSE_ATTR_UNCOUNTED;
	if (open)
		open->open_flags &= ~EFUSE_FOPEN_LOCAL;
}

static bool efuse_raise_holds(const struct efuse_req *req, const struct efuse_changes *ch,
			      u16 bucket)
{
	bool own;

	return efuse_epoch_holds(req->ec, ch, bucket, req->args->efuse.epoch, &own);
}

static u64 efuse_raise_attr(const struct efuse_req *req, const struct efuse_changes *ch,
			    u64 nodeid)
{
	return efuse_raise_holds(req, ch, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR)) ?
		EFUSE_RAISED_SECS : 0;
}

static void efuse_raise_entry(const struct efuse_req *req, const struct efuse_changes *ch,
			      const char *name, u32 len, struct fuse_entry_out *entry)
{
	/* A dentry is seen by all callers. */
	if (efuse_conn_caller_free(req->ec)) {
		entry->entry_valid_nsec = 0;
		entry->entry_valid = name &&
			efuse_raise_holds(req, ch,
					  efuse_bucket_entry(req->args->nodeid, name, len)) ?
			EFUSE_RAISED_SECS : 0;
	}
	if (entry->nodeid) {
		entry->attr_valid_nsec = 0;
		entry->attr_valid = efuse_raise_attr(req, ch, entry->nodeid);
	}
}

static void efuse_end_entry(struct fuse_entry_out *entry)
{
	entry->entry_valid = 0;
	entry->entry_valid_nsec = 0;
	entry->attr_valid = 0;
	entry->attr_valid_nsec = 0;
}

/* Raises the time-outs of READDIRPLUS, or ends them where @ch is NULL. */
static void efuse_raise_dirents(const struct efuse_req *req, const struct efuse_changes *ch)
{
	struct fuse_direntplus *plus;
	size_t left;
	char *at = efuse_dirents_start(req, &left);

	while ((plus = efuse_dirents_next(&at, &left))) {
		if (plus->entry_out.nodeid && ch)
			efuse_raise_entry(req, ch, plus->dirent.name, plus->dirent.namelen,
					  &plus->entry_out);
		else
			efuse_end_entry(&plus->entry_out);
	}
}

static void efuse_raise_exclusive(struct efuse_req *req, const struct efuse_changes *ch)
{
	struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_open_out *open = efuse_out_open(args);
	u32 len;
	const char *name = efuse_req_name_at(args, 0, &len);

	/* Nodeid 0 says the same as ENOENT, and has a time-out. */
	if (args->opcode == FUSE_LOOKUP && req->error == -ENOENT && entry &&
	    efuse_conn_caller_free(req->ec)) {
		memset(entry, 0, sizeof(*entry));
		req->error = 0;
		req->ret = 0;
	}
	if (req->error)
		return;

	if (entry)
		efuse_raise_entry(req, ch, name, len, entry);
	if (attr) {
		attr->attr_valid_nsec = 0;
		attr->attr_valid = efuse_raise_attr(req, ch, args->nodeid);
	}
	if (open && !(open->open_flags & (FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH)) &&
	    !(efuse_arg_flags(args) & O_TRUNC))
		open->open_flags |= efuse_raised_open(req, open->fh);
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_raise_dirents(req, ch);
}

static void efuse_end_strict(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (req->error)
		return;
	if (entry)
		efuse_end_entry(entry);
	if (attr) {
		attr->attr_valid = 0;
		attr->attr_valid_nsec = 0;
	}
	if (open)
		open->open_flags &= ~(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR);
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_raise_dirents(req, NULL);
}

/**
 * efuse_raise - give a reply the time-outs of the mode
 * @req: a request that the daemon answered, learned from already
 * @ch: what it changed, ended
 */
void efuse_raise(struct efuse_req *req, const struct efuse_changes *ch)
{
	switch (READ_ONCE(req->ec->consistency)) {
	case EFUSE_STRICT:
		efuse_end_strict(req);
		break;
	case EFUSE_EXCLUSIVE:
		if (rcu_access_pointer(req->ec->ops))
			efuse_raise_exclusive(req, ch);
		break;
	}
}

/**
 * efuse_lower_attrs - let FUSE ask for an inode's attributes anew
 * @fm: mount
 * @nodeid: of the inode
 */
void efuse_lower_attrs(struct fuse_mount *fm, u64 nodeid)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(fm, nodeid);
	if (inode) {
		fuse_invalidate_attr(inode);
		efuse_acls_end(inode);
	}
	rcu_read_unlock();
}

/* The names in a directory; negative ones are found in no other way. */
static void efuse_lower_names(struct inode *dir)
{
	struct dentry *dentry = d_find_any_alias(dir);
	struct dentry *child;

	if (!dentry)
		return;
	spin_lock(&dentry->d_lock);
	hlist_for_each_entry(child, &dentry->d_children, d_sib)
		fuse_invalidate_entry_cache(child);
	spin_unlock(&dentry->d_lock);
	dput(dentry);
}

static void efuse_lower_inode(struct fuse_conn *fc, struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	spin_lock(&fi->lock);
	fi->i_time = 0;
	/* Replies on their way are void, too. */
	fi->attr_version = atomic64_inc_return(&fc->attr_version);
	spin_unlock(&fi->lock);
	fuse_invalidate_attr(inode);
	efuse_acls_end(inode);
	/* Waits for nobody: the daemon itself may be what writes to sysfs. */
	invalidate_mapping_pages(inode->i_mapping, 0, -1);
	if (S_ISDIR(inode->i_mode))
		efuse_lower_names(inode);
}

static void efuse_lower_sb(struct fuse_conn *fc, struct super_block *sb)
{
	struct inode *inode, *last = NULL;

	spin_lock(&sb->s_inode_list_lock);
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list) {
		if (!igrab(inode))
			continue;
		/* Held until the next is found, so that it stays in the list. */
		spin_unlock(&sb->s_inode_list_lock);
		iput(last);
		last = inode;
		efuse_lower_inode(fc, inode);
		cond_resched();
		spin_lock(&sb->s_inode_list_lock);
	}
	spin_unlock(&sb->s_inode_list_lock);
	iput(last);
}

/**
 * efuse_lower - end all time-outs of FUSE's own caches
 * @fc: connection
 *
 * Context: process context, may sleep.
 */
void efuse_lower(struct fuse_conn *fc)
{
	struct fuse_mount *fm;

	down_read(&fc->killsb);
	list_for_each_entry(fm, &fc->mounts, fc_entry)
		if (fm->sb)
			efuse_lower_sb(fc, fm->sb);
	up_read(&fc->killsb);
}
