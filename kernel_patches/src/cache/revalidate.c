// SPDX-License-Identifier: GPL-2.0
/*
 * What outlives its timeout, because its inode still has the version (version.c) that it had when
 * the request was issued: blocks, extended attributes, links, and FUSE's pages of a file over an
 * OPEN. Pages are kept as long as all have one version, and the file still has it. Otherwise they
 * are dropped, as on plain FUSE.
 *
 * The pages have a version if READs have filled all of them since there were none. A page that is
 * filled or stored to in another way takes it from them: its bytes need not be those of the daemon.
 */
#include "cache_i.h"

#include <linux/pagemap.h>

#define EFUSE_VERSION_ATTRS	(STATX_SIZE | STATX_MTIME | STATX_CTIME)

/* Are versions used at all? */
static bool efuse_versions_used(const struct efuse_conn *ec)
{
	u8 mode = ec ? READ_ONCE(ec->consistency) : EFUSE_STRICT;

	return (mode == EFUSE_TTL || mode == EFUSE_CTO) && READ_ONCE(ec->revalidate) &&
	       rcu_access_pointer(ec->ops);
}

/*
 * The version of what is read from now on; 0: none, or it is racy, or the daemon does not want its
 * attributes to be believed. Under fuse_inode.lock.
 */
static u64 efuse_version_to_read(struct efuse_conn *ec, const struct fuse_inode *fi)
{
	return fi->i_time && efuse_version_settled(&fi->efuse_version) ?
		efuse_version_now(ec, fi) : 0;
}

/* Are the attributes that make the version believed? */
static bool efuse_version_fresh(struct inode *inode)
{
	return !(READ_ONCE(get_fuse_inode(inode)->inval_mask) & EFUSE_VERSION_ATTRS) &&
	       !efuse_attr_ended(inode);
}

/* Note the version of an inode in a request. Under fuse_inode.lock. */
static void efuse_version_note(struct efuse_conn *ec, struct inode *inode, struct fuse_args *args)
{
	const struct fuse_inode *fi = get_fuse_inode(inode);

	args->efuse.version = efuse_version_now(ec, fi);
	args->efuse.settled = efuse_version_to_read(ec, fi);
	args->efuse.fresh = efuse_version_fresh(inode);
}

/**
 * efuse_version_issue - a GETXATTR, LISTXATTR or READLINK is about to be issued
 * @req: the request; the version of its inode is noted in its arguments
 */
void efuse_version_issue(const struct efuse_req *req)
{
	struct inode *inode;

	if (!efuse_versions_used(req->ec))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, req->args->nodeid);
	if (inode) {
		spin_lock(&get_fuse_inode(inode)->lock);
		efuse_version_note(req->ec, inode, req->args);
		spin_unlock(&get_fuse_inode(inode)->lock);
	}
	rcu_read_unlock();
}

/* Does a READ fill pages of the page cache? */
static bool efuse_read_cached(struct fuse_args *args, const struct inode *inode)
{
	const struct fuse_args_pages *ap = container_of(args, struct fuse_args_pages, args);

	return !args->user_pages && !args->efuse.iter && ap->num_folios &&
	       efuse_page_mapping(ap, 0) == inode->i_mapping;
}

/**
 * efuse_version_unlike - a READ was answered by bytes that need not have its version
 * @req: the READ
 */
void efuse_version_unlike(const struct efuse_req *req)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, req->args->nodeid);
	if (inode && efuse_read_cached(req->args, inode))
		efuse_version_mixed(inode);
	rcu_read_unlock();
}

/**
 * efuse_read_args - a READ is about to be issued
 * @file: the open file
 * @args: the READ, or a READDIR; with its pages if it is to fill any
 */
void efuse_read_args(struct file *file, struct fuse_args *args)
{
	struct inode *inode = file_inode(file);
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	struct efuse_version *version = &fi->efuse_version;
	const struct fuse_file *ff = file->private_data;
	bool cached, used = efuse_versions_used(ec);
	u64 read;

	efuse_io_args(file->private_data, args);
	if (!S_ISREG(inode->i_mode))
		return;
	cached = efuse_read_cached(args, inode);
	if (!used && (!cached || (READ_ONCE(version->filled) && !READ_ONCE(version->pages))))
		return;
	spin_lock(&fi->lock);
	if (used) {
		efuse_version_note(ec, inode, args);
		args->efuse.settled &= ff->efuse_version == args->efuse.version;
	}
	if (cached) {
		read = args->efuse.settled ? args->efuse.version : 0;
		version->pages = !version->filled || version->pages == read ? read : 0;
		version->filled = true;
	}
	spin_unlock(&fi->lock);
}

/**
 * efuse_version_opening - a file is about to be opened
 * @inode: the file
 *
 * Return: the version that what is read by the new handle has; 0: none
 */
u64 efuse_version_opening(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	u64 number;

	if (!efuse_versions_used(ec))
		return 0;
	spin_lock(&fi->lock);
	number = efuse_version_to_read(ec, fi);
	spin_unlock(&fi->lock);
	return number;
}

/*
 * Must the daemon be asked for the attributes? In ttl mode not if the kernel has answered the OPEN,
 * or would answer the READs, for as long as the attributes are believed.
 */
static bool efuse_version_asks(struct efuse_conn *ec, struct inode *inode, u32 open_flags)
{
	const struct efuse_ops *ops;
	bool cached;

	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	cached = open_flags & EFUSE_FOPEN_LOCAL || (ops && ops->block);
	rcu_read_unlock();
	return READ_ONCE(ec->consistency) == EFUSE_CTO || !cached || !efuse_version_fresh(inode);
}

/* The version in the daemon's attributes of now; 0: it has none, or does not tell. */
static u64 efuse_version_ask(struct efuse_conn *ec, const struct file *file)
{
	struct kstat stat;

	if (vfs_getattr_nosec(&file->f_path, &stat, EFUSE_VERSION_ATTRS, AT_STATX_FORCE_SYNC))
		return 0;
	return efuse_version_stepped(ec, efuse_version_hash(ec, stat.ino, stat.size, stat.mtime,
							    stat.ctime));
}

/* The version that is believed without a question; 0: none. */
static u64 efuse_version_believed(struct efuse_conn *ec, struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);
	u64 number;

	spin_lock(&fi->lock);
	number = efuse_version_fresh(inode) ? efuse_version_now(ec, fi) : 0;
	spin_unlock(&fi->lock);
	return number;
}

/* The version of all pages; 0: not known, or there are no pages. */
static u64 efuse_version_of_pages(const struct efuse_conn *ec, struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);
	u64 pages = 0;

	spin_lock(&fi->lock);
	if (fi->efuse_version.filled && READ_ONCE(inode->i_mapping->nrpages) &&
	    efuse_pages_true(ec, inode))
		pages = fi->efuse_version.pages;
	spin_unlock(&fi->lock);
	return pages;
}

/* Do all pages have the version that the daemon, or what is believed of it, tells now? */
static bool efuse_version_holds(struct efuse_conn *ec, const struct file *file)
{
	struct inode *inode = file_inode(file);
	const struct fuse_file *ff = file->private_data;
	u64 told, pages = efuse_version_of_pages(ec, inode);

	if (!pages)
		return false;
	told = efuse_version_asks(ec, inode, ff->open_flags) ? efuse_version_ask(ec, file) :
							       efuse_version_believed(ec, inode);
	return told == pages && efuse_version_of_pages(ec, inode) == pages;
}

/* Drop all pages. If none is left, the next READ decides which version the pages have. */
static void efuse_version_drop(struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	if (inode->i_mapping->nrpages) {
		efuse_version_mixed(inode);
		invalidate_inode_pages2(inode->i_mapping);
	}
	spin_lock(&fi->lock);
	/* A READ that is under way has its pages in the page cache. */
	if (!READ_ONCE(inode->i_mapping->nrpages))
		fi->efuse_version.filled = false;
	spin_unlock(&fi->lock);
}

/**
 * efuse_version_open - decide whether FUSE keeps its pages of a file over an OPEN
 * @file: the open file, whose flags the daemon has told
 * @version: what efuse_version_opening() has returned before the OPEN
 *
 * FUSE does not drop the pages after this.
 *
 * Context: process context, may sleep.
 */
void efuse_version_open(struct file *file, u64 version)
{
	struct inode *inode = file_inode(file);
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_file *ff = file->private_data;

	ff->efuse_version = version;
	if (!efuse_versions_used(ec) || file->f_flags & O_TRUNC ||
	    ff->open_flags & (FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH))
		return;
	if (!efuse_version_holds(ec, file))
		efuse_version_drop(inode);
	ff->open_flags |= FOPEN_KEEP_CACHE;
}
