// SPDX-License-Identifier: GPL-2.0
/*
 * The direct path: a READ or WRITE between the request's own pages and the backing
 * files that its range is mapped to, with the credentials of who mapped it.
 *
 * Backing files are truth, not a copy: what is read is what the daemon would read
 * there now. Whatever does not go as it should goes to the daemon, whole.
 */
#include "efuse_i.h"

#include <linux/cred.h>
#include <linux/fs.h>

/*
 * As override_creds(), without touching the reference count that all CPUs share: the
 * extent holds one, and io_srcu the extent.
 */
const struct cred *efuse_act_as(const struct cred *cred)
{
	const struct cred *old = current_cred();

	rcu_assign_pointer(current->cred, cred);
	return old;
}

static int efuse_direct_flags(const struct efuse_req *req, const struct efuse_backing *eb)
{
	const struct fuse_args *args = req->args;
	u32 flags = efuse_arg_flags(args);
	int iocb = 0;

	if (req->at_device)
		return IOCB_DIRECT;

	/* The page cache's own pages are read as its readers may, in a page fault. */
	if (eb->file->f_flags & O_DIRECT && args->user_pages)
		iocb |= IOCB_DIRECT;
	if (args->opcode == FUSE_READ)
		return iocb;
	if (flags & O_DSYNC)
		iocb |= IOCB_DSYNC;
	if (flags & __O_SYNC)
		iocb |= IOCB_SYNC;
	if (flags & O_APPEND && eb->flags & EFUSE_EXTENT_TO_EOF)
		iocb |= IOCB_APPEND;
	return iocb;
}

/*
 * The access time of the file is that of the backing file. Where its file system keeps
 * that elsewhere, nobody knows whether it changed.
 */
void efuse_backing_accessed(struct efuse_conn *ec, u64 nodeid, const struct inode *inode,
			    struct timespec64 before)
{
	struct timespec64 now = inode_get_atime(inode);

	if (READ_ONCE(ec->lazy_atime) ||
	    (!(inode->i_flags & S_NOATIME) && timespec64_equal(&before, &now)))
		return;
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_ATIME));
}

static ssize_t efuse_backing_io(struct efuse_req *req, const struct efuse_backing *eb, u64 pos,
				struct iov_iter *iter)
{
	bool write = req->args->opcode == FUSE_WRITE;
	struct inode *inode = file_inode(eb->file);
	struct timespec64 atime = inode_get_atime(inode);
	struct iov_iter again = *iter;
	const struct cred *old;
	struct kiocb kiocb;
	ssize_t ret;

	init_sync_kiocb(&kiocb, eb->file);
	kiocb.ki_flags &= ~(IOCB_DIRECT | IOCB_NOWAIT);
	kiocb.ki_flags |= efuse_direct_flags(req, eb);
	kiocb.ki_pos = pos - eb->offset + eb->backing_offset;

	old = efuse_act_as(eb->cred);
	ret = write ? vfs_iocb_iter_write(eb->file, &kiocb, iter) :
		      vfs_iocb_iter_read(eb->file, &kiocb, iter);
	/* Not aligned as that device wants it. */
	if (ret == -EINVAL && kiocb.ki_flags & IOCB_DIRECT && !req->at_device) {
		*iter = again;
		kiocb.ki_flags &= ~IOCB_DIRECT;
		ret = write ? vfs_iocb_iter_write(eb->file, &kiocb, iter) :
			      vfs_iocb_iter_read(eb->file, &kiocb, iter);
	}
	efuse_act_as(old);
	if (!write)
		efuse_backing_accessed(req->ec, req->args->nodeid, inode, atime);
	return ret;
}

/* May the kernel write there as the daemon would? */
static bool efuse_direct_writable(struct efuse_req *req, const struct efuse_backing *eb, u64 end)
{
	const struct fuse_write_in *in = efuse_req_in(req->args, sizeof(*in));
	umode_t mode = file_inode(eb->file)->i_mode;

	if (!(eb->flags & EFUSE_EXTENT_WRITE))
		req->reason = EFUSE_UNMAPPED;
	/* Those bits fall by the rights of the writer, whom the daemon knows. */
	else if (!in || (in->write_flags & FUSE_WRITE_KILL_SUIDGID &&
			 mode & (S_ISUID | S_ISGID)))
		req->reason = EFUSE_DECLINED;
	/* Only the daemon can make a file longer that is not all in one backing file. */
	else if (!(eb->flags & EFUSE_EXTENT_TO_EOF) &&
		 end > efuse_inode_size(req->fm, req->args->nodeid))
		req->reason = EFUSE_DECLINED;
	else
		return true;
	return false;
}

/* Is all of [pos, pos + len) mapped? A WRITE is not begun otherwise. */
static bool efuse_direct_covers(struct efuse_req *req, u64 pos, u64 len)
{
	const struct efuse_backing *eb;
	u64 room;

	while (len) {
		eb = efuse_extent_find(req, pos, &room);
		if (!eb || !efuse_direct_writable(req, eb, pos + len))
			return false;
		room = min(room, len);
		pos += room;
		len -= room;
	}
	return true;
}

/* A READ is short there, or where a page of the caller's is missing. */
static bool efuse_backing_ended(const struct efuse_backing *eb, u64 pos)
{
	return pos - eb->offset + eb->backing_offset >= i_size_read(file_inode(eb->file));
}

/*
 * Returns the bytes moved, from the start of the request; @whole says whether that is
 * all there is to move (a READ may end at the end of the file).
 */
static size_t efuse_direct_move(struct efuse_req *req, u64 pos, u64 len, bool *whole)
{
	const struct efuse_backing *eb;
	struct efuse_data data;
	struct efuse_span span __uninitialized;
	struct iov_iter iter;
	size_t done = 0;
	ssize_t ret;
	u64 room;

	*whole = false;
	efuse_data_start(&data, req->args,
			 req->args->opcode == FUSE_READ ? ITER_DEST : ITER_SOURCE);
	while (done < len) {
		eb = efuse_extent_find(req, pos + done, &room);
		if (!eb)
			return done;
		/* What is kept of it could not be told from what it is by then. */
		if (eb->flags & EFUSE_EXTENT_SEALED)
			req->args->efuse.unkept = true;
		if (req->at_device && !eb->resident) {
			req->reason = EFUSE_DECLINED;
			return done;
		}
		room = efuse_data_next(&data, &span, &iter, min(room, len - done));
		ret = efuse_backing_io(req, eb, pos + done, &iter);
		if (ret < 0 || !efuse_sealed(eb)) {
			req->reason = ret < 0 ? EFUSE_FAILED : EFUSE_STALE;
			return done;
		}
		done += ret;
		if (ret < room) {
			*whole = req->args->opcode == FUSE_READ &&
				 eb->flags & EFUSE_EXTENT_TO_EOF;
			req->reason = *whole && efuse_backing_ended(eb, pos + done) ?
				      0 : EFUSE_FAILED;
			return done;
		}
	}
	*whole = true;
	return done;
}

/**
 * efuse_direct_read - READ from backing files
 * @req: the READ
 *
 * Context: process context, within io_srcu; may sleep.
 * Return: whether it is answered; @req->ret is what the caller gets.
 */
bool efuse_direct_read(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	bool whole;
	size_t done;

	done = efuse_direct_move(req, efuse_arg_offset(args), args->out_args[0].size, &whole);
	if (!whole)
		return false;
	efuse_data_end(args, done);
	args->out_args[0].size = done;
	req->ret = done;
	return true;
}

/**
 * efuse_direct_write - WRITE into backing files
 * @req: the WRITE
 *
 * What could be written only in part is a short write, as it would be of the daemon; but
 * of write-back, whose pages are clean by then, the daemon gets all of it once more.
 *
 * Context: process context, within io_srcu; may sleep.
 * Return: whether it is answered; @req->ret is what the caller gets.
 */
bool efuse_direct_write(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_write_out *out = args->out_args[0].value;
	u64 pos = efuse_arg_offset(args), len = efuse_arg_size(args);
	bool whole;
	size_t done;

	if (!efuse_direct_covers(req, pos, len))
		return false;
	done = efuse_direct_move(req, pos, len, &whole);
	if (done)
		req->ended = args->nodeid;
	if (!done || (!whole && efuse_is_write_back(args)))
		return false;
	memset(out, 0, sizeof(*out));
	out->size = done;
	req->ret = 0;
	return true;
}
