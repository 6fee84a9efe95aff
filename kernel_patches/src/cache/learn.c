// SPDX-License-Identifier: GPL-2.0
/*
 * Learning values from the daemon's replies. Every value is stamped with the epoch at which its
 * request was issued, and passed to the program's learn(), one value at a time.
 *
 * The reply of a request that changes something (CREATE, SETATTR, ...) describes the state after
 * that change. Its values are stamped with the epoch of the change itself, if no other change has
 * touched the same buckets since the request was issued: see @own of struct efuse_changes.
 */
#include "cache_i.h"

/**
 * struct efuse_learn_context - state of learning from one reply
 * @req: the request
 * @ops: the program set, or NULL
 * @ch: the changes that the request made, ended
 * @item: buffer for the current value; NULL if there is no memory or no learn()
 * @early: see efuse_learn_early()
 * @now: ktime of the reply
 */
struct efuse_learn_context {
	struct efuse_req *req;
	struct efuse_ops *ops;
	const struct efuse_changes *ch;
	struct efuse_learn_item *item;
	bool early;
	u64 now;
};

/*
 * Fill in the stamp of the value, except the check. @buckets are those that the value depends on.
 * Returns false if there is no memory for it, if the value is void by now, if its request was
 * issued before values were learned, or if the daemon has given it no timeout and the mode is not
 * exclusive.
 */
static bool efuse_learn_stamp(struct efuse_learn_context *ctx, const u16 *buckets, int nr,
			      u64 valid_ns)
{
	struct efuse_stamp *stamp;
	u64 issued = ctx->req->args->efuse.epoch;
	bool own = false;
	int i;

	if (!ctx->item || ctx->early)
		return false;
	if (!valid_ns && READ_ONCE(ctx->req->ec->consistency) != EFUSE_EXCLUSIVE)
		return false;
	for (i = 0; i < nr; i++)
		if (!efuse_epoch_holds(ctx->req->ec, ctx->ch, buckets[i], issued, &own))
			return false;

	stamp = &ctx->item->value.stamp;
	stamp->flags = 0;
	stamp->epoch = own ? ctx->ch->epoch : issued;
	stamp->expires_ns = ctx->now + valid_ns;
	stamp->caller = efuse_caller_stamp(ctx->req);
	return true;
}

/* Something is about to be learned into a map. The bits are read often and written once. */
static void efuse_learn_into(struct efuse_conn *ec, u32 map)
{
	if (!test_bit(map, &ec->learned_maps))
		set_bit(map, &ec->learned_maps);
}

/*
 * Compute the check and call learn(). @size: bytes of the value that the check covers. Returns
 * whether the program has stored the value.
 */
static bool efuse_learn_call(struct efuse_learn_context *ctx, u32 map, u32 seed, size_t size)
{
	struct efuse_conn *ec = ctx->req->ec;
	bool stored;

	efuse_learn_into(ec, map);
	ctx->item->map = map;
	ctx->item->value.stamp.check = efuse_check(seed, &ctx->item->value, size);
	ctx->req->learn_item = ctx->item;
	this_cpu_inc(ec->stats->learned);
	stored = ctx->ops->learn(ctx->req) >= 0;
	if (!stored)
		this_cpu_inc(ec->stats->map_full);
	ctx->req->learn_item = NULL;
	return stored;
}

/*
 * The value of the item's key in a reply was not learned. The program removes an older one that
 * was, which must not be shown again. If it cannot, a change of the bucket is noted, which ends
 * other values, too.
 */
static void efuse_learn_remove(const struct efuse_learn_context *ctx, u32 map, u16 bucket)
{
	struct efuse_req *req = ctx->req;
	int error = -ENOMEM;

	if (!test_bit(map, &req->ec->learned_maps))
		return;
	if (ctx->item) {
		memset(&ctx->item->value, 0, sizeof(ctx->item->value));
		ctx->item->map = map;
		req->learn_item = ctx->item;
		error = ctx->ops->learn(req);
		req->learn_item = NULL;
	}
	if (error < 0)
		efuse_epoch_bump(req->ec, bucket);
}

/*
 * A name, extended attribute, link or grant was not learned. In exclusive mode all their changes
 * are noted, except those that came by another nodeid of the file.
 */
static void efuse_learn_not(const struct efuse_learn_context *ctx, u32 map, u16 bucket)
{
	const struct efuse_req *req = ctx->req;

	if (map == EFUSE_MAP_ENTRIES ? READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE :
				       !efuse_changes_known_nodeid(req, req->args->nodeid))
		efuse_learn_remove(ctx, map, bucket);
}

/* A timeout of the protocol in ns, limited so that its sum with a clock does not overflow. */
static u64 efuse_valid_ns(u64 secs, u32 nsecs)
{
	return min_t(u64, secs, EFUSE_EXTENDED_SECS) * NSEC_PER_SEC +
	       min_t(u32, nsecs, NSEC_PER_SEC - 1);
}

/* Attributes are shown, but not learned. First, so that those being learned now do not stay. */
static void efuse_learn_attrs_shown(const struct efuse_learn_context *ctx, u64 nodeid,
				    const struct fuse_attr *attr)
{
	if (efuse_order_same(ctx->req, nodeid, attr))
		return;
	efuse_order_pass(ctx->req, nodeid);
	if (ctx->item)
		ctx->item->key.nodeid = nodeid;
	efuse_learn_remove(ctx, EFUSE_MAP_ATTRS, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR));
}

static void efuse_learn_attrs(struct efuse_learn_context *ctx, u64 nodeid,
			      const struct fuse_attr *attr, u64 valid_ns)
{
	const u16 buckets[] = {
		efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR),
		efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY),
		efuse_bucket_inode(nodeid, EFUSE_KIND_ATIME),
	};
	int nr = READ_ONCE(ctx->req->ec->lazy_atime) ? 2 : 3;
	struct efuse_attrs *value;
	u64 turn = 0;

	if (efuse_learn_stamp(ctx, buckets, nr, valid_ns)) {
		/* First: efuse_order_others() must see that there may be others. */
		efuse_learn_into(ctx->req->ec, EFUSE_MAP_ATTRS);
		turn = efuse_order_take(ctx->req, nodeid, attr);
	}
	if (!turn) {
		if (!efuse_changes_known(ctx->req->ec, attr))
			efuse_learn_attrs_shown(ctx, nodeid, attr);
		return;
	}
	ctx->item->key.nodeid = nodeid;
	value = &ctx->item->value.attrs;
	memcpy(value->attr, attr, sizeof(*attr));
	if (!efuse_learn_call(ctx, EFUSE_MAP_ATTRS, efuse_seed_nodeid(nodeid), sizeof(*value))) {
		efuse_epoch_bump(ctx->req->ec, buckets[0]);
	} else if (!efuse_order_kept(ctx->req, nodeid, attr, turn)) {
		efuse_epoch_bump(ctx->req->ec, buckets[0]);
		/* FUSE may have taken them from the map meanwhile. */
		efuse_timeouts_expire_attrs(ctx->req->fm, nodeid);
	}
}

/* The attributes of a STATX that GETATTR has, too. FUSE takes them only if all are there. */
static void efuse_learn_statx(struct efuse_learn_context *ctx)
{
	const struct fuse_statx_out *out = efuse_out_statx(ctx->req->args);
	u64 nodeid = ctx->req->args->nodeid;
	struct fuse_attr attr;

	if (ctx->req->error || !out)
		return;
	attr = efuse_statx_attr(&out->stat);
	if (!(~out->stat.mask & STATX_BASIC_STATS))
		efuse_learn_attrs(ctx, nodeid, &attr,
				  efuse_valid_ns(out->attr_valid, out->attr_valid_nsec));
	else if (!efuse_changes_known_nodeid(ctx->req, nodeid))
		efuse_learn_attrs_shown(ctx, nodeid, &attr);
}

/* "." and "..": not learned, since no directory has such entries, and ".." changes by a rename. */
static bool efuse_name_is_dots(const char *name, u32 len)
{
	return name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.'));
}

/* An answer about a name is shown, but not learned. */
static void efuse_learn_entry_shown(const struct efuse_learn_context *ctx, u64 parent,
				    const char *name, u32 len)
{
	if (len >= EFUSE_NAME_LEN || efuse_name_is_dots(name, len))
		return;
	if (ctx->item)
		efuse_entry_key(&ctx->item->key.entry, parent, name, len);
	efuse_learn_not(ctx, EFUSE_MAP_ENTRIES, efuse_bucket_entry(parent, name, len));
}

/* Learns a name. @entry is NULL if the name does not exist. */
static void efuse_learn_entry(struct efuse_learn_context *ctx, u64 parent, const char *name,
			      u32 len, const struct fuse_entry_out *entry, u64 valid_ns)
{
	const u16 buckets[] = {
		efuse_bucket_entry(parent, name, len),
		efuse_bucket_inode(parent, EFUSE_KIND_IDENTITY),
		efuse_bucket_inode(parent, EFUSE_KIND_RIGHTS),
		efuse_bucket_inode(entry ? entry->nodeid : 0, EFUSE_KIND_IDENTITY),
	};
	struct efuse_entry *value;
	bool learned = false;

	if (len >= EFUSE_NAME_LEN || efuse_name_is_dots(name, len))
		return;
	if (ctx->item)
		efuse_entry_key(&ctx->item->key.entry, parent, name, len);
	if (efuse_learn_stamp(ctx, buckets, entry ? 4 : 3, valid_ns)) {
		value = &ctx->item->value.entry;
		value->nodeid = entry ? entry->nodeid : 0;
		value->generation = entry ? entry->generation : 0;
		learned = efuse_learn_call(ctx, EFUSE_MAP_ENTRIES,
					   efuse_seed_entry(parent, name, len), sizeof(*value));
	}
	if (!learned)
		efuse_learn_not(ctx, EFUSE_MAP_ENTRIES, buckets[0]);
}

/* Is the entry valid, and of this mount? The root of a submount gets a new inode each time. */
static bool efuse_entry_good(const struct efuse_learn_context *ctx,
			     const struct fuse_entry_out *entry)
{
	return !invalid_nodeid(entry->nodeid) &&
	       !fuse_invalid_attr((struct fuse_attr *)&entry->attr) &&
	       !(ctx->req->fm->fc->auto_submounts && S_ISDIR(entry->attr.mode) &&
		 entry->attr.flags & FUSE_ATTR_SUBMOUNT);
}

static void efuse_learn_positive(struct efuse_learn_context *ctx, u64 parent, const char *name,
				 u32 len, const struct fuse_entry_out *entry)
{
	if (!efuse_entry_good(ctx, entry)) {
		efuse_learn_entry_shown(ctx, parent, name, len);
		return;
	}
	efuse_learn_entry(ctx, parent, name, len, entry,
			  efuse_valid_ns(entry->entry_valid, entry->entry_valid_nsec));
	efuse_learn_attrs(ctx, entry->nodeid, &entry->attr,
			  efuse_valid_ns(entry->attr_valid, entry->attr_valid_nsec));
}

/* Learns that the request's name number @index does not exist in @parent. */
static void efuse_learn_negative(struct efuse_learn_context *ctx, u64 parent, u32 index,
				 u64 valid_ns)
{
	u32 len;
	const char *name = efuse_req_name_at(ctx->req->args, index, &len);

	if (name)
		efuse_learn_entry(ctx, parent, name, len, NULL, valid_ns);
}

static void efuse_learn_lookup(struct efuse_learn_context *ctx)
{
	const struct fuse_args *args = ctx->req->args;
	const struct fuse_entry_out *entry = efuse_out_entry(args);
	const char *name;
	u32 len;

	if (ctx->req->error == -ENOENT) {
		efuse_learn_negative(ctx, args->nodeid, 0, 0);
		return;
	}
	name = efuse_req_name_at(args, 0, &len);
	if (!name)
		return;
	if (ctx->req->error || !entry)
		efuse_learn_entry_shown(ctx, args->nodeid, name, len);
	else if (!entry->nodeid)
		efuse_learn_entry(ctx, args->nodeid, name, len, NULL,
				  efuse_valid_ns(entry->entry_valid, entry->entry_valid_nsec));
	else
		efuse_learn_positive(ctx, args->nodeid, name, len, entry);
}

static void efuse_learn_created(struct efuse_learn_context *ctx)
{
	const struct fuse_args *args = ctx->req->args;
	const struct fuse_entry_out *entry = efuse_out_entry(args);
	u32 len;
	const char *name = efuse_req_name_at(args, 0, &len);

	if (ctx->req->error || !entry || !name)
		return;
	efuse_learn_positive(ctx, args->nodeid, name, len, entry);
}

/*
 * Learns an entry of READDIRPLUS. A caller that may list a directory need not be allowed to look up
 * names in it. If answers depend on the caller, only the attributes are learned.
 */
static void efuse_learn_dirent(struct efuse_learn_context *ctx, const struct fuse_dirent *dirent,
			       const struct fuse_entry_out *entry)
{
	if (efuse_conn_caller_free(ctx->req->ec))
		efuse_learn_positive(ctx, ctx->req->args->nodeid, dirent->name, dirent->namelen,
				     entry);
	else if (efuse_entry_good(ctx, entry))
		efuse_learn_attrs(ctx, entry->nodeid, &entry->attr,
				  efuse_valid_ns(entry->attr_valid, entry->attr_valid_nsec));
}

static void efuse_learn_dirents(struct efuse_learn_context *ctx)
{
	const struct fuse_direntplus *plus;
	size_t left;
	char *at = efuse_dirents_start(ctx->req, &left);

	while ((plus = efuse_dirents_next(&at, &left))) {
		const struct fuse_dirent *dirent = &plus->dirent;

		if (!dirent->namelen || dirent->namelen > FUSE_NAME_MAX)
			return;
		/* FUSE ignores "." and "..", too. */
		if (plus->entry_out.nodeid &&
		    !efuse_name_is_dots(dirent->name, dirent->namelen))
			efuse_learn_dirent(ctx, dirent, &plus->entry_out);
	}
}

/*
 * Learns the answer of a READLINK, GETXATTR or LISTXATTR. The protocol has no timeout for it, so it
 * gets the remaining timeout of the inode's attributes.
 */
static void efuse_learn_blob(struct efuse_learn_context *ctx)
{
	struct fuse_args *args = ctx->req->args;
	struct efuse_blob *value;
	u64 nodeid = args->nodeid;
	bool absent = args->opcode == FUSE_GETXATTR && ctx->req->error == -ENODATA;
	/* The length of the value was told, or that it is longer than the caller expects. */
	bool length = ctx->req->error == -ERANGE || (!ctx->req->error && !args->out_argvar);
	const void *data = NULL;
	const char *name;
	u16 buckets[3];
	bool learned = false;
	size_t room;
	int nr = 0;
	u32 len;

	if (efuse_acl_is_the_vfs(ctx->req))
		return;
	name = efuse_req_name_at(args, 0, &len);
	if (len >= EFUSE_NAME_LEN)
		return;

	if (ctx->item)
		efuse_blob_key(&ctx->item->key.blob, nodeid, args->opcode, name, len);
	buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY);
	if (args->opcode != FUSE_READLINK)
		buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_XATTR);
	if (!absent)
		buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_DATA);
	if (!length && (absent || (!ctx->req->error && ctx->req->ret <= EFUSE_BLOB_LEN)) &&
	    efuse_learn_stamp(ctx, buckets, nr, efuse_inode_valid_ns(ctx->req->fm, nodeid))) {
		if (!absent)
			data = efuse_out_data(args, &room) ?: args->out_args[0].value;
		value = &ctx->item->value.blob;
		value->version = args->efuse.settled ? args->efuse.version : 0;
		value->error = absent ? -ENODATA : 0;
		value->len = absent ? 0 : ctx->req->ret;
		memcpy(value->data, data, value->len);
		/* Nothing of an earlier value may get into a map. */
		memset(value->data + value->len, 0, sizeof(value->data) - value->len);
		learned = efuse_learn_call(ctx, EFUSE_MAP_BLOBS,
					   efuse_seed_blob(nodeid, args->opcode, name, len),
					   EFUSE_BLOB_HEAD + value->len);
	}
	if (!learned)
		efuse_learn_not(ctx, EFUSE_MAP_BLOBS, buckets[1]);
}

/*
 * May the kernel open the inode of an OPEN or OPENDIR again, after a reply with the handle @fh? See
 * EFUSE_FH_OWN. A daemon that tells files apart by their handles could mistake a nodeid for the
 * handle of another file: then `no_open` ends, although it was declared.
 */
static bool efuse_learn_handle(struct efuse_learn_context *ctx, u64 fh)
{
	struct efuse_conn *ec = ctx->req->ec;

	if (efuse_handle_is_any(ctx->req->args, fh))
		return true;
	if (fh & EFUSE_FH_OWN)
		return false;
	WRITE_ONCE(ec->no_open, false);
	pr_warn("efuse: connection %u no longer has no_open: its daemon's reply to %s has handle %llu\n",
		ec->id, ctx->req->args->opcode == FUSE_OPEN ? "OPEN" : "OPENDIR", fh);
	return false;
}

/* Has the daemon granted something that the kernel may grant again? @open: the reply of an OPEN. */
static bool efuse_grant_lasts(struct efuse_learn_context *ctx, const struct fuse_open_out *open)
{
	const struct efuse_conn *ec = ctx->req->ec;

	if (ctx->req->error)
		return false;
	if (!open)
		return true;
	if (open->open_flags & FOPEN_PASSTHROUGH || efuse_arg_flags(ctx->req->args) & O_TRUNC)
		return false;
	return READ_ONCE(ec->no_open) ? efuse_learn_handle(ctx, open->fh) :
					efuse_opens_later(ec, ctx->req->args);
}

static void efuse_learn_grant(struct efuse_learn_context *ctx)
{
	struct fuse_args *args = ctx->req->args;
	const struct fuse_open_out *open = efuse_out_open(args);
	struct efuse_grant *value;
	const u16 buckets[] = {
		efuse_bucket_inode(args->nodeid, EFUSE_KIND_RIGHTS),
		efuse_bucket_inode(args->nodeid, EFUSE_KIND_IDENTITY),
	};

	if (ctx->item)
		efuse_grant_key(&ctx->item->key.grant, ctx->req);
	if (!efuse_grant_lasts(ctx, open) ||
	    !efuse_learn_stamp(ctx, buckets, ARRAY_SIZE(buckets),
			       efuse_inode_valid_ns(ctx->req->fm, args->nodeid))) {
		efuse_learn_not(ctx, EFUSE_MAP_GRANTS, buckets[0]);
		return;
	}
	value = &ctx->item->value.grant;
	value->open_flags = open ? open->open_flags : 0;
	value->pad = 0;
	efuse_learn_call(ctx, EFUSE_MAP_GRANTS, efuse_seed_grant(&ctx->item->key.grant),
			 sizeof(*value));
}

static void efuse_learn_volume(struct efuse_learn_context *ctx)
{
	const struct fuse_args *args = ctx->req->args;
	const struct fuse_statfs_out *out = args->out_args[0].value;
	const u16 bucket = efuse_bucket_inode(0, EFUSE_KIND_VOLUME);
	struct efuse_volume *value;

	if (ctx->req->error || args->out_args[0].size != sizeof(*out) ||
	    READ_ONCE(ctx->req->ec->consistency) != EFUSE_EXCLUSIVE ||
	    !efuse_learn_stamp(ctx, &bucket, 1, EFUSE_VOLUME_NS))
		return;
	value = &ctx->item->value.volume;
	memcpy(value->st, &out->st, sizeof(value->st));
	ctx->item->key.nodeid = args->nodeid;
	efuse_learn_call(ctx, EFUSE_MAP_VOLUMES, efuse_seed_nodeid(args->nodeid), sizeof(*value));
}

static void efuse_learn_all(struct efuse_learn_context *ctx)
{
	const struct fuse_args *args = ctx->req->args;
	const struct fuse_attr_out *attr;
	bool gone = !ctx->req->error;

	switch (args->opcode) {
	case FUSE_LOOKUP:
		efuse_learn_lookup(ctx);
		break;
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		efuse_learn_created(ctx);
		break;
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		attr = efuse_out_attr(args);
		if (!ctx->req->error && attr)
			efuse_learn_attrs(ctx, args->nodeid, &attr->attr,
					  efuse_valid_ns(attr->attr_valid,
							 attr->attr_valid_nsec));
		break;
	case FUSE_STATX:
		efuse_learn_statx(ctx);
		break;
	case FUSE_READDIRPLUS:
		efuse_learn_dirents(ctx);
		break;
	case FUSE_READLINK:
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		efuse_learn_blob(ctx);
		break;
	case FUSE_ACCESS:
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		efuse_learn_grant(ctx);
		break;
	case FUSE_STATFS:
		efuse_learn_volume(ctx);
		break;
	case FUSE_UNLINK:
	case FUSE_RMDIR:
		if (gone)
			efuse_learn_negative(ctx, args->nodeid, 0, 0);
		break;
	}
}

/* Can the reply of an opcode have anything to learn? If not, no memory is allocated. */
static bool efuse_learns(u32 opcode)
{
	switch (opcode) {
	case FUSE_READ:
	case FUSE_WRITE:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_IOCTL:
	case FUSE_READDIR:
		return false;
	}
	return true;
}

/**
 * efuse_learn_stop - a program set is about to be attached, or to take the place of another
 * @ec: connection
 *
 * Nothing is learned until efuse_learn_start().
 */
void efuse_learn_stop(struct efuse_conn *ec)
{
	WRITE_ONCE(ec->learn_since, U64_MAX);
}

/**
 * efuse_learn_start - the program set can be seen: learn from the replies of later requests
 * @ec: connection
 *
 * Replies of earlier requests are not learned: newer values may have been shown before, and have
 * not been noted.
 */
void efuse_learn_start(struct efuse_conn *ec)
{
	/* A full barrier: requests with the new number are issued after the set can be seen. */
	WRITE_ONCE(ec->learn_since, atomic64_inc_return(&ec->fc->attr_version));
}

/**
 * efuse_learn_early - was a request issued before values were learned?
 * @req: the request; its program set has been read before
 */
bool efuse_learn_early(const struct efuse_req *req)
{
	smp_rmb(); /* Pairs with efuse_learn_start(): not older than the program set. */
	return req->args->efuse.attr_version < READ_ONCE(req->ec->learn_since);
}

/**
 * efuse_learn - call the program's learn() for each value in a reply
 * @req: the request, with the daemon's answer
 * @ops: the program set; NULL or without a learn(): nothing is learned
 * @ch: the changes that the request made, ended
 *
 * Blocks of data are not among the values: see efuse_blocks_learn().
 *
 * Values that are not learned end the older ones that were.
 *
 * Context: under rcu_read_lock(), does not sleep. If there is no memory, nothing is learned.
 */
void efuse_learn(struct efuse_req *req, struct efuse_ops *ops, const struct efuse_changes *ch)
{
	struct efuse_learn_context ctx = { .req = req, .ops = ops, .ch = ch };
	bool learns = ops && ops->learn;

	if (READ_ONCE(req->ec->consistency) == EFUSE_STRICT || !efuse_learns(req->args->opcode))
		return;
	if (!learns && !READ_ONCE(req->ec->learned_maps))
		return;
	if (learns)
		ctx.item = kmalloc(sizeof(*ctx.item), GFP_NOWAIT | __GFP_NOWARN);
	ctx.early = efuse_learn_early(req);
	ctx.now = ktime_get_ns();
	efuse_learn_all(&ctx);
	kfree(ctx.item);
}
