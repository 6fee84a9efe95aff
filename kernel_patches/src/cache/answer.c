// SPDX-License-Identifier: GPL-2.0
/*
 * Answers from maps. A handler offers a value from a map. The functions here copy it once, check
 * the copy and put it into the reply. They do not trust the value: it may be torn or belong to
 * another key, since its map element can be reused at any time; it may be outdated; it may be for
 * another caller. If a check fails, its reason is counted and the request goes to the daemon.
 */
#include "cache_i.h"

#include <linux/statfs.h>

static int efuse_decline(struct efuse_req *req, enum efuse_counter reason)
{
	req->reason = reason;
	return EFUSE_PASS;
}

static int efuse_replied(struct efuse_req *req, ssize_t ret)
{
	req->ret = ret;
	req->replied = true;
	return EFUSE_REPLIED;
}

static bool efuse_exclusive(const struct efuse_req *req)
{
	return READ_ONCE(req->ec->consistency) == EFUSE_EXCLUSIVE;
}

/* The rest of a timeout, in the form that a reply has. */
static void efuse_remaining(u64 expires_ns, u64 now, u64 *secs, u32 *nsecs)
{
	u64 left = expires_ns > now ? expires_ns - now : 0;

	*secs = div_u64_rem(left, NSEC_PER_SEC, nsecs);
}

/*
 * In exclusive mode values do not expire, unless the file may have several nodeids: then changes by
 * another nodeid are not seen here. In the other modes a value of the inode's present @version (0:
 * none) outlives its timeout.
 */
static bool efuse_expired(const struct efuse_req *req, const struct efuse_stamp *stamp, u64 version,
			  u64 now)
{
	if (stamp->expires_ns > now || efuse_changes_known_nodeid(req, req->args->nodeid))
		return false;
	if (version)
		efuse_version_issue(req);
	return !efuse_version_proves(req->args, version);
}

/*
 * Check what all values have in common: the mode, the timeout, the caller. Returns 0, or the reason
 * for a refusal.
 */
static enum efuse_counter efuse_stamp_refused(struct efuse_req *req,
					      const struct efuse_stamp *stamp, u64 version,
					      u64 now)
{
	if (READ_ONCE(req->ec->consistency) == EFUSE_STRICT)
		return EFUSE_DECLINED;
	if (efuse_expired(req, stamp, version, now))
		return EFUSE_EXPIRED;
	if (!efuse_caller_is(req, stamp))
		return EFUSE_OTHER_UID;
	return 0;
}

static bool efuse_unchanged(const struct efuse_req *req, u64 nodeid, enum efuse_kind kind,
			    const struct efuse_stamp *stamp)
{
	return efuse_epoch_valid(req->ec, efuse_bucket_inode(nodeid, kind), stamp->epoch);
}

static bool efuse_attrs_valid(const struct efuse_req *req, u64 nodeid,
			      const struct efuse_stamp *stamp)
{
	return efuse_unchanged(req, nodeid, EFUSE_KIND_ATTR, stamp) &&
	       efuse_unchanged(req, nodeid, EFUSE_KIND_IDENTITY, stamp) &&
	       (READ_ONCE(req->ec->lazy_atime) ||
		efuse_unchanged(req, nodeid, EFUSE_KIND_ATIME, stamp));
}

/* Attributes do not depend on the caller. Returns 0, or the reason for a refusal. */
static enum efuse_counter efuse_attrs_refused(const struct efuse_req *req, u64 nodeid,
					      struct efuse_attrs *attrs, u64 now)
{
	struct fuse_attr *attr = (struct fuse_attr *)attrs->attr;

	BUILD_BUG_ON(sizeof(*attr) != EFUSE_ATTR_LEN);

	if (efuse_check(efuse_seed_nodeid(nodeid), attrs, sizeof(*attrs)) != attrs->stamp.check)
		return EFUSE_STALE;
	if (READ_ONCE(req->ec->consistency) == EFUSE_STRICT)
		return EFUSE_DECLINED;
	if (attrs->stamp.expires_ns <= now && !efuse_changes_known(req->ec, attr))
		return EFUSE_EXPIRED;
	if (!efuse_attrs_valid(req, nodeid, &attrs->stamp))
		return EFUSE_STALE;
	/*
	 * FUSE checks the daemon's attributes in the same way. The high flags are the kernel's own.
	 */
	if (fuse_invalid_attr(attr) || attr->flags & ~FUSE_ATTR_DAX)
		return EFUSE_DECLINED;
	return 0;
}

/* Check an entry, but not its inode. Returns 0, or the reason for a refusal. */
static enum efuse_counter efuse_entry_refused(struct efuse_req *req,
					      const struct efuse_entry *entry, u64 now)
{
	const struct fuse_args *args = req->args;
	u32 len;
	const char *name = efuse_req_name_at(args, 0, &len);
	enum efuse_counter reason;

	if (efuse_check(efuse_seed_entry(args->nodeid, name, len), entry, sizeof(*entry)) !=
	    entry->stamp.check)
		return EFUSE_STALE;
	reason = efuse_stamp_refused(req, &entry->stamp, 0, now);
	if (reason)
		return reason;
	/* The nodeid of the directory may have been reused, or its permissions changed. */
	if (!efuse_epoch_valid(req->ec, efuse_bucket_entry(args->nodeid, name, len),
			       entry->stamp.epoch) ||
	    !efuse_unchanged(req, args->nodeid, EFUSE_KIND_IDENTITY, &entry->stamp) ||
	    !efuse_unchanged(req, args->nodeid, EFUSE_KIND_RIGHTS, &entry->stamp))
		return EFUSE_STALE;
	return 0;
}

static void efuse_attrs_time(const struct efuse_req *req, u64 nodeid,
			     const struct efuse_attrs *attrs, u64 now, u64 *secs, u32 *nsecs)
{
	const struct fuse_attr *attr = (const struct fuse_attr *)attrs->attr;

	if (efuse_changes_known(req->ec, attr))
		efuse_time_extend(efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR), attrs->stamp.epoch,
				  secs, nsecs);
	else
		efuse_remaining(attrs->stamp.expires_ns, now, secs, nsecs);
}

/*
 * Dentries are visible to all callers. So in exclusive mode their timeout is extended only if
 * answers do not depend on the caller; and a name that others must not be shown gets no timeout at
 * all.
 */
static void efuse_entry_time(const struct efuse_req *req, const struct efuse_entry *entry,
			     u64 now, struct fuse_entry_out *out)
{
	u32 len;
	const char *name = efuse_req_name_at(req->args, 0, &len);

	if (efuse_exclusive(req) && efuse_conn_caller_free(req->ec))
		efuse_time_extend(efuse_bucket_entry(req->args->nodeid, name, len),
				  entry->stamp.epoch, &out->entry_valid, &out->entry_valid_nsec);
	else if (efuse_names_shared(req->ec))
		efuse_remaining(entry->stamp.expires_ns, now, &out->entry_valid,
				&out->entry_valid_nsec);
}

int efuse_answer_entry(struct efuse_req *req, const void *entry_mem, u32 entry_size,
		       const void *attrs_mem, u32 attrs_size)
{
	struct fuse_entry_out *out = efuse_out_entry(req->args);
	struct efuse_entry entry;
	struct efuse_attrs attrs;
	struct fuse_attr *attr = (struct fuse_attr *)attrs.attr;
	enum efuse_counter reason;
	u64 now = ktime_get_ns(), epoch = efuse_epoch_now(req->ec);
	enum efuse_taken taken;

	if (!out || req->replied || req->args->opcode != FUSE_LOOKUP ||
	    entry_size != sizeof(entry) || attrs_size != sizeof(attrs))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&entry, entry_mem, sizeof(entry));
	memcpy(&attrs, attrs_mem, sizeof(attrs));

	reason = efuse_entry_refused(req, &entry, now);
	if (reason)
		return efuse_decline(req, reason);
	if (entry.nodeid <= FUSE_ROOT_ID)
		return efuse_decline(req, EFUSE_DECLINED);
	if (!efuse_unchanged(req, entry.nodeid, EFUSE_KIND_IDENTITY, &entry.stamp))
		return efuse_decline(req, EFUSE_STALE);
	reason = efuse_attrs_refused(req, entry.nodeid, &attrs, now);
	if (reason)
		return efuse_decline(req, reason);

	/* The last check: it takes a lookup count, which the caller then owns. */
	taken = efuse_take_lookup(req->fm, entry.nodeid, entry.generation, attr->mode,
				  min(entry.stamp.epoch, attrs.stamp.epoch));
	if (taken == EFUSE_TAKEN_UNFIT ||
	    (taken != EFUSE_TAKEN && !READ_ONCE(req->ec->stable_nodeids)))
		return efuse_decline(req, EFUSE_NOT_ALIVE);
	if (taken != EFUSE_TAKEN)
		attr->flags |= EFUSE_ATTR_UNCOUNTED;

	memset(out, 0, sizeof(*out));
	out->nodeid = entry.nodeid;
	out->generation = entry.generation;
	out->attr = *attr;
	/* The attributes have stood the checks, which came after this epoch. */
	efuse_size_mark(&out->attr, epoch);
	out->attr.flags |= EFUSE_ATTR_ANSWER;
	efuse_entry_time(req, &entry, now, out);
	efuse_attrs_time(req, entry.nodeid, &attrs, now, &out->attr_valid, &out->attr_valid_nsec);
	return efuse_replied(req, 0);
}

int efuse_answer_negative(struct efuse_req *req, const void *mem, u32 size)
{
	struct fuse_entry_out *out = efuse_out_entry(req->args);
	struct efuse_entry entry;
	enum efuse_counter reason;
	u64 now = ktime_get_ns();

	if (!out || req->replied || req->args->opcode != FUSE_LOOKUP || size != sizeof(entry))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&entry, mem, sizeof(entry));

	reason = efuse_entry_refused(req, &entry, now);
	if (reason)
		return efuse_decline(req, reason);
	if (entry.nodeid)
		return efuse_decline(req, EFUSE_DECLINED);

	/* Nodeid 0 means ENOENT, with a timeout. */
	memset(out, 0, sizeof(*out));
	efuse_entry_time(req, &entry, now, out);
	return efuse_replied(req, 0);
}

/*
 * Check the inode of a GETATTR. FUSE asks for attributes that it already holds only if the caller
 * wants them from the daemon (AT_STATX_FORCE_SYNC). In exclusive mode the kernel's attributes are
 * as good, unless the file may have several nodeids. FUSE would mark the inode bad if the answer
 * were of another file type.
 */
static enum efuse_counter efuse_getattr_refused(struct efuse_req *req, u32 mode)
{
	enum efuse_counter reason = 0;
	struct fuse_inode *fi;
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, req->args->nodeid);
	if (!inode) {
		reason = EFUSE_NOT_ALIVE;
		goto out;
	}
	fi = get_fuse_inode(inode);
	if (inode_wrong_type(inode, mode))
		reason = EFUSE_DECLINED;
	else if (!efuse_changes_known_inode(req->ec, inode) &&
		 !(READ_ONCE(fi->inval_mask) & STATX_BASIC_STATS) && !efuse_attr_ended(inode))
		reason = EFUSE_DECLINED;
out:
	rcu_read_unlock();
	return reason;
}

int efuse_answer_attrs(struct efuse_req *req, const void *mem, u32 size)
{
	struct fuse_attr_out *out = efuse_out_attr(req->args);
	struct efuse_attrs attrs;
	struct fuse_attr *attr = (struct fuse_attr *)attrs.attr;
	enum efuse_counter reason;
	u64 now = ktime_get_ns(), epoch = efuse_epoch_now(req->ec);

	if (!out || req->replied || req->args->opcode != FUSE_GETATTR || size != sizeof(attrs))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&attrs, mem, sizeof(attrs));

	reason = efuse_attrs_refused(req, req->args->nodeid, &attrs, now);
	if (!reason)
		reason = efuse_getattr_refused(req, attr->mode);
	if (reason)
		return efuse_decline(req, reason);

	memset(out, 0, sizeof(*out));
	out->attr = *attr;
	efuse_attrs_time(req, req->args->nodeid, &attrs, now, &out->attr_valid,
			 &out->attr_valid_nsec);
	/* The attributes have stood the check, which came after this epoch. */
	efuse_size_mark(&out->attr, epoch);
	out->attr.flags |= EFUSE_ATTR_ANSWER;
	return efuse_replied(req, 0);
}

static enum efuse_counter efuse_blob_refused(struct efuse_req *req,
					     const struct efuse_blob *head)
{
	u64 nodeid = req->args->nodeid;
	enum efuse_counter reason;

	reason = efuse_stamp_refused(req, &head->stamp, head->version, ktime_get_ns());
	if (reason)
		return reason;
	if (efuse_acl_is_the_vfs(req))
		return EFUSE_DECLINED;
	if (!efuse_unchanged(req, nodeid, EFUSE_KIND_IDENTITY, &head->stamp))
		return EFUSE_STALE;
	if (req->args->opcode == FUSE_READLINK)
		return efuse_unchanged(req, nodeid, EFUSE_KIND_DATA, &head->stamp) ? 0 :
										EFUSE_STALE;
	if (!efuse_unchanged(req, nodeid, EFUSE_KIND_XATTR, &head->stamp))
		return EFUSE_STALE;
	/* A write may remove an xattr (security.capability), but never adds one. */
	if (!head->error && !efuse_unchanged(req, nodeid, EFUSE_KIND_DATA, &head->stamp))
		return EFUSE_STALE;
	return 0;
}

/*
 * The place in the reply for a value of @len bytes. Returns NULL if the caller only asks for the
 * size, or has less room. *@ret is the result for the caller in each case: the length, 0 if it only
 * asks for the size, -ERANGE, or -EIO if the daemon has to answer.
 */
static void *efuse_blob_room(struct efuse_req *req, u32 len, ssize_t *ret)
{
	struct fuse_args *args = req->args;
	size_t size;
	void *room;

	if (args->opcode == FUSE_READLINK) {
		room = efuse_out_data(args, &size);
		if (!room || len > args->out_args[0].size) {
			*ret = -EIO;
			return NULL;
		}
		*ret = len;
		return room;
	}
	if (!args->out_argvar) {
		*ret = 0;
		return NULL;
	}
	if (len > args->out_args[0].size) {
		*ret = -ERANGE;
		return NULL;
	}
	*ret = len;
	return args->out_args[0].value;
}

int efuse_answer_blob(struct efuse_req *req, const void *mem, u32 size)
{
	struct fuse_args *args = req->args;
	struct fuse_getxattr_out *size_out;
	const struct efuse_blob *blob = mem;
	struct efuse_blob head;
	enum efuse_counter reason;
	const char *name;
	ssize_t ret;
	void *room;
	u32 len, crc;

	BUILD_BUG_ON(offsetof(struct efuse_blob, data) != EFUSE_BLOB_HEAD);

	if (req->replied || size != sizeof(*blob) ||
	    (args->opcode != FUSE_GETXATTR && args->opcode != FUSE_LISTXATTR &&
	     args->opcode != FUSE_READLINK))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&head, blob, EFUSE_BLOB_HEAD);
	if (head.len > EFUSE_BLOB_LEN ||
	    (head.error && (head.error != -ENODATA || head.len)))
		return efuse_decline(req, EFUSE_DECLINED);

	reason = efuse_blob_refused(req, &head);
	if (reason)
		return efuse_decline(req, reason);

	room = efuse_blob_room(req, head.len, &ret);
	if (ret == -EIO)
		return efuse_decline(req, EFUSE_DECLINED);
	/* The copy is checked in place. If it is wrong, the daemon's answer overwrites it. */
	if (room)
		memcpy(room, blob->data, head.len);
	name = efuse_req_name_at(args, 0, &len);
	crc = efuse_seed_blob(args->nodeid, args->opcode, name, len);
	crc = crc32_le(crc, (u8 *)&head + sizeof(u32), EFUSE_BLOB_HEAD - sizeof(u32));
	crc = ~crc32_le(crc, room ?: blob->data, head.len);
	if (crc != head.stamp.check)
		return efuse_decline(req, EFUSE_STALE);

	if (head.error)
		return efuse_replied(req, head.error);
	if (room) {
		args->out_args[0].size = head.len;
	} else if (!ret) {
		size_out = args->out_args[0].value;
		memset(size_out, 0, sizeof(*size_out));
		size_out->size = head.len;
	}
	return efuse_replied(req, ret);
}

/*
 * May the kernel open a file itself? Then the nodeid is the handle; or the daemon is asked for a
 * handle when a request needs one, and @later is set.
 */
static bool efuse_opens_itself(const struct efuse_req *req, bool *later)
{
	if (efuse_arg_flags(req->args) & O_TRUNC)
		return false;
	*later = !READ_ONCE(req->ec->no_open);
	return *later ? efuse_opens_later(req->ec, req->args) :
			READ_ONCE(req->ec->consistency) != EFUSE_CTO;
}

int efuse_answer_grant(struct efuse_req *req, const void *mem, u32 size)
{
	struct fuse_args *args = req->args;
	u8 mode = READ_ONCE(req->ec->consistency);
	bool later = false;
	struct efuse_grant_key key;
	struct efuse_grant grant;
	enum efuse_counter reason;
	struct fuse_open_out *out;

	if (req->replied || size != sizeof(grant))
		return efuse_decline(req, EFUSE_DECLINED);
	if (args->opcode != FUSE_ACCESS &&
	    ((args->opcode != FUSE_OPEN && args->opcode != FUSE_OPENDIR) ||
	     !efuse_opens_itself(req, &later)))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&grant, mem, sizeof(grant));

	efuse_grant_key(&key, req);
	if (efuse_check(efuse_seed_grant(&key), &grant, sizeof(grant)) != grant.stamp.check)
		return efuse_decline(req, EFUSE_STALE);
	reason = efuse_stamp_refused(req, &grant.stamp, 0, ktime_get_ns());
	if (reason)
		return efuse_decline(req, reason);
	if (!efuse_unchanged(req, args->nodeid, EFUSE_KIND_RIGHTS, &grant.stamp) ||
	    !efuse_unchanged(req, args->nodeid, EFUSE_KIND_IDENTITY, &grant.stamp))
		return efuse_decline(req, EFUSE_STALE);
	if (args->opcode == FUSE_ACCESS)
		return efuse_replied(req, 0);

	/*
	 * Void pages are dropped only when the daemon answers: that path can wait, this one cannot.
	 */
	if ((mode == EFUSE_EXCLUSIVE || grant.open_flags & FOPEN_KEEP_CACHE) &&
	    args->opcode == FUSE_OPEN && !efuse_kept(req->ec, req->fm, args->nodeid))
		return efuse_decline(req, EFUSE_STALE);
	/* A grant cannot open a backing file again. EFUSE_FOPEN_LOCAL is no flag of a daemon. */
	if (grant.open_flags & (FOPEN_PASSTHROUGH | EFUSE_FOPEN_LOCAL))
		return efuse_decline(req, EFUSE_DECLINED);
	out = efuse_out_open(args);
	memset(out, 0, sizeof(*out));
	/* Later: efuse_handle_later() gives it a number. */
	out->fh = later ? 0 : args->nodeid;
	out->open_flags = grant.open_flags | EFUSE_FOPEN_LOCAL;
	if (mode == EFUSE_EXCLUSIVE && !(grant.open_flags & FOPEN_DIRECT_IO))
		out->open_flags |= efuse_extended_open(req, out->fh);
	return efuse_replied(req, 0);
}

/* Only in exclusive mode: the protocol has no timeout for STATFS. */
int efuse_answer_volume(struct efuse_req *req, const void *mem, u32 size)
{
	struct fuse_args *args = req->args;
	struct efuse_volume volume;
	struct fuse_statfs_out *out = args->out_args[0].value;

	BUILD_BUG_ON(sizeof(struct fuse_kstatfs) != EFUSE_STATFS_LEN);

	if (req->replied || args->opcode != FUSE_STATFS || size != sizeof(volume) ||
	    args->out_args[0].size != sizeof(*out) || !efuse_exclusive(req))
		return efuse_decline(req, EFUSE_DECLINED);
	memcpy(&volume, mem, sizeof(volume));

	if (efuse_check(efuse_seed_nodeid(args->nodeid), &volume, sizeof(volume)) !=
	    volume.stamp.check || !efuse_unchanged(req, 0, EFUSE_KIND_VOLUME, &volume.stamp))
		return efuse_decline(req, EFUSE_STALE);
	if (volume.stamp.expires_ns <= ktime_get_ns())
		return efuse_decline(req, EFUSE_EXPIRED);

	memset(out, 0, sizeof(*out));
	memcpy(&out->st, volume.st, sizeof(volume.st));
	return efuse_replied(req, 0);
}

int efuse_answer_flush(struct efuse_req *req)
{
	const struct efuse_args *known = &req->args->efuse;

	if (req->replied || req->args->opcode != FUSE_FLUSH ||
	    !READ_ONCE(req->ec->no_flush) || known->written || known->locked ||
	    READ_ONCE(req->ec->consistency) == EFUSE_STRICT)
		return efuse_decline(req, EFUSE_DECLINED);
	return efuse_replied(req, 0);
}
