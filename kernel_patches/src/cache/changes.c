// SPDX-License-Identifier: GPL-2.0
/* The buckets that each request changes: the table in docs/coherence.md. */
#include "cache_i.h"

#include <linux/filelock.h>

/* Add a bucket, unless it is there already. */
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

/* The request's name number @index in the directory @parent. */
static void efuse_changes_entry(struct efuse_changes *ch, u64 parent,
				const struct fuse_args *args, u32 index)
{
	u32 len;
	const char *name = efuse_req_name_at(args, index, &len);

	if (name)
		efuse_changes_add(ch, efuse_bucket_entry(parent, name, len));
	/* The directory's times and link count. */
	efuse_changes_inode(ch, parent, EFUSE_KIND_ATTR);
}

/*
 * Some of a file's content changes, and with it size, times, free space, and what a write strips:
 * set-uid and set-gid bits, capabilities.
 */
static void efuse_changes_data(struct efuse_changes *ch, u64 nodeid)
{
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
}

/*
 * A file gets another name. Values that were learned before rely on seeing all changes of the file
 * under its nodeid, but the daemon may have another nodeid for the new name.
 */
static void efuse_changes_linked(struct efuse_changes *ch, u64 nodeid)
{
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_DATA);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_CONTENT);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_RIGHTS);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_PAGES);
}

/* Any part of a file's content, and its end, may change. */
static void efuse_changes_content(struct efuse_changes *ch, u64 nodeid)
{
	ch->content = nodeid;
	efuse_changes_data(ch, nodeid);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_CONTENT);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_EOF);
}

/* A WRITE changes the blocks that it touches, and perhaps the end of the file. */
static void efuse_changes_written(struct efuse_changes *ch, const struct fuse_args *args)
{
	u64 offset = efuse_arg_offset(args), size = efuse_arg_size(args);
	u64 first = offset / EFUSE_BLOCK_SIZE;
	u64 nr = size ? (offset + size - 1) / EFUSE_BLOCK_SIZE - first + 1 : 0;

	ch->content = args->nodeid;
	efuse_changes_data(ch, args->nodeid);
	if (args->efuse.extends)
		efuse_changes_inode(ch, args->nodeid, EFUSE_KIND_EOF);
	if (nr > EFUSE_MAX_BLOCKS) {
		efuse_changes_content(ch, args->nodeid);
		return;
	}
	ch->nodeid = args->nodeid;
	ch->block = first;
	ch->nr_blocks = nr;
}

/**
 * efuse_changes_of - compute the buckets that a request changes
 * @ch: filled in, except what efuse_epoch_end() sets
 * @args: the request
 *
 * The result is the same when the request is issued and when it is answered.
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
		/* A FORGET that is sent as a request: of a READDIRPLUS entry that was not used. */
		efuse_changes_inode(ch, nodeid, EFUSE_KIND_IDENTITY);
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
		/* An ioctl may make the file immutable. */
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
		/* The xattr may be an access control list. */
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
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_CONTENT);
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_ATTR);
			efuse_changes_inode(ch, nodeid, EFUSE_KIND_XATTR);
		}
		return;

	case FUSE_FLUSH:
	case FUSE_RELEASE:
		/*
		 * The daemon may write back data only now. The last RELEASE frees a file without a
		 * name.
		 */
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

	/* The link count and ctime of the inodes under the names. */
	for (i = 0; i < ARRAY_SIZE(args->efuse.child); i++)
		if (args->efuse.child[i])
			efuse_changes_inode(ch, args->efuse.child[i], EFUSE_KIND_ATTR);
	efuse_changes_inode(ch, 0, EFUSE_KIND_VOLUME);
}

/**
 * efuse_changes_begin - a request is being issued: its changes begin
 * @ch: filled in as by efuse_changes_of()
 * @ec: connection
 * @fm: mount
 * @args: the request; @epoch and @size_epoch of its struct efuse_args are set, and @revalidate and
 *	  @extends, on which efuse_changes_of() depends when the request ends
 *
 * To be called before the daemon can see the request, or backing files are changed.
 */
void efuse_changes_begin(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
			 struct fuse_args *args)
{
	/* Before all else: a change that comes between counts as one that crosses the request. */
	args->efuse.epoch = efuse_epoch_now(ec);
	args->efuse.attr_version = fuse_get_attr_version(ec->fc);
	args->efuse.revalidate = (args->opcode == FUSE_OPEN || args->opcode == FUSE_OPENDIR) &&
				 READ_ONCE(ec->consistency) == EFUSE_CTO;
	efuse_size_issue(ec, fm, args);
	efuse_changes_of(ch, args);
	efuse_epoch_begin(ec, ch);
	efuse_size_begun(ec, args);
}

/**
 * efuse_changes_end - the changes of a request have ended
 * @ch: the changes; what efuse_epoch_end() sets is set
 * @ec: connection
 * @fm: mount
 * @args: the request
 * @succeeded: whether the request succeeded
 *
 * To be called before the caller can see the reply.
 */
void efuse_changes_end(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
		       const struct fuse_args *args, bool succeeded)
{
	efuse_size_crossed(ec, args);
	efuse_epoch_end(ec, ch, args->efuse.epoch);
	if (succeeded)
		efuse_size_written(ec, fm, args, ch);
}

/*
 * Does the reply mean that the daemon does not implement the request? Then nothing has changed.
 * isatty(3) asks each file by TCGETS. It only reads, and a daemon may refuse it by any error.
 */
bool efuse_changes_cancelled(const struct fuse_args *args, int error)
{
	if (args->opcode == FUSE_IOCTL) {
		error = efuse_ioctl_error(args, error);
		if (error == -ENOTTY || (error < 0 && efuse_terminal_asked(args)))
			return true;
	}
	return error == EFUSE_NOT_IMPLEMENTED;
}

/*
 * Call-outs of fs/fuse that note details which a request's arguments do not contain, and changes
 * that happen without a request.
 */

/* A file is being opened: note the epoch, to know later whether the file was written since. */
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
	const struct fuse_file *ff = file->private_data;

	args->efuse.local = ff->open_flags & EFUSE_FOPEN_LOCAL;
	args->efuse.written = efuse_file_written(file->private_data);
	/* If the daemon keeps the locks itself, the kernel does not know them. */
	args->efuse.locked = !get_fuse_conn(file_inode(file))->no_lock ||
			     vfs_inode_has_locks(file_inode(file));
}

void efuse_release_args(struct fuse_file *ff, struct fuse_args *args)
{
	args->efuse.local = ff->open_flags & EFUSE_FOPEN_LOCAL;
	args->efuse.written = efuse_file_written(ff);
}

/*
 * A lock is taken through @file. An OFD lock ends with the open file description, and only the
 * RELEASE tells the daemon so. So the RELEASE must be sent, even if the kernel has opened the file
 * itself.
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

/* A file was written through FUSE passthrough, without a request. */
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
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_CONTENT);
	efuse_changes_inode(ch, nodeid, EFUSE_KIND_PAGES);
}

/**
 * efuse_passthrough_mapped - a file is mapped through FUSE passthrough
 * @inode: inode of the file
 * @vma: the mapping of its backing file
 *
 * Stores through a shared, writable mapping change the file without a request. FUSE does not learn
 * when the last mapping ends. But a mapping keeps the file's path in memory, and so the inode. The
 * change lasts until efuse_inode_evicted().
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

/* An inode is being evicted: it has no mappings and no pages any more. */
void efuse_inode_evicted(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_changes ch = {};

	efuse_pages_evicted(inode);
	efuse_names_evicted(inode);
	if (get_fuse_inode(inode)->forget)
		get_fuse_inode(inode)->forget->efuse_kind = EFUSE_FORGET_ALL;
	if (!get_fuse_inode(inode)->efuse_mapped)
		return;
	efuse_changes_mapped(&ch, get_node_id(inode));
	efuse_epoch_end(ec, &ch, 0);
}

/**
 * efuse_force_sync - statx(2) asks for the daemon's attributes (AT_STATX_FORCE_SYNC)
 * @inode: the inode
 *
 * Makes attributes that were learned before void, except in exclusive mode, where they are as good
 * as the daemon's unless the file may have several nodeids.
 *
 * Return: true: FUSE has to send a GETATTR.
 */
bool efuse_force_sync(struct inode *inode)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	if (ec && !efuse_changes_known_inode(ec, inode))
		efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_ATTR));
	return true;
}
