// SPDX-License-Identifier: GPL-2.0
/*
 * Finds out which nodeid the present daemon has for an inode that the kernel knows from an earlier
 * one: by the inode's name. The names above it are looked up first, if the daemon was not asked for
 * them yet.
 *
 * A daemon tells inodes apart by st_ino, or, if it counts st_ino as it counts nodeids, by the name
 * alone. An inode that has no name any more is not found.
 */
#include "transport_i.h"

#include <linux/cred.h>
#include <linux/dcache.h>

/* The most inodes with the same st_ino that may be the file of a reply. */
#define EFUSE_MAX_LINKED	8

static bool efuse_resolved(struct efuse_conn *ec, const struct inode *inode, u32 incarnation)
{
	return efuse_nodeid_daemon(ec, get_node_id((struct inode *)inode), incarnation);
}

/* Are these attributes, with the nodeid @daemon, those of an inode? */
static bool efuse_same_inode(const struct inode *inode, const struct fuse_attr *attr, u64 daemon)
{
	const struct fuse_inode *fi = get_fuse_inode((struct inode *)inode);

	if (fuse_is_bad((struct inode *)inode) || (inode->i_mode & S_IFMT) != (attr->mode & S_IFMT))
		return false;
	return attr->ino == fi->orig_ino ||
	       (!efuse_ino_real(inode) && attr->ino == daemon);
}

/* Do st_ino and the attributes @entry tell that the file may be the one of an inode? */
static bool efuse_maybe_linked(const struct inode *inode, const struct fuse_entry_out *entry)
{
	if (get_fuse_inode((struct inode *)inode)->orig_ino != entry->attr.ino)
		return false;
	return get_node_id((struct inode *)inode) &&
	       (efuse_ino_real(inode) || entry->attr.ino != entry->nodeid) &&
	       efuse_same_inode(inode, &entry->attr, entry->nodeid);
}

/**
 * efuse_child_known - find the inode that the kernel knows under a name
 * @fm: mount
 * @ec: connection
 * @dir: nodeid of the directory
 * @name: the name
 * @len: its length, bytes
 * @entry: the daemon's answer to a lookup of the name
 * @incarnation: number of the daemon
 *
 * Context: process context, may sleep.
 * Return: the kernel's nodeid of the inode, if its nodeid at the daemon is not known yet and
 *	   @entry may be of this inode; otherwise 0
 */
u64 efuse_child_known(struct fuse_mount *fm, struct efuse_conn *ec, u64 dir, const char *name,
		      u32 len, const struct fuse_entry_out *entry, u32 incarnation)
{
	struct qstr qstr = QSTR_INIT(name, len);
	struct inode *inode = efuse_inode_grab(fm, dir);
	struct dentry *parent, *child;
	u64 nodeid = 0;

	if (!inode)
		return 0;
	parent = d_find_alias(inode);
	iput(inode);
	if (!parent)
		return 0;
	qstr.hash = full_name_hash(parent, name, len);
	child = d_lookup(parent, &qstr);
	dput(parent);
	if (!child)
		return 0;
	inode = d_inode(child);
	if (inode && !efuse_resolved(ec, inode, incarnation) &&
	    efuse_same_inode(inode, &entry->attr, entry->nodeid))
		nodeid = get_node_id(inode);
	dput(child);
	return nodeid;
}

/**
 * efuse_linked_resolve - find a file that the kernel may know under another name
 * @fm: mount
 * @ec: connection
 * @entry: the daemon's answer to a lookup of a name that the kernel does not know
 * @incarnation: number of the daemon
 *
 * A file with two inodes in the kernel would have two page caches. So the files that may be this
 * one are resolved first.
 *
 * Context: process context, may sleep.
 * Return: 0; EFUSE_LOST_UNREAD if the daemon has ended; -EINTR if the caller is being killed
 */
ssize_t efuse_linked_resolve(struct fuse_mount *fm, struct efuse_conn *ec,
			     const struct fuse_entry_out *entry, u32 incarnation)
{
	u64 found[EFUSE_MAX_LINKED];
	struct super_block *sb = fm->sb;
	struct inode *inode;
	ssize_t ret = 0;
	int i, nr = 0;

	if (entry->attr.nlink < 2 || S_ISDIR(entry->attr.mode) ||
	    efuse_nodeid_kernel(ec->fc, entry->nodeid))
		return 0;
	spin_lock(&sb->s_inode_list_lock);
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list)
		if (nr < EFUSE_MAX_LINKED && efuse_maybe_linked(inode, entry) &&
		    !efuse_resolved(ec, inode, incarnation))
			found[nr++] = get_node_id(inode);
	spin_unlock(&sb->s_inode_list_lock);
	for (i = 0; i < nr && !ret; i++) {
		ret = efuse_nodeid_resolve(fm, ec, found[i]);
		if (!efuse_lost(ret) && ret != -EINTR)
			ret = 0;
	}
	return ret;
}

/* Was an inode removed, as far as the kernel knows? */
static bool efuse_removed(const struct inode *inode)
{
	return S_ISDIR(inode->i_mode) ? IS_DEADDIR(inode) : !inode->i_nlink;
}

/*
 * Is a dentry that has lost its name of no use? If its inode was not removed, the name was perhaps
 * only dropped from memory, such as by a notification: then st_ino tells whether the name still has
 * the inode.
 */
static bool efuse_name_lost(const struct dentry *dentry)
{
	const struct inode *inode = d_inode(dentry);

	return d_unhashed(dentry) && (efuse_removed(inode) || !efuse_ino_real(inode));
}

/* A dentry of an inode: one that has its name, if there is one. */
static struct dentry *efuse_alias(struct inode *inode)
{
	struct dentry *dentry = d_find_alias(inode);

	if (!dentry && !efuse_removed(inode) && efuse_ino_real(inode))
		dentry = d_find_any_alias(inode);
	return dentry;
}

/* Tells why a file in use is not found. */
static ssize_t efuse_not_found(const struct efuse_conn *ec, struct dentry *dentry, const char *why)
{
	pr_info_ratelimited("connection %u: a file in use is not found: %pd2 %s\n", ec->id, dentry,
			    why);
	return -ESTALE;
}

/* Is a name still where it was? */
static bool efuse_name_unchanged(struct dentry *dentry, const struct dentry *parent,
				 const struct name_snapshot *name)
{
	bool unchanged;

	spin_lock(&dentry->d_lock);
	unchanged = !efuse_name_lost(dentry) && dentry->d_parent == parent &&
		    dentry->d_name.len == name->name.len &&
		    !memcmp(dentry->d_name.name, name->name.name, name->name.len);
	spin_unlock(&dentry->d_lock);
	return unchanged;
}

/* The inode has the lookup count of an answer. */
static void efuse_lookup_keep(struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	spin_lock(&fi->lock);
	fi->nlookup++;
	spin_unlock(&fi->lock);
}

/* No inode has the lookup count of an answer. */
static void efuse_lookup_drop(struct fuse_conn *fc, u64 nodeid)
{
	struct fuse_forget_link *forget = fuse_alloc_forget();

	if (forget)
		efuse_forget(fc, forget, nodeid);
}

/* Asks a daemon for a name, as the user who has mounted. */
static ssize_t efuse_name_ask(struct fuse_mount *fm, struct efuse_conn *ec, u64 dir,
			      const struct qstr *name, struct fuse_entry_out *entry,
			      u32 incarnation)
{
	struct fuse_args args = { .efuse.early = true };
	const struct cred *old;
	ssize_t ret;

	efuse_lookup_args(&args, dir, name->name, name->len, entry);
	old = override_creds(ec->recovery.cred);
	ret = efuse_exchange(&invalid_mnt_idmap, fm, ec, &args, incarnation);
	revert_creds(old);
	return ret == -ENOENT ? 0 : ret;
}

/*
 * Is the answer of the inode under a name? Then its nodeid at the daemon is known from now on.
 * @begun is what efuse_moves_wait() has set before the daemon was asked.
 */
static ssize_t efuse_name_judge(struct fuse_mount *fm, struct efuse_conn *ec,
				struct dentry *parent, struct dentry *dentry,
				const struct name_snapshot *name, struct fuse_entry_out *entry,
				u64 begun, u32 incarnation)
{
	struct inode *inode = d_inode(dentry);
	u64 daemon = entry->nodeid, dir = get_node_id(d_inode(parent));
	bool same = daemon && efuse_same_inode(inode, &entry->attr, daemon);
	bool unchanged = efuse_name_unchanged(dentry, parent, name);

	if (efuse_moves_since(ec, dir, name->name.name, name->name.len, begun))
		unchanged = false;
	if (unchanged && same &&
	    efuse_nodeid_replied(fm, ec, entry, get_node_id(inode), incarnation)) {
		if (entry->nodeid == get_node_id(inode)) {
			efuse_lookup_keep(inode);
			return 0;
		}
		/* The kernel has got another inode for this file meanwhile. */
		efuse_lookup_drop(fm->fc, entry->nodeid);
		return efuse_not_found(ec, dentry, "has another inode by now");
	}
	efuse_entry_return(ec, daemon, incarnation);
	if (!unchanged)
		return 0;
	if (same)
		return incarnation == READ_ONCE(ec->recovery.incarnation) ? -ENOMEM : 0;
	return efuse_not_found(ec, dentry, daemon ? "is another file by now" : "is not there");
}

/*
 * Looks a name up whose directory is resolved. Returns 0 also if the name has changed meanwhile.
 */
static ssize_t efuse_resolve_name(struct fuse_mount *fm, struct efuse_conn *ec,
				  struct dentry *parent, struct dentry *dentry, u32 incarnation)
{
	u64 dir = get_node_id(d_inode(parent)), begun;
	struct fuse_entry_out entry = {};
	struct name_snapshot name;
	ssize_t ret;

	/* A directory does not get its name back. A file may have another one. */
	if (efuse_name_lost(dentry))
		return d_is_dir(dentry) ? efuse_not_found(ec, dentry, "was removed") : 0;
	take_dentry_name_snapshot(&name, dentry);
	ret = efuse_moves_wait(ec, dir, name.name.name, name.name.len, &begun);
	if (!ret)
		ret = efuse_name_ask(fm, ec, dir, &name.name, &entry, incarnation);
	if (!ret)
		ret = efuse_name_judge(fm, ec, parent, dentry, &name, &entry, begun, incarnation);
	release_dentry_name_snapshot(&name);
	return ret;
}

/*
 * Resolves @dentry, or else the highest directory above it that is not resolved yet. Consumes the
 * reference to @dentry.
 */
static ssize_t efuse_resolve_step(struct fuse_mount *fm, struct efuse_conn *ec,
				  struct dentry *dentry, u32 incarnation)
{
	struct dentry *parent;
	ssize_t ret = -ESTALE;

	while (!IS_ROOT(dentry)) {
		parent = dget_parent(dentry);
		if (efuse_resolved(ec, d_inode(parent), incarnation)) {
			ret = efuse_resolve_name(fm, ec, parent, dentry, incarnation);
			dput(parent);
			break;
		}
		dput(dentry);
		dentry = parent;
	}
	dput(dentry);
	return ret;
}

/**
 * efuse_nodeid_resolve - find the present daemon's nodeid for an inode
 * @fm: mount
 * @ec: connection
 * @nodeid: the kernel's nodeid
 *
 * Context: process context, may sleep; the caller may hold locks of the VFS.
 * Return: 0; -ESTALE if the inode has no name, or if its name has another inode; EFUSE_LOST_UNREAD
 *	   if the daemon has ended; or another negative errno
 */
ssize_t efuse_nodeid_resolve(struct fuse_mount *fm, struct efuse_conn *ec, u64 nodeid)
{
	struct dentry *dentry;
	struct inode *inode;
	u32 incarnation;
	ssize_t ret;

	for (;;) {
		incarnation = READ_ONCE(ec->recovery.incarnation);
		if (efuse_nodeid_daemon(ec, nodeid, incarnation))
			return 0;
		inode = efuse_inode_grab(fm, nodeid);
		if (!inode)
			return -ESTALE;
		dentry = efuse_alias(inode);
		iput(inode);
		if (!dentry)
			return -ESTALE;
		ret = efuse_resolve_step(fm, ec, dentry, incarnation);
		if (ret)
			return efuse_lost(ret) ? EFUSE_LOST_UNREAD : ret;
	}
}
