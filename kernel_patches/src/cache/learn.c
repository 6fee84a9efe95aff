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
 * struct efuse_teacher - state of learning from one reply
 * @req: the request
 * @ops: the program set
 * @ch: the changes that the request made, ended
 * @lesson: buffer for the current value
 * @now: ktime of the reply
 */
struct efuse_teacher {
	struct efuse_req *req;
	struct efuse_ops *ops;
	const struct efuse_changes *ch;
	struct efuse_lesson *lesson;
	u64 now;
};

/*
 * Fill in the stamp of the lesson, except the check. @buckets are those that the value depends on.
 * Returns false if the value is void by now, or if the daemon has given it no timeout and the mode
 * is not exclusive.
 */
static bool efuse_teach_stamp(struct efuse_teacher *t, const u16 *buckets, int nr, u64 valid_ns)
{
	struct efuse_stamp *stamp = &t->lesson->value.stamp;
	bool own = false;
	int i;

	if (!valid_ns && READ_ONCE(t->req->ec->consistency) != EFUSE_EXCLUSIVE)
		return false;
	for (i = 0; i < nr; i++)
		if (!efuse_epoch_holds(t->req->ec, t->ch, buckets[i], t->req->args->efuse.epoch,
				       &own))
			return false;

	stamp->flags = 0;
	stamp->epoch = own ? t->ch->epoch : t->req->args->efuse.epoch;
	stamp->expires_ns = t->now + valid_ns;
	stamp->caller = efuse_caller_stamp(t->req);
	return true;
}

/* Compute the check and call learn(). @size: bytes of the value that the check covers. */
static void efuse_teach(struct efuse_teacher *t, u32 map, u32 seed, size_t size)
{
	struct efuse_conn *ec = t->req->ec;

	t->lesson->map = map;
	t->lesson->value.stamp.check = efuse_check(seed, &t->lesson->value, size);
	t->req->lesson = t->lesson;
	this_cpu_inc(ec->stats->learned);
	if (t->ops->learn(t->req) < 0)
		this_cpu_inc(ec->stats->map_full);
	t->req->lesson = NULL;
}

/* A timeout of the protocol in ns, limited so that its sum with a clock does not overflow. */
static u64 efuse_valid_ns(u64 secs, u32 nsecs)
{
	return min_t(u64, secs, EFUSE_RAISED_SECS) * NSEC_PER_SEC +
	       min_t(u32, nsecs, NSEC_PER_SEC - 1);
}

static void efuse_teach_attrs(struct efuse_teacher *t, u64 nodeid, const struct fuse_attr *attr,
			      u64 valid_ns)
{
	const u16 buckets[] = {
		efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR),
		efuse_bucket_inode(nodeid, EFUSE_KIND_LIFE),
		efuse_bucket_inode(nodeid, EFUSE_KIND_ATIME),
	};
	struct efuse_attrs *value = &t->lesson->value.attrs;
	int nr = READ_ONCE(t->req->ec->lazy_atime) ? 2 : 3;

	if (!efuse_teach_stamp(t, buckets, nr, valid_ns))
		return;
	memcpy(value->attr, attr, sizeof(*attr));
	t->lesson->key.nodeid = nodeid;
	efuse_teach(t, EFUSE_MAP_ATTRS, efuse_seed_nodeid(nodeid), sizeof(*value));
}

/* "." and "..": not learned, since no directory has such entries, and ".." changes by a rename. */
static bool efuse_name_is_dots(const char *name, u32 len)
{
	return name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.'));
}

/* Teach a name. @entry is NULL if the name does not exist. */
static void efuse_teach_entry(struct efuse_teacher *t, u64 parent, const char *name, u32 len,
			      const struct fuse_entry_out *entry, u64 valid_ns)
{
	const u16 buckets[] = {
		efuse_bucket_entry(parent, name, len),
		efuse_bucket_inode(parent, EFUSE_KIND_LIFE),
		efuse_bucket_inode(parent, EFUSE_KIND_RIGHTS),
		efuse_bucket_inode(entry ? entry->nodeid : 0, EFUSE_KIND_LIFE),
	};
	struct efuse_entry *value = &t->lesson->value.entry;

	if (len >= EFUSE_NAME_LEN || efuse_name_is_dots(name, len) ||
	    !efuse_teach_stamp(t, buckets, entry ? 4 : 3, valid_ns))
		return;
	value->nodeid = entry ? entry->nodeid : 0;
	value->generation = entry ? entry->generation : 0;
	efuse_entry_key(&t->lesson->key.entry, parent, name, len);
	efuse_teach(t, EFUSE_MAP_ENTRIES, efuse_seed_entry(parent, name, len), sizeof(*value));
}

/* Is the entry valid, and of this mount? The root of a submount gets a new inode each time. */
static bool efuse_entry_good(const struct fuse_entry_out *entry)
{
	return !invalid_nodeid(entry->nodeid) &&
	       !fuse_invalid_attr((struct fuse_attr *)&entry->attr) &&
	       !(entry->attr.flags & FUSE_ATTR_SUBMOUNT);
}

static void efuse_teach_positive(struct efuse_teacher *t, u64 parent, const char *name, u32 len,
				 const struct fuse_entry_out *entry)
{
	if (!efuse_entry_good(entry))
		return;
	efuse_teach_entry(t, parent, name, len, entry,
			  efuse_valid_ns(entry->entry_valid, entry->entry_valid_nsec));
	efuse_teach_attrs(t, entry->nodeid, &entry->attr,
			  efuse_valid_ns(entry->attr_valid, entry->attr_valid_nsec));
}

/* Teach that the request's name number @index does not exist in @parent. */
static void efuse_teach_negative(struct efuse_teacher *t, u64 parent, u32 index, u64 valid_ns)
{
	u32 len;
	const char *name = efuse_req_name_at(t->req->args, index, &len);

	if (name)
		efuse_teach_entry(t, parent, name, len, NULL, valid_ns);
}

static void efuse_teach_lookup(struct efuse_teacher *t)
{
	const struct fuse_args *args = t->req->args;
	const struct fuse_entry_out *entry = efuse_out_entry(args);
	const char *name;
	u32 len;

	if (t->req->error == -ENOENT) {
		efuse_teach_negative(t, args->nodeid, 0, 0);
		return;
	}
	if (t->req->error || !entry)
		return;
	if (!entry->nodeid) {
		efuse_teach_negative(t, args->nodeid, 0,
				     efuse_valid_ns(entry->entry_valid,
						    entry->entry_valid_nsec));
		return;
	}
	name = efuse_req_name_at(args, 0, &len);
	if (name)
		efuse_teach_positive(t, args->nodeid, name, len, entry);
}

static void efuse_teach_created(struct efuse_teacher *t)
{
	const struct fuse_args *args = t->req->args;
	const struct fuse_entry_out *entry = efuse_out_entry(args);
	u32 len;
	const char *name = efuse_req_name_at(args, 0, &len);

	if (t->req->error || !entry || !name)
		return;
	efuse_teach_positive(t, args->nodeid, name, len, entry);
}

/*
 * Teach an entry of READDIRPLUS. A caller that may list a directory need not be allowed to look up
 * names in it. If answers depend on the caller, only the attributes are learned.
 */
static void efuse_teach_dirent(struct efuse_teacher *t, const struct fuse_dirent *dirent,
			       const struct fuse_entry_out *entry)
{
	if (efuse_conn_caller_free(t->req->ec))
		efuse_teach_positive(t, t->req->args->nodeid, dirent->name, dirent->namelen, entry);
	else if (efuse_entry_good(entry))
		efuse_teach_attrs(t, entry->nodeid, &entry->attr,
				  efuse_valid_ns(entry->attr_valid, entry->attr_valid_nsec));
}

static void efuse_teach_dirents(struct efuse_teacher *t)
{
	const struct fuse_direntplus *plus;
	size_t left;
	char *at = efuse_dirents_start(t->req, &left);

	while ((plus = efuse_dirents_next(&at, &left))) {
		const struct fuse_dirent *dirent = &plus->dirent;

		if (!dirent->namelen || dirent->namelen > FUSE_NAME_MAX)
			return;
		/* FUSE ignores "." and "..", too. */
		if (plus->entry_out.nodeid &&
		    !efuse_name_is_dots(dirent->name, dirent->namelen))
			efuse_teach_dirent(t, dirent, &plus->entry_out);
	}
}

/*
 * Teach the answer of a READLINK, GETXATTR or LISTXATTR. The protocol has no timeout for it, so it
 * gets the remaining timeout of the inode's attributes.
 */
static void efuse_teach_blob(struct efuse_teacher *t)
{
	struct fuse_args *args = t->req->args;
	struct efuse_blob *value = &t->lesson->value.blob;
	u64 nodeid = args->nodeid;
	bool absent = args->opcode == FUSE_GETXATTR && t->req->error == -ENODATA;
	const void *data = NULL;
	const char *name;
	u16 buckets[3];
	size_t room;
	int nr = 0;
	u32 len;

	if (!absent && (t->req->error || !args->out_argvar ||
			t->req->ret > EFUSE_BLOB_LEN))
		return;
	if (efuse_acl_is_the_vfs(t->req))
		return;
	name = efuse_req_name_at(args, 0, &len);
	if (len >= EFUSE_NAME_LEN)
		return;

	buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_LIFE);
	if (args->opcode != FUSE_READLINK)
		buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_XATTR);
	if (!absent) {
		buckets[nr++] = efuse_bucket_inode(nodeid, EFUSE_KIND_DATA);
		data = efuse_out_data(args, &room) ?: args->out_args[0].value;
	}
	if (!efuse_teach_stamp(t, buckets, nr, efuse_inode_valid_ns(t->req->fm, nodeid)))
		return;

	value->error = absent ? -ENODATA : 0;
	value->len = absent ? 0 : t->req->ret;
	memcpy(value->data, data, value->len);
	/* Nothing of an earlier lesson may get into a map. */
	memset(value->data + value->len, 0, sizeof(value->data) - value->len);
	efuse_blob_key(&t->lesson->key.blob, nodeid, args->opcode, name, len);
	efuse_teach(t, EFUSE_MAP_BLOBS, efuse_seed_blob(nodeid, args->opcode, name, len),
		    EFUSE_BLOB_HEAD + value->len);
}

/*
 * May the kernel open the inode of an OPEN or OPENDIR again, after a reply with the handle @fh? See
 * EFUSE_FH_OWN. A daemon that tells files apart by their handles could mistake a nodeid for the
 * handle of another file: then `handleless` ends, although it was declared.
 */
static bool efuse_teach_handle(struct efuse_teacher *t, u64 fh)
{
	struct efuse_conn *ec = t->req->ec;

	if (efuse_handle_is_any(t->req->args, fh))
		return true;
	if (fh & EFUSE_FH_OWN)
		return false;
	WRITE_ONCE(ec->handleless, false);
	pr_warn("efuse: connection %u is not handleless: its daemon's reply to %s has handle %llu\n",
		ec->id, t->req->args->opcode == FUSE_OPEN ? "OPEN" : "OPENDIR", fh);
	return false;
}

static void efuse_teach_grant(struct efuse_teacher *t)
{
	struct fuse_args *args = t->req->args;
	struct efuse_grant *value = &t->lesson->value.grant;
	const struct fuse_open_out *open = efuse_out_open(args);
	const u16 buckets[] = {
		efuse_bucket_inode(args->nodeid, EFUSE_KIND_RIGHTS),
		efuse_bucket_inode(args->nodeid, EFUSE_KIND_LIFE),
	};

	if (t->req->error)
		return;
	if (open && (open->open_flags & FOPEN_PASSTHROUGH ||
		     !READ_ONCE(t->req->ec->handleless) || !efuse_teach_handle(t, open->fh) ||
		     efuse_arg_flags(args) & O_TRUNC))
		return;
	if (!efuse_teach_stamp(t, buckets, ARRAY_SIZE(buckets),
			       efuse_inode_valid_ns(t->req->fm, args->nodeid)))
		return;
	value->open_flags = open ? open->open_flags : 0;
	value->pad = 0;
	efuse_grant_key(&t->lesson->key.grant, t->req);
	efuse_teach(t, EFUSE_MAP_GRANTS, efuse_seed_grant(&t->lesson->key.grant),
		    sizeof(*value));
}

static void efuse_teach_volume(struct efuse_teacher *t)
{
	const struct fuse_args *args = t->req->args;
	const struct fuse_statfs_out *out = args->out_args[0].value;
	const u16 bucket = efuse_bucket_inode(0, EFUSE_KIND_VOLUME);
	struct efuse_volume *value = &t->lesson->value.volume;

	if (t->req->error || args->out_args[0].size != sizeof(*out) ||
	    READ_ONCE(t->req->ec->consistency) != EFUSE_EXCLUSIVE ||
	    !efuse_teach_stamp(t, &bucket, 1, EFUSE_VOLUME_NS))
		return;
	memcpy(value->st, &out->st, sizeof(value->st));
	t->lesson->key.nodeid = args->nodeid;
	efuse_teach(t, EFUSE_MAP_VOLUMES, efuse_seed_nodeid(args->nodeid), sizeof(*value));
}

static void efuse_teach_all(struct efuse_teacher *t)
{
	const struct fuse_args *args = t->req->args;
	const struct fuse_attr_out *attr;
	bool gone = !t->req->error;

	switch (args->opcode) {
	case FUSE_LOOKUP:
		efuse_teach_lookup(t);
		break;
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		efuse_teach_created(t);
		break;
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		attr = efuse_out_attr(args);
		if (!t->req->error && attr)
			efuse_teach_attrs(t, args->nodeid, &attr->attr,
					  efuse_valid_ns(attr->attr_valid,
							 attr->attr_valid_nsec));
		break;
	case FUSE_READDIRPLUS:
		efuse_teach_dirents(t);
		break;
	case FUSE_READLINK:
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		efuse_teach_blob(t);
		break;
	case FUSE_ACCESS:
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		efuse_teach_grant(t);
		break;
	case FUSE_STATFS:
		efuse_teach_volume(t);
		break;
	case FUSE_UNLINK:
	case FUSE_RMDIR:
		if (gone)
			efuse_teach_negative(t, args->nodeid, 0, 0);
		break;
	}
}

/* Can the reply of an opcode teach anything? If not, no memory is allocated. */
static bool efuse_teaches(u32 opcode)
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
 * efuse_learn - call the program's learn() for each value in a reply
 * @req: the request, with the daemon's answer
 * @ops: the program set, which has a learn()
 * @ch: the changes that the request made, ended
 *
 * Blocks of data are not among the values: see efuse_blocks_learn().
 *
 * Context: under rcu_read_lock(), does not sleep. If there is no memory, nothing is learned.
 */
void efuse_learn(struct efuse_req *req, struct efuse_ops *ops, const struct efuse_changes *ch)
{
	struct efuse_teacher t = { .req = req, .ops = ops, .ch = ch };

	if (READ_ONCE(req->ec->consistency) == EFUSE_STRICT || !efuse_teaches(req->args->opcode))
		return;
	t.lesson = kmalloc(sizeof(*t.lesson), GFP_NOWAIT | __GFP_NOWARN);
	if (!t.lesson)
		return;
	t.now = ktime_get_ns();
	efuse_teach_all(&t);
	kfree(t.lesson);
}
