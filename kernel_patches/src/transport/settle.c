// SPDX-License-Identifier: GPL-2.0
/*
 * Whether a request was carried out before its daemon ended: the names that it changes are looked
 * up, and compared with what the kernel knew when it sent the request.
 *
 * A request that was certainly not carried out is sent again. That it was carried out is certain
 * only in exclusive mode: there are no other clients, and the caller holds the locks of the
 * directories. In other modes the same names may be another client's doing, and the caller would
 * hear of a success that it did not have. Then it gets EIO.
 */
#include "transport_i.h"

#include <linux/xattr.h>

/* Has no other client changed the names? */
static bool efuse_alone(const struct efuse_req *req)
{
	return READ_ONCE(req->ec->consistency) == EFUSE_EXCLUSIVE;
}

/* The lookup count of an entry that no caller gets is returned. */
static void efuse_entry_put(struct efuse_req *req, const struct fuse_entry_out *entry)
{
	struct fuse_forget_link *forget = entry->nodeid ? fuse_alloc_forget() : NULL;

	if (forget)
		efuse_forget(req->fm->fc, forget, entry->nodeid);
}

/*
 * Look name number @index of the request up in @dir. Returns 0, and @entry with nodeid 0 if there
 * is no such name; or a negative errno, which may be that the LOOKUP was lost, too. With @raw,
 * @entry has the daemon's nodeid, and its lookup count is given back.
 */
static ssize_t efuse_entry_ask(struct efuse_req *req, u64 dir, u32 index,
			       struct fuse_entry_out *entry, bool raw)
{
	struct fuse_args args = { .efuse.raw = raw };
	const char *name;
	ssize_t ret;
	u32 len;

	memset(entry, 0, sizeof(*entry));
	name = efuse_req_name_at(req->args, index, &len);
	if (!name)
		return -EIO;
	efuse_lookup_args(&args, dir, name, len, entry);
	ret = efuse_ask_daemon(&invalid_mnt_idmap, req->fm, &args);
	if (ret == -ENOENT || (!ret && !entry->nodeid)) {
		memset(entry, 0, sizeof(*entry));
		return 0;
	}
	if (!ret && raw)
		efuse_entry_return(req->ec, entry->nodeid, args.efuse.serial - 1);
	return ret;
}

static ssize_t efuse_entry_get(struct efuse_req *req, u64 dir, u32 index,
			       struct fuse_entry_out *entry)
{
	return efuse_entry_ask(req, dir, index, entry, false);
}

/* A LOOKUP or another question has failed. */
static enum efuse_settled efuse_unsettled(ssize_t error, ssize_t *ret)
{
	*ret = error;
	return efuse_lost(error) ? EFUSE_LOST_AGAIN : EFUSE_UNKNOWN;
}

/* Does the present daemon know a nodeid? */
static bool efuse_nodeid_present(struct efuse_conn *ec, u64 nodeid)
{
	return efuse_nodeid_daemon(ec, nodeid, READ_ONCE(ec->recovery.incarnation));
}

/* CREATE: opens the file that the CREATE has made. Returns 0 or a negative errno. */
static ssize_t efuse_created_open(struct efuse_req *req, u64 nodeid)
{
	struct fuse_open_in in = {
		.flags = efuse_arg_flags(req->args) & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY),
	};
	struct fuse_args args = {
		.opcode = FUSE_OPEN,
		.nodeid = nodeid,
		.in_numargs = 1,
		.out_numargs = 1,
	};
	ssize_t ret;

	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	args.out_args[0].size = sizeof(struct fuse_open_out);
	args.out_args[0].value = efuse_out_open(req->args);
	ret = efuse_ask_daemon(&invalid_mnt_idmap, req->fm, &args);
	/* The handle is this daemon's. */
	req->args->efuse.serial = args.efuse.serial;
	/* The daemon that has told the nodeid has ended, and the kernel has no inode of it yet. */
	if (ret == -ESTALE && !efuse_nodeid_present(req->ec, nodeid))
		return EFUSE_LOST_READ;
	return ret;
}

/* Is the entry what the request was to make? Its name had no inode before. */
static bool efuse_entry_made(const struct efuse_req *req, const struct fuse_entry_out *entry)
{
	const struct fuse_mknod_in *mknod;
	u32 type = entry->attr.mode & S_IFMT;

	switch (req->args->opcode) {
	case FUSE_MKDIR:
		return type == S_IFDIR;
	case FUSE_SYMLINK:
		return type == S_IFLNK;
	case FUSE_CREATE:
		return type == S_IFREG;
	case FUSE_MKNOD:
		mknod = efuse_req_in(req->args, FUSE_COMPAT_MKNOD_IN_SIZE);
		return mknod && type == (mknod->mode & S_IFMT);
	case FUSE_LINK:
		return entry->nodeid == efuse_arg_newdir(req->args);
	default:
		return false;
	}
}

/* MKDIR, MKNOD, SYMLINK, LINK, CREATE: does the name exist now? */
static enum efuse_settled efuse_settle_made(struct efuse_req *req, ssize_t *ret)
{
	struct fuse_entry_out *out = efuse_out_entry(req->args);
	struct fuse_entry_out entry;
	ssize_t err;

	err = efuse_entry_get(req, req->args->nodeid, 0, &entry);
	if (err)
		return efuse_unsettled(err, ret);
	if (!entry.nodeid)
		return EFUSE_NOT_DONE;
	err = -EIO;
	if (out && efuse_alone(req) && efuse_entry_made(req, &entry))
		err = req->args->opcode == FUSE_CREATE ? efuse_created_open(req, entry.nodeid) : 0;
	if (err) {
		efuse_entry_put(req, &entry);
		return efuse_unsettled(err, ret);
	}
	/* The caller gets the lookup count of this LOOKUP. */
	*out = entry;
	*ret = 0;
	return EFUSE_DONE;
}

/*
 * OPEN with O_TRUNC: truncates the file once more, unless something else may have changed its data
 * since it did so first. In mode cto an OPEN counts as such a change as well.
 */
static enum efuse_settled efuse_settle_truncated(struct efuse_req *req, ssize_t *ret)
{
	u16 bucket = efuse_bucket_inode(req->args->nodeid, EFUSE_KIND_DATA);

	if (efuse_epoch_alone(req->ec, bucket, req->args->efuse.epoch))
		return EFUSE_NOT_DONE;
	return efuse_unsettled(-EIO, ret);
}

/* UNLINK, RMDIR: is the name gone, or does it still have the same inode? */
static enum efuse_settled efuse_settle_removed(struct efuse_req *req, ssize_t *ret)
{
	u64 child = req->args->efuse.child[0];
	struct fuse_entry_out entry;
	ssize_t err;

	err = efuse_entry_get(req, req->args->nodeid, 0, &entry);
	if (err)
		return efuse_unsettled(err, ret);
	efuse_entry_put(req, &entry);
	if (child && entry.nodeid == child)
		return EFUSE_NOT_DONE;
	if (!child || entry.nodeid || !efuse_alone(req))
		return efuse_unsettled(-EIO, ret);
	*ret = 0;
	return EFUSE_DONE;
}

/*
 * Looks name number @index of a RENAME up in @dir, and gives the lookup count back. The kernel has
 * not moved the names yet, so it cannot tell which of its inodes the answer is of.
 */
static ssize_t efuse_entry_peek(struct efuse_req *req, u64 dir, u32 index,
				struct fuse_entry_out *entry)
{
	bool raw = efuse_translates(req->ec);
	ssize_t ret;

	ret = efuse_entry_ask(req, dir, index, entry, raw);
	if (!ret && !raw)
		efuse_entry_put(req, entry);
	return ret;
}

/* Is an answer to the old name of a RENAME of the inode that it had, as far as st_ino tells? */
static bool efuse_entry_source(const struct efuse_req *req, const struct fuse_entry_out *old)
{
	const struct inode *inode;
	bool same;

	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, req->args->efuse.child[0]);
	same = inode && efuse_ino_real(inode) &&
	       get_fuse_inode((struct inode *)inode)->orig_ino == old->attr.ino;
	rcu_read_unlock();
	return same;
}

/*
 * Has a RENAME by a daemon with nodeids of its own been carried out? In exclusive mode only the
 * RENAME can have taken the old name away, and if that is there, it was not carried out. In other
 * modes another client may have made the old name again.
 */
static enum efuse_settled efuse_settle_moved(struct efuse_req *req,
					     const struct fuse_entry_out *old,
					     const struct fuse_entry_out *new, ssize_t *ret)
{
	if (efuse_arg_flags(req->args) & RENAME_EXCHANGE)
		return efuse_unsettled(-EIO, ret);
	if (old->nodeid && (efuse_alone(req) || efuse_entry_source(req, old)))
		return EFUSE_NOT_DONE;
	if (old->nodeid || !new->nodeid || !efuse_alone(req))
		return efuse_unsettled(-EIO, ret);
	*ret = 0;
	return EFUSE_DONE;
}

/* RENAME: do the names have the inodes from before, or those from afterwards? */
static enum efuse_settled efuse_settle_renamed(struct efuse_req *req, ssize_t *ret)
{
	u32 flags = efuse_arg_flags(req->args);
	u64 source = req->args->efuse.child[0];
	u64 target = req->args->efuse.child[1];
	struct fuse_entry_out old, new;
	bool done;
	ssize_t err;

	if (!source || flags & ~(RENAME_EXCHANGE | RENAME_NOREPLACE))
		return efuse_unsettled(-EIO, ret);
	err = efuse_entry_peek(req, req->args->nodeid, 0, &old);
	if (!err)
		err = efuse_entry_peek(req, efuse_arg_newdir(req->args), 1, &new);
	if (err)
		return efuse_unsettled(err, ret);
	if (efuse_translates(req->ec))
		return efuse_settle_moved(req, &old, &new, ret);
	if (old.nodeid == source && new.nodeid == target)
		return EFUSE_NOT_DONE;
	done = new.nodeid == source && old.nodeid == (flags & RENAME_EXCHANGE ? target : 0);
	if (!done || !efuse_alone(req))
		return efuse_unsettled(-EIO, ret);
	*ret = 0;
	return EFUSE_DONE;
}

/*
 * SETXATTR with XATTR_CREATE, REMOVEXATTR: the attribute is as it was before the request if it is
 * not there, or is there, respectively. Otherwise the kernel does not know what was before.
 */
static enum efuse_settled efuse_settle_xattr(struct efuse_req *req, ssize_t *ret)
{
	struct fuse_getxattr_in in = {};
	struct fuse_getxattr_out out;
	struct fuse_args args = {
		.opcode = FUSE_GETXATTR,
		.nodeid = req->args->nodeid,
		.in_numargs = 2,
		.out_numargs = 1,
	};
	const char *name;
	ssize_t err;
	u32 len;

	name = efuse_req_name_at(req->args, 0, &len);
	if (!name)
		return efuse_unsettled(-EIO, ret);
	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	args.in_args[1].size = len + 1;
	args.in_args[1].value = name;
	args.out_args[0].size = sizeof(out);
	args.out_args[0].value = &out;
	err = efuse_ask_daemon(&invalid_mnt_idmap, req->fm, &args);
	if (err == (req->args->opcode == FUSE_REMOVEXATTR ? 0 : -ENODATA))
		return EFUSE_NOT_DONE;
	return efuse_unsettled(efuse_lost(err) ? err : -EIO, ret);
}

/*
 * WRITE with O_APPEND: does the file end where it did, or after the data? The caller holds the lock
 * of the inode, but a file with several nodeids has several inodes, and another append of the same
 * size may have come by another one.
 */
static enum efuse_settled efuse_settle_appended(struct efuse_req *req, ssize_t *ret)
{
	struct fuse_write_out *written = req->args->out_args[0].value;
	u64 start = efuse_arg_offset(req->args), size = efuse_arg_size(req->args);
	struct fuse_getattr_in in = {};
	struct fuse_attr_out out = {};
	struct fuse_args args = {
		.opcode = FUSE_GETATTR,
		.nodeid = req->args->nodeid,
		.in_numargs = 1,
		.out_numargs = 1,
	};
	ssize_t err;

	if (!efuse_alone(req))
		return efuse_unsettled(-EIO, ret);
	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	args.out_args[0].size = sizeof(out);
	args.out_args[0].value = &out;
	err = efuse_ask_daemon(&invalid_mnt_idmap, req->fm, &args);
	if (err)
		return efuse_unsettled(err, ret);
	if (out.attr.size == start)
		return EFUSE_NOT_DONE;
	if (out.attr.size != start + size || efuse_shared(req->ec, &out.attr))
		return efuse_unsettled(-EIO, ret);
	written->size = size;
	*ret = 0;
	return EFUSE_DONE;
}

/**
 * efuse_settle - find out whether a request was carried out before its daemon ended
 * @req: the request, which must not be sent again before that is known
 * @ret: what __fuse_simple_request() would have returned, with EFUSE_DONE; the error of a question
 *	 that was lost, with EFUSE_LOST_AGAIN
 *
 * Context: process context, may sleep; the caller holds the locks that it held when it sent @req.
 * Return: enum efuse_settled
 */
enum efuse_settled efuse_settle(struct efuse_req *req, ssize_t *ret)
{
	switch (req->args->opcode) {
	case FUSE_MKDIR:
	case FUSE_MKNOD:
	case FUSE_SYMLINK:
	case FUSE_LINK:
	case FUSE_CREATE:
		return efuse_settle_made(req, ret);
	case FUSE_OPEN:
		return efuse_settle_truncated(req, ret);
	case FUSE_UNLINK:
	case FUSE_RMDIR:
		return efuse_settle_removed(req, ret);
	case FUSE_RENAME:
	case FUSE_RENAME2:
		return efuse_settle_renamed(req, ret);
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
		return efuse_settle_xattr(req, ret);
	case FUSE_WRITE:
		return efuse_settle_appended(req, ret);
	default:
		*ret = -EIO;
		return EFUSE_UNKNOWN;
	}
}
