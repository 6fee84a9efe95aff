// SPDX-License-Identifier: GPL-2.0
/* Which requests change what: the table of docs/coherence.md. */
#include "efuse_i.h"

#include <linux/filelock.h>

void efuse_changes_add(struct efuse_changes *ch, u16 bucket)
{
	int i;

	for (i = 0; i < ch->nr; i++)
		if (ch->bucket[i] == bucket)
			return;
	if (!WARN_ON_ONCE(ch->nr == EFUSE_MAX_CHANGES))
		ch->bucket[ch->nr++] = bucket;
}

static void efuse_changes_inode(struct efuse_changes *ch, u64 nodeid, enum efuse_kind kind)
{
	efuse_changes_add(ch, efuse_bucket_inode(nodeid, kind));
}

static void efuse_changes_entry(struct efuse_changes *ch, u64 parent,
				const struct fuse_args *args, u32 index)
{
	u32 len;
	const char *name = efuse_req_name_at(args, index, &len);

	if (name)
		efuse_changes_add(ch, efuse_bucket_entry(parent, name, len));
	/* Its times, its link count. */
	efuse_changes_inode(ch, parent, EFUSE_KIND_ATTR);
}

/* With a file's content go size and times, and what a write strips (suid, capabilities). */
static void efuse_changes_data(struct efuse_changes *ch, u64 nodeid)
{
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
}

/*
 * It has another name. What was learned until then counts on all changes being seen at
 * its nodeid, but the daemon may have one for each name.
 */
static void efuse_changes_linked(struct efuse_changes *ch, u64 nodeid)
{
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_WHOLE);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_RIGHTS);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_PAGES);
}

/* Any of its content. */
static void efuse_changes_content(struct efuse_changes *ch, u64 nodeid)
{
	ch->content = nodeid;
	efuse_changes_data(ch, nodeid);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_WHOLE);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_END);
}

/* What a WRITE changes of it. */
static void efuse_changes_written(struct efuse_changes *ch, const struct fuse_args *args)
{
	u64 offset = efuse_arg_offset(args), size = efuse_arg_size(args);
	u64 first = offset / EFUSE_BLOCK_SIZE;
	u64 nr = size ? (offset + size - 1) / EFUSE_BLOCK_SIZE - first + 1 : 0;

	ch->content = args->nodeid;
	efuse_changes_data(ch, args->nodeid);
	if (args->efuse.extends)
		efuse_changes_inode(ch, args->nodeid, EFUSE_KIND_END);
	if (nr > EFUSE_MAX_BLOCKS) {
		efuse_changes_content(ch, args->nodeid);
		return;
	}
	ch->nodeid = args->nodeid;
	ch->block = first;
	ch->nr_blocks = nr;
}

/**
 * efuse_changes_of - the buckets that a request changes
 * @ch: filled
 * @args: the request; gives the same at its issue and at its end
 */
void efuse_changes_of(struct efuse_changes *ch, const struct fuse_args *args)
{
	const struct fuse_copy_file_range_in *copy;
	u64 nodeid = args->nodeid;
	int i;

	ch->nr = 0;
	ch->nr_blocks = 0;
	ch->content = 0;
	switch (args->opcode) {
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_READLINK:
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATIME);
		return;

	case FUSE_FORGET:
		/* Sent as a request: a READDIRPLUS entry that found no use. */
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_LIFE);
		return;

	case FUSE_SETATTR:
		if (efuse_arg_flags(args) & FATTR_SIZE)
			efuse_changes_content(ch, nodeid);
		else
			efuse_changes_data(ch, nodeid);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATIME);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
		if (efuse_arg_flags(args) & (FATTR_MODE | FATTR_UID | FATTR_GID))
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_RIGHTS);
		return;

	case FUSE_WRITE:
		efuse_changes_written(ch, args);
		return;

	case FUSE_FALLOCATE:
		efuse_changes_content(ch, nodeid);
		return;

	case FUSE_COPY_FILE_RANGE:
	case EFUSE_COPY_FILE_RANGE_64:
		copy = efuse_req_in(args, sizeof(*copy));
		if (copy)
			efuse_changes_content(ch, copy->nodeid_out);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATIME);
		return;

	case FUSE_IOCTL:
		/* It may make the file immutable. */
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_RIGHTS);
		fallthrough;
	case FUSE_SETUPMAPPING:
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_PAGES);
		efuse_changes_content(ch, nodeid);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATIME);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
		return;

	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
		/* It may be an access control list. */
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_RIGHTS);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
		return;

	case FUSE_OPEN:
	case FUSE_OPENDIR:
		if (efuse_arg_flags(args) & O_TRUNC)
			efuse_changes_content(ch, nodeid);
		if (args->efuse.revalidate) {
			ch->content = nodeid;
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_WHOLE);
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
		}
		return;

	case FUSE_FLUSH:
	case FUSE_RELEASE:
		/* A daemon may write behind until then; the last RELEASE frees what has no name. */
		if (args->efuse.written)
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
		efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
		return;

	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
		efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
		return;

	case FUSE_SYNCFS:
		efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
		return;

	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
		efuse_changes_entry(ch, nodeid, args, 0);
		break;

	case FUSE_TMPFILE:
		break;

	case FUSE_LINK:
		efuse_changes_entry(ch, nodeid, args, 0);
		efuse_changes_linked(ch, efuse_arg_newdir(args));
		break;

	case FUSE_UNLINK:
	case FUSE_RMDIR:
		efuse_changes_entry(ch, nodeid, args, 0);
		break;

	case FUSE_RENAME:
	case FUSE_RENAME2:
		efuse_changes_entry(ch, nodeid, args, 0);
		efuse_changes_entry(ch, efuse_arg_newdir(args), args, 1);
		break;

	default:
		return;
	}

	/* The inodes under the names, by their link count and ctime. */
	for (i = 0; i < ARRAY_SIZE(args->efuse.child); i++)
		if (args->efuse.child[i])
			efuse_changes_inode(ch, args->efuse.child[i], EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
}

/*
 * May a WRITE move the end of its file? FUSE knows the size where nobody else writes,
 * but not of what it has not yet sent.
 */
static bool efuse_write_extends(struct efuse_conn *ec, struct fuse_mount *fm,
				const struct fuse_args *args)
{
	return fm->fc->writeback_cache || READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE ||
	       efuse_arg_offset(args) + efuse_arg_size(args) > efuse_inode_size(fm, args->nodeid);
}

/**
 * efuse_changes_issue - the buckets that a request changes which is about to be issued
 * @ch: filled
 * @ec: connection
 * @fm: mount
 * @args: the request; remembers what efuse_changes_of() has to know at its end
 */
void efuse_changes_issue(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
			 struct fuse_args *args)
{
	args->efuse.revalidate = (args->opcode == FUSE_OPEN || args->opcode == FUSE_OPENDIR) &&
				 READ_ONCE(ec->consistency) == EFUSE_CTO;
	args->efuse.extends = args->opcode == FUSE_WRITE && efuse_write_extends(ec, fm, args);
	efuse_changes_of(ch, args);
}

/* Does the reply say that the daemon knows no such request? */
bool efuse_changes_cancelled(const struct fuse_args *args, int error)
{
	const struct fuse_ioctl_out *out;

	if (args->opcode == FUSE_IOCTL) {
		/* A daemon may also succeed in telling what its ioctl(2) returned. */
		out = args->out_args[0].value;
		if (!error && args->out_args[0].size == sizeof(*out))
			error = out->result;
		if (error == -ENOTTY)
			return true;
	}
	return error == EFUSE_NOT_IMPLEMENTED;
}

/* What follows fills in what the arguments do not say. */

void efuse_file_init(struct fuse_mount *fm, struct fuse_file *ff)
{
	struct efuse_conn *ec = efuse_conn_get(fm->fc);

	ff->efuse_epoch = ec ? efuse_epoch_now(ec) : 0;
}

static bool efuse_file_written(struct fuse_file *ff)
{
	struct efuse_conn *ec = efuse_conn_get(ff->fm->fc);

	return ec && !efuse_epoch_quiet(ec, efuse_bucket_inode(ff->nodeid, EFUSE_KIND_DATA),
					ff->efuse_epoch);
}

void efuse_flush_args(struct file *file, struct fuse_args *args)
{
	args->efuse.written = efuse_file_written(file->private_data);
	/* Locks that the daemon keeps are not known here. */
	args->efuse.locked = !get_fuse_conn(file_inode(file))->no_lock ||
			     vfs_inode_has_locks(file_inode(file));
}

void efuse_release_args(struct fuse_file *ff, struct fuse_args *args)
{
	args->efuse.local = ff->open_flags & EFUSE_FOPEN_LOCAL;
	args->efuse.written = efuse_file_written(ff);
}

/*
 * A lock that belongs to the open file description ends with that: the daemon hears of it by the
 * RELEASE alone, even of a file that it was not asked to open.
 */
void efuse_file_locks(struct file *file, const struct file_lock *fl)
{
	struct fuse_file *ff = file->private_data;

	if (fl->c.flc_flags & FL_OFDLCK)
		ff->open_flags &= ~EFUSE_FOPEN_LOCAL;
}

void efuse_io_args(struct fuse_file *ff, struct fuse_args *args)
{
	args->efuse.uncached = ff->open_flags & FOPEN_DIRECT_IO;
}

void efuse_child_args(struct fuse_args *args, struct dentry *first, struct dentry *second)
{
	if (first && d_really_is_positive(first))
		args->efuse.child[0] = get_node_id(d_inode(first));
	if (second && d_really_is_positive(second))
		args->efuse.child[1] = get_node_id(d_inode(second));
}

/* Written without a request: FUSE passthrough. */
void efuse_inode_written(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_changes ch = {};

	if (!ec)
		return;
	efuse_changes_content(&ch, get_node_id(inode));
	efuse_changes_inode(&ch, get_node_id(inode), EFUSE_KIND_PAGES);
	efuse_epoch_begin(ec, &ch);
	efuse_epoch_end(ec, &ch, 0);
}

static void efuse_changes_mapped(struct efuse_changes *ch, u64 nodeid)
{
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_WHOLE);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_PAGES);
}

/**
 * efuse_passthrough_mapped - stores will change a file without a request
 * @inode: the file
 * @vma: the map of its backing file
 *
 * Nobody says when they end. But as long as there is such a map, it keeps the file's
 * path, and by that the inode.
 */
void efuse_passthrough_mapped(struct inode *inode, const struct vm_area_struct *vma)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	struct efuse_changes ch = {};
	bool mapped;

	if (!ec || (vma->vm_flags & (VM_SHARED | VM_MAYWRITE)) != (VM_SHARED | VM_MAYWRITE))
		return;
	spin_lock(&fi->lock);
	mapped = fi->efuse_mapped;
	fi->efuse_mapped = true;
	spin_unlock(&fi->lock);
	if (mapped)
		return;
	efuse_changes_mapped(&ch, get_node_id(inode));
	efuse_epoch_begin(ec, &ch);
}

/* The inode goes, and so have all maps of it and all its pages. */
void efuse_inode_evicted(struct inode *inode)
{
	struct efuse_changes ch = {};

	efuse_pages_evicted(inode);
	if (!get_fuse_inode(inode)->efuse_mapped)
		return;
	efuse_changes_mapped(&ch, get_node_id(inode));
	efuse_epoch_end(efuse_conn_get(get_fuse_conn(inode)), &ch, 0);
}

/**
 * efuse_force_sync - the caller wants the daemon's own word (AT_STATX_FORCE_SYNC)
 * @inode: whose attributes it asks for
 *
 * What was learned before is void. In exclusive mode there is no better word.
 *
 * Return: true, for FUSE to ask.
 */
bool efuse_force_sync(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	if (ec && READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE)
		efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
	return true;
}
