// SPDX-License-Identifier: GPL-2.0
/*
 * Timeouts of FUSE's own caches of dentries, attributes, pages and listings. FUSE takes them from
 * the daemon's replies. Here they are changed according to the mode, before the caller sees the
 * reply. In strict mode they become 0. In exclusive mode they are extended: replaced by a bucket
 * and an epoch that kept.c checks at each use, since FUSE's caches are faster than any handler.
 *
 * In exclusive mode a reply that has crossed a change of its objects gets no timeout at all. FUSE
 * itself would believe the reply that arrives last.
 */
#include "cache_i.h"

static void efuse_strip_entry(struct fuse_entry_out *entry)
{
	entry->attr.flags &= ~(EFUSE_ATTR_UNCOUNTED | EFUSE_ATTR_MARKED | EFUSE_ATTR_REPLACED |
			       EFUSE_ATTR_ANSWER);
}

/**
 * efuse_entry_listed - FUSE is about to take an entry of a READDIRPLUS
 * @entry: the entry
 *
 * Clears the marks that only the kernel's own answers have. Attributes whose timeout is extended
 * are marked: no change has crossed them.
 */
void efuse_entry_listed(struct fuse_entry_out *entry)
{
	efuse_strip_entry(entry);
	if (efuse_reply_extended(entry->attr_valid, entry->attr_valid_nsec))
		efuse_size_mark(&entry->attr, entry->attr_valid & EFUSE_TIME_EPOCH);
}

/* Clear the bits of a reply that are marks of the kernel's own answers. */
void efuse_strip(struct fuse_args *args)
{
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (entry)
		efuse_strip_entry(entry);
	if (attr)
		attr->attr.flags &= ~(EFUSE_ATTR_MARKED | EFUSE_ATTR_REPLACED | EFUSE_ATTR_ANSWER);
	if (open)
		open->open_flags &= ~EFUSE_FOPEN_LOCAL;
}

/* Extends one timeout, or sets it to 0 if the bucket has changed since the request was issued. */
static void efuse_extend_one(const struct efuse_req *req, const struct efuse_changes *ch,
			     u16 bucket, u64 *secs, u32 *nsecs)
{
	bool own = false;

	if (efuse_epoch_holds(req->ec, ch, bucket, req->args->efuse.epoch, &own)) {
		efuse_time_extend(bucket, own ? ch->epoch : req->args->efuse.epoch, secs, nsecs);
	} else {
		*secs = 0;
		*nsecs = 0;
	}
}

static void efuse_extend_attr(const struct efuse_req *req, const struct efuse_changes *ch,
			      u64 nodeid, const struct fuse_attr *attr, u64 *secs, u32 *nsecs)
{
	/* A file with several nodeids keeps the daemon's timeout: see efuse_shared(). */
	if (!efuse_shared(req->ec, attr))
		efuse_extend_one(req, ch, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR), secs, nsecs);
}

static void efuse_extend_statx(const struct efuse_req *req, const struct efuse_changes *ch,
			       struct fuse_statx_out *statx)
{
	const struct fuse_attr attr = efuse_statx_attr(&statx->stat);

	efuse_extend_attr(req, ch, req->args->nodeid, &attr, &statx->attr_valid,
			  &statx->attr_valid_nsec);
}

/* The reply of a GETATTR or SETATTR tells the size, unless something else has changed it since. */
static void efuse_learn_size(const struct efuse_req *req, const struct efuse_changes *ch,
			     u64 nodeid, struct fuse_attr *attr)
{
	u64 epoch = req->args->efuse.epoch;
	struct fuse_inode *fi;
	struct inode *inode;
	bool own = false;

	if (!S_ISREG(attr->mode) || fuse_invalid_attr(attr))
		return;
	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, nodeid);
	if (inode) {
		fi = get_fuse_inode(inode);
		efuse_append_replied(fi, epoch, attr->size);
		if (efuse_shared(req->ec, attr))
			efuse_size_learn(fi, 0, attr->size);
		else if (efuse_epoch_holds(req->ec, ch, efuse_size_bucket(nodeid), epoch, &own))
			efuse_size_learn(fi, own ? ch->epoch : epoch, attr->size);
	}
	rcu_read_unlock();
}

static void efuse_extend_entry(const struct efuse_req *req, const struct efuse_changes *ch,
			       const char *name, u32 len, struct fuse_entry_out *entry)
{
	/* Dentries are visible to all callers. */
	if (efuse_conn_caller_free(req->ec)) {
		entry->entry_valid = 0;
		entry->entry_valid_nsec = 0;
		/* At each use the directory's rights are checked, too, against the same epoch. */
		if (name && efuse_epoch_quiet(req->ec, efuse_bucket_inode(req->args->nodeid,
									  EFUSE_KIND_RIGHTS),
					      req->args->efuse.epoch))
			efuse_extend_one(req, ch,
					 efuse_bucket_entry(req->args->nodeid, name, len),
					&entry->entry_valid, &entry->entry_valid_nsec);
	}
	if (entry->nodeid)
		efuse_extend_attr(req, ch, entry->nodeid, &entry->attr, &entry->attr_valid,
				  &entry->attr_valid_nsec);
}

static void efuse_end_entry(struct fuse_entry_out *entry)
{
	entry->entry_valid = 0;
	entry->entry_valid_nsec = 0;
	entry->attr_valid = 0;
	entry->attr_valid_nsec = 0;
}

/* Extends the timeouts of all entries of a READDIRPLUS, or sets them to 0 if @ch is NULL. */
static void efuse_extend_dirents(const struct efuse_req *req, const struct efuse_changes *ch)
{
	struct fuse_direntplus *plus;
	size_t left;
	char *at = efuse_dirents_start(req, &left);

	while ((plus = efuse_dirents_next(&at, &left))) {
		if (plus->entry_out.nodeid && ch)
			efuse_extend_entry(req, ch, plus->dirent.name, plus->dirent.namelen,
					   &plus->entry_out);
		else
			efuse_end_entry(&plus->entry_out);
	}
}

/* Let FUSE keep pages or the listing over this open. @nodeid: the inode that was opened. */
static void efuse_extend_open(struct efuse_req *req, u64 nodeid, struct fuse_open_out *open)
{
	if (open->open_flags & (FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH))
		return;
	if (efuse_refresh_nodeid(req->fm, nodeid))
		open->open_flags |= efuse_extended_open(req, open->fh);
}

static void efuse_extend_exclusive(struct efuse_req *req, const struct efuse_changes *ch)
{
	struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_statx_out *statx = efuse_out_statx(args);
	struct fuse_open_out *open = efuse_out_open(args);
	u32 len;
	const char *name = efuse_req_name_at(args, 0, &len);

	/* Nodeid 0 means ENOENT, too, but with a timeout. */
	if (args->opcode == FUSE_LOOKUP && req->error == -ENOENT && entry &&
	    efuse_conn_caller_free(req->ec)) {
		memset(entry, 0, sizeof(*entry));
		req->error = 0;
		req->ret = 0;
	}
	if (req->error)
		return;

	if (entry)
		efuse_extend_entry(req, ch, name, len, entry);
	if (attr) {
		efuse_extend_attr(req, ch, args->nodeid, &attr->attr, &attr->attr_valid,
				  &attr->attr_valid_nsec);
		efuse_learn_size(req, ch, args->nodeid, &attr->attr);
	}
	if (statx)
		efuse_extend_statx(req, ch, statx);
	if (open && !(efuse_arg_flags(args) & O_TRUNC))
		efuse_extend_open(req, entry ? entry->nodeid : args->nodeid, open);
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_extend_dirents(req, ch);
}

/*
 * The daemon lets FUSE keep its pages over an OPEN, but they may be void: the daemon may have
 * mapped another content since. Not for an OPEN that truncates: FUSE drops all pages after it. None
 * may be written back here, since the file is empty already and FUSE may let no WRITE through.
 */
static void efuse_refresh_open(const struct efuse_req *req)
{
	const struct fuse_entry_out *entry = efuse_out_entry(req->args);
	const struct fuse_open_out *open = efuse_out_open(req->args);

	if (!req->error && open && open->open_flags & FOPEN_KEEP_CACHE &&
	    !(efuse_arg_flags(req->args) & O_TRUNC))
		efuse_refresh_nodeid(req->fm, entry ? entry->nodeid : req->args->nodeid);
}

/* Strict mode: FUSE must not cache anything of the reply. */
static void efuse_end_strict(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_statx_out *statx = efuse_out_statx(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (req->error)
		return;
	if (entry)
		efuse_end_entry(entry);
	if (attr) {
		attr->attr_valid = 0;
		attr->attr_valid_nsec = 0;
	}
	if (statx) {
		statx->attr_valid = 0;
		statx->attr_valid_nsec = 0;
	}
	if (open)
		open->open_flags &= ~(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR);
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_extend_dirents(req, NULL);
}

/**
 * efuse_attrs_came - an inode has received attributes of the daemon
 * @inode: the inode
 * @attr: the attributes
 *
 * Context: under the lock of struct fuse_inode.
 */
void efuse_attrs_came(struct inode *inode, const struct fuse_attr *attr)
{
	efuse_size_taken(inode, attr);
	efuse_names_told(inode, attr);
	efuse_version_came(inode, attr);
	efuse_acls_outdated(inode);
}

/*
 * Attributes have come that are true since an epoch. If they are not learned, older ones that were
 * must not be shown again. Returns the epoch since which they are true afterwards, or 0 if that is
 * not known.
 */
static u64 efuse_end_learned(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr,
			     u64 epoch)
{
	bool others;

	rcu_read_lock();
	others = efuse_order_others(req, nodeid, attr);
	rcu_read_unlock();
	return others ? efuse_epoch_bump_since(req->ec, efuse_size_bucket(nodeid), epoch) : epoch;
}

/* Tell since when the attributes in a reply are true, unless a change has crossed the reply. */
static void efuse_mark_attr(const struct efuse_req *req, const struct efuse_changes *ch, u64 nodeid,
			    struct fuse_attr *attr)
{
	u64 now = efuse_epoch_now(req->ec), epoch;
	bool own = false, holds;

	holds = efuse_epoch_holds(req->ec, ch, efuse_size_bucket(nodeid), req->args->efuse.epoch,
				  &own);
	epoch = efuse_end_learned(req, nodeid, attr, own ? ch->epoch : now);
	if (holds && epoch && !S_ISDIR(attr->mode) && !fuse_invalid_attr(attr))
		efuse_size_mark(attr, epoch);
}

static void efuse_end_learned_dirents(const struct efuse_req *req)
{
	const struct fuse_direntplus *plus;
	size_t left;
	char *at = efuse_dirents_start(req, &left);

	while ((plus = efuse_dirents_next(&at, &left)))
		if (plus->entry_out.nodeid)
			efuse_end_learned(req, plus->entry_out.nodeid,
					  &plus->entry_out.attr, 0);
}

/*
 * FUSE takes the attributes in replies of LINK, and of CREATE, MKNOD, MKDIR and SYMLINK for an
 * inode in memory, also if they are older than those that it has. So these are not marked.
 */
static void efuse_mark_attrs(const struct efuse_req *req, const struct efuse_changes *ch)
{
	const struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	const struct fuse_statx_out *statx = efuse_out_statx(args);
	struct fuse_attr statx_attr;

	if (req->error)
		return;
	if (entry && entry->nodeid &&
	    (args->opcode == FUSE_LOOKUP || !efuse_inode_present(req->fm, entry->nodeid)))
		efuse_mark_attr(req, ch, entry->nodeid, &entry->attr);
	else if (entry && entry->nodeid)
		efuse_end_learned(req, entry->nodeid, &entry->attr, 0);
	if (attr)
		efuse_mark_attr(req, ch, args->nodeid, &attr->attr);
	if (statx) {
		statx_attr = efuse_statx_attr(&statx->stat);
		efuse_end_learned(req, args->nodeid, &statx_attr, 0);
		/* FUSE takes them only if all are there. */
		if (~statx->stat.mask & STATX_BASIC_STATS)
			efuse_attrs_partial(req, args->nodeid, &statx_attr, statx->stat.mask);
	}
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_end_learned_dirents(req);
}

/**
 * efuse_timeouts_extend - set the timeouts of a reply according to the mode
 * @req: a request that the daemon has answered; learning from the reply is done
 * @ch: the changes that the request made, ended
 *
 * Context: process context, may sleep.
 */
void efuse_timeouts_extend(struct efuse_req *req, const struct efuse_changes *ch)
{
	efuse_mark_attrs(req, ch);
	/* In all modes, and without handlers: both may change before the next look at the file. */
	if (req->args->opcode == FUSE_LINK)
		efuse_linked(req->fm, efuse_arg_newdir(req->args));
	switch (READ_ONCE(req->ec->consistency)) {
	case EFUSE_STRICT:
		efuse_end_strict(req);
		break;
	case EFUSE_EXCLUSIVE:
		if (rcu_access_pointer(req->ec->ops))
			efuse_extend_exclusive(req, ch);
		break;
	}
	efuse_refresh_open(req);
}
