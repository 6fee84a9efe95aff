// SPDX-License-Identifier: GPL-2.0
/*
 * read(2) and write(2) of a file that the daemon mapped to backing files. They are carried out
 * between the caller's buffer and a path, before FUSE makes requests of its pages: FUSE's pages
 * would only be a second copy of the backing file's page cache.
 *
 * FUSE does the rest in its own way where its page cache has newer bytes, because pages are dirty,
 * and where a path takes only a part.
 *
 * The daemon may have to answer a fault in the caller's buffer, and may itself wait in an ioctl for
 * I/O on backing files to end. So page faults are disabled during I/O on a backing file. A page
 * that a try has missed is faulted in after it.
 */
#include "efuse_i.h"

#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

typedef ssize_t (*efuse_iter_t)(struct kiocb *iocb, struct iov_iter *iter);

/*
 * A read(2) or write(2). @ended is set if the file ends where the moved bytes end. @asked is set if
 * the daemon was asked for the size.
 */
struct efuse_file_op {
	struct efuse_conn *ec;
	struct kiocb *iocb;
	struct iov_iter *iter;
	u32 opcode;
	bool ended;
	bool asked;
};

/* One try; see efuse_file_try() for the result. */
typedef ssize_t (*efuse_try_t)(struct efuse_file_op *op);

/* The connection, if a path may take it. */
static struct efuse_conn *efuse_file_conn(const struct kiocb *iocb, const struct iov_iter *iter,
					  u32 opcode)
{
	const struct fuse_file *ff = iocb->ki_filp->private_data;
	struct efuse_conn *ec = efuse_conn_get(ff->fm->fc);
	u8 forced;

	if (!ec || !iov_iter_count(iter) || iocb->ki_flags & (IOCB_NOWAIT | IOCB_NOIO) ||
	    !efuse_connected(ff->fm->fc) || !xa_load(&ec->backed, ff->nodeid))
		return NULL;
	forced = READ_ONCE(ec->forced_path);
	if (forced == EFUSE_PATH_DAEMON || (opcode == FUSE_WRITE && forced == EFUSE_PATH_CACHE))
		return NULL;
	return ec;
}

/**
 * efuse_write_flags - return the file's flags as a WRITE carries them
 * @iocb: the write
 * @flags: flags of the open file (O_*)
 *
 * O_APPEND is taken from the write, not from the file: RWF_APPEND and RWF_NOAPPEND override the
 * file's flag, which may also change at any time.
 */
unsigned int efuse_write_flags(const struct kiocb *iocb, unsigned int flags)
{
	flags &= ~O_APPEND;
	return iocb->ki_flags & IOCB_APPEND ? flags | O_APPEND : flags;
}

static void efuse_file_args(struct efuse_io *io, const struct efuse_file_op *op)
{
	const struct kiocb *iocb = op->iocb;
	struct fuse_file *ff = iocb->ki_filp->private_data;
	struct fuse_args *args = &io->ap.args;

	args->opcode = op->opcode;
	args->nodeid = ff->nodeid;
	args->user_pages = iocb->ki_flags & IOCB_DIRECT;
	args->efuse.iter = op->iter;
	args->efuse.asked = op->asked;
	efuse_io_complete(io, iocb->ki_pos, iov_iter_count(op->iter));
	if (op->opcode == FUSE_READ) {
		efuse_read_args(iocb->ki_filp, args);
		io->read.fh = ff->fh;
		io->read.flags = iocb->ki_filp->f_flags;
		return;
	}
	efuse_io_args(ff, args);
	io->write.fh = ff->fh;
	io->write.flags = efuse_write_flags(iocb, iocb->ki_filp->f_flags & ~O_SYNC);
	if (iocb->ki_flags & IOCB_DSYNC)
		io->write.flags |= O_DSYNC;
	if (iocb->ki_flags & IOCB_SYNC)
		io->write.flags |= O_SYNC;
	io->write.write_flags = FUSE_WRITE_KILL_SUIDGID;
}

/*
 * An append went to another position than the end that FUSE knew. So the pages of FUSE and the
 * blocks of the data cache may be of another content.
 */
static void efuse_file_appended(struct efuse_conn *ec, struct inode *inode, loff_t end, size_t len)
{
	efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES));
	efuse_pages_drop(inode, end - len, len);
	efuse_inode_written(inode);
	fuse_invalidate_attr(inode);
}

/*
 * Carry out a read or a write of all of the operation's @iter by one request. Returns the number of
 * bytes moved, after advancing its @iocb and @iter by it; -EFAULT if a page of the caller's buffer
 * is missing; -EAGAIN if no path took the request; or another negative errno for the caller.
 */
static ssize_t efuse_file_try(struct efuse_file_op *op)
{
	struct kiocb *iocb = op->iocb;
	struct iov_iter *iter = op->iter;
	struct fuse_file *ff = iocb->ki_filp->private_data;
	struct efuse_req req __uninitialized;
	struct efuse_io io = {};
	bool nofault = iter->nofault, answered;
	ssize_t ret;

	efuse_file_args(&io, op);
	pagefault_disable();
	iter->nofault = true;
	answered = efuse_answer_now(&req, op->ec, ff->fm, &io.ap.args);
	/* The flag is set for a backing file on another eFuse mount, too. */
	iter->nofault = nofault;
	pagefault_enable();
	if (!answered)
		return req.stop == EFUSE_STOP_FAULT ? -EFAULT : -EAGAIN;
	ret = req.ret;
	if (!ret && op->opcode == FUSE_WRITE)
		ret = io.written.size;
	op->ended = op->opcode == FUSE_READ && req.stop == EFUSE_STOP_EOF;
	if (ret <= 0)
		return ret;
	/* FUSE's pages may be older than the bytes just read, also while a WRITE is under way. */
	if (op->opcode == FUSE_READ && (req.racy || inode_is_locked(file_inode(iocb->ki_filp))))
		efuse_pages_void(op->ec, file_inode(iocb->ki_filp), iocb->ki_pos, ret);
	iov_iter_advance(iter, ret);
	iocb->ki_pos += ret;
	if (req.appended && req.appended != iocb->ki_pos) {
		iocb->ki_pos = req.appended;
		efuse_file_appended(op->ec, file_inode(iocb->ki_filp), iocb->ki_pos, ret);
	}
	return ret;
}

/*
 * Is the caller's buffer present? The first two pages decide: in a buffer that was just allocated,
 * the first page often holds the allocator's notes, and is present, too.
 */
static bool efuse_file_resident(const struct iov_iter *iter)
{
	const u8 __user *first;
	bool resident;
	size_t len;
	u8 __maybe_unused byte;

	if (!user_backed_iter(iter))
		return true;
	first = iter_iov_addr(iter);
	len = min(iter_iov_len(iter), iov_iter_count(iter));
	pagefault_disable();
	resident = !len || !(get_user(byte, first) ||
			     get_user(byte, first + min(len - 1, PAGE_SIZE)));
	pagefault_enable();
	return resident;
}

/*
 * How many bytes of a buffer are faulted in, and read by one request, at most: the rest of the file
 * as FUSE knows its size, and a page more, since a device fills whole blocks.
 */
static size_t efuse_file_window(const struct efuse_file_op *op)
{
	loff_t size = i_size_read(file_inode(op->iocb->ki_filp));

	if (op->opcode == FUSE_WRITE)
		return MAX_RW_COUNT;
	size = clamp_t(loff_t, size - op->iocb->ki_pos, 0, MAX_RW_COUNT);
	return min_t(size_t, round_up(size, PAGE_SIZE) + PAGE_SIZE, MAX_RW_COUNT);
}

/* Returns whether at least one byte of the caller's buffer is present now. */
static bool efuse_file_fault_in(struct iov_iter *iter, u32 opcode, size_t window)
{
	size_t len = min(iov_iter_count(iter), window);

	if (!len || !user_backed_iter(iter))
		return false;
	return (opcode == FUSE_READ ? fault_in_iov_iter_writeable(iter, len) :
				      fault_in_iov_iter_readable(iter, len)) < len;
}

/*
 * Try until nothing is left, the file ends, or another try does not help. Returns the number of
 * bytes moved, or a negative errno if none was. @left is set if FUSE has to do the rest.
 */
static ssize_t efuse_file_move(struct efuse_file_op *op, efuse_try_t try, bool *left)
{
	size_t window = efuse_file_window(op);
	struct iov_iter *iter = op->iter;
	bool again = true;
	size_t count, held;
	ssize_t done = 0, ret;

	*left = false;
	if (!efuse_file_resident(iter))
		again = efuse_file_fault_in(iter, op->opcode, window);
	for (;;) {
		count = iov_iter_count(iter);
		iov_iter_truncate(iter, window);
		held = count - iov_iter_count(iter);
		ret = try(op);
		iov_iter_reexpand(iter, iov_iter_count(iter) + held);
		if (ret == -EAGAIN)
			break;
		if (ret < 0 && ret != -EFAULT)
			return done ?: ret;
		if (ret >= 0) {
			done += ret;
			if (!ret || !iov_iter_count(iter) || op->ended)
				return done;
			again = true;
		}
		if (fatal_signal_pending(current))
			return done ?: -EINTR;
		if (!again || !efuse_file_fault_in(iter, op->opcode, window))
			break;
		/* The file is longer than FUSE knows. */
		window = min_t(size_t, 2 * window, MAX_RW_COUNT);
		again = false;
	}
	*left = true;
	return done;
}

/*
 * Let FUSE do the rest after @done bytes. Returns the bytes of both, or a negative errno. The
 * caller of an asynchronous request completes it, since it gets the number of these bytes. So FUSE
 * must not complete it, too: the rest is synchronous. With @whole an error of the rest is returned
 * in place of @done.
 */
static ssize_t efuse_file_rest(struct kiocb *iocb, struct iov_iter *iter, efuse_iter_t ordinary,
			       ssize_t done, bool whole)
{
	struct kiocb sync = *iocb;
	ssize_t rest;

	if (!done)
		return ordinary(iocb, iter);
	sync.ki_complete = NULL;
	rest = ordinary(&sync, iter);
	iocb->ki_pos = sync.ki_pos;
	if (rest < 0)
		return whole ? rest : done;
	return done + rest;
}

/*
 * Does a write(2) go through FUSE's pages? Its bytes show there before they reach the backing file.
 * A write that goes past the pages has set efuse_pages.past.
 */
static bool efuse_file_locked(struct inode *inode)
{
	return inode_is_locked(inode) && !READ_ONCE(get_fuse_inode(inode)->efuse_pages.past.end);
}

/**
 * efuse_file_read - read(2) of a regular file
 * @iocb: the file, the position and the flags of the read
 * @to: the caller's buffer
 * @ordinary: FUSE's own ->read_iter()
 *
 * Context: process context, may sleep.
 * Return: the number of bytes read, 0 at the end of the file, or a negative errno.
 */
ssize_t efuse_file_read(struct kiocb *iocb, struct iov_iter *to, efuse_iter_t ordinary)
{
	struct efuse_conn *ec = efuse_file_conn(iocb, to, FUSE_READ);
	struct efuse_file_op op = { .ec = ec, .iocb = iocb, .iter = to, .opcode = FUSE_READ };
	struct inode *inode = file_inode(iocb->ki_filp);
	ssize_t done;
	bool left;

	/* A store through a map shows in FUSE's page before the page is known to be dirty. */
	if (!ec || mapping_writably_mapped(inode->i_mapping) || !efuse_file_clean(inode) ||
	    efuse_file_locked(inode))
		return ordinary(iocb, to);
	/* If the daemon cannot be asked, it decides whether it can be read. */
	if (efuse_extents_size(ec, iocb->ki_filp, iocb->ki_pos + iov_iter_count(to), &op.asked))
		return ordinary(iocb, to);
	done = efuse_file_move(&op, efuse_file_try, &left);
	/* A caller that has seen the new content must not get the old one from FUSE's pages. */
	if (inode->i_mapping->nrpages)
		efuse_refresh_pages(inode);
	fuse_invalidate_atime(inode);
	return left ? efuse_file_rest(iocb, to, ordinary, done, false) : done;
}

/* Drop the pages of a WRITE. Returns whether the WRITE may go past the page cache. */
static bool efuse_file_emptied(struct inode *inode, loff_t pos, size_t len)
{
	if (!efuse_file_clean(inode) || mapping_writably_mapped(inode->i_mapping) ||
	    !efuse_pages_drop(inode, pos, len))
		return false;
	/* Before the drop a page could be stored to, and be in a WRITE that is under way. */
	return efuse_file_clean(inode);
}

static ssize_t efuse_file_try_write(struct efuse_file_op *op)
{
	struct kiocb *iocb = op->iocb;
	struct inode *inode = file_inode(iocb->ki_filp);
	/* Bytes that were stored behind the end of the file must not come into the file. */
	loff_t pos = min(iocb->ki_pos, i_size_read(inode));
	size_t len = iocb->ki_pos - pos + iov_iter_count(op->iter);
	ssize_t ret = -EAGAIN;

	efuse_past_begin(inode, pos, len);
	if (efuse_file_emptied(inode, pos, len)) {
		ret = efuse_file_try(op);
		if (ret > 0)
			fuse_write_update_attr(inode, iocb->ki_pos, ret);
		/* A WRITE that failed may have changed some bytes, too. */
		efuse_pages_void(op->ec, inode, pos, len);
	}
	efuse_past_end(inode);
	return ret;
}

/* Remove privileges and update times, before the first byte. Returns 0 or a negative errno. */
static int efuse_file_modified(struct kiocb *iocb)
{
	struct file *file = iocb->ki_filp;

	return file_remove_privs(file) ?: file_update_time(file);
}

/**
 * efuse_write_checks - the checks of a write(2)
 * @iocb: the file, its inode locked, the position and the flags of the write
 * @from: the caller's buffer
 *
 * An append goes to the end that the file has under the inode's lock. If FUSE has taken an older
 * size meanwhile, from a task without that lock, the checks are made once more.
 *
 * Return: as generic_write_checks(), whose place it takes.
 */
ssize_t efuse_write_checks(struct kiocb *iocb, struct iov_iter *from)
{
	struct inode *inode = file_inode(iocb->ki_filp);
	int tries = 2;
	ssize_t ret;

	do {
		ret = iocb->ki_flags & IOCB_APPEND ? efuse_append_update(iocb->ki_filp) : 0;
		ret = ret ?: generic_write_checks(iocb, from);
	} while (ret > 0 && iocb->ki_flags & IOCB_APPEND && --tries &&
		 !efuse_append_stays(inode, iocb->ki_pos));
	return ret;
}

/**
 * efuse_write_checks_again - where does an append go, after the daemon was asked about privileges?
 * @iocb: the file, its inode locked, the position and the flags of the write
 * @from: the caller's buffer
 *
 * Return: 0 or a negative errno
 */
int efuse_write_checks_again(struct kiocb *iocb, struct iov_iter *from)
{
	if (!(iocb->ki_flags & IOCB_APPEND) ||
	    efuse_append_stays(file_inode(iocb->ki_filp), iocb->ki_pos))
		return 0;
	return min_t(ssize_t, efuse_write_checks(iocb, from), 0);
}

/*
 * Write under the inode's lock. FUSE takes that lock itself for what is @left. @count is set to the
 * number of bytes that are to be written.
 */
static ssize_t efuse_file_write_locked(struct efuse_file_op *op, bool *left, size_t *count)
{
	struct kiocb *iocb = op->iocb;
	ssize_t ret;

	*left = false;
	*count = 0;
	ret = efuse_write_checks(iocb, op->iter);
	if (ret <= 0)
		return ret;
	*count = ret;
	ret = efuse_file_modified(iocb) ?: efuse_write_checks_again(iocb, op->iter);
	if (ret)
		return ret;
	*left = efuse_extents_size(op->ec, op->iocb->ki_filp, 0, &op->asked);
	if (*left)
		return 0;
	ret = efuse_file_move(op, efuse_file_try_write, left);
	/* Another append must not come between two parts of one append, so it ends short. */
	if (iocb->ki_flags & IOCB_APPEND && ret > 0)
		*left = false;
	return ret;
}

/*
 * Does the caller take any number of bytes for all of them? The loop device does, which writes from
 * pages of its own, and FUSE fails short asynchronous writes, too. But a short append is reported,
 * because it must not be done again, and so are the bytes of a program's splice(2).
 */
static bool efuse_write_whole(struct kiocb *iocb, const struct iov_iter *from)
{
	return !(iocb->ki_flags & IOCB_APPEND) &&
	       (!is_sync_kiocb(iocb) ||
		(!user_backed_iter(from) && current->flags & PF_KTHREAD));
}

/**
 * efuse_file_write - write(2) of a regular file
 * @iocb: the file, the position and the flags of the write
 * @from: the caller's buffer
 * @ordinary: FUSE's own ->write_iter()
 *
 * Context: process context, may sleep.
 * Return: the number of bytes written, or a negative errno.
 */
ssize_t efuse_file_write(struct kiocb *iocb, struct iov_iter *from, efuse_iter_t ordinary)
{
	struct efuse_conn *ec = efuse_file_conn(iocb, from, FUSE_WRITE);
	struct efuse_file_op op = { .ec = ec, .iocb = iocb, .iter = from, .opcode = FUSE_WRITE };
	struct inode *inode = file_inode(iocb->ki_filp);
	bool whole = efuse_write_whole(iocb, from), left;
	ssize_t done;
	size_t count;

	if (!ec)
		return ordinary(iocb, from);
	/* In exclusive mode the end of the file is known, since no other mount makes it longer. */
	if (inode->i_mode & (S_ISUID | S_ISGID) || !efuse_file_clean(inode) ||
	    (iocb->ki_flags & IOCB_APPEND && READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE))
		return ordinary(iocb, from);

	/* The caller may have the lock of a pipe that others wait for: efuse_backing_begin(). */
	if (inode_lock_killable(inode))
		return -EINTR;
	done = efuse_file_write_locked(&op, &left, &count);
	inode_unlock(inode);
	if (done > 0)
		done = generic_write_sync(iocb, done);
	if (left && done >= 0)
		done = efuse_file_rest(iocb, from, ordinary, done, whole);
	return whole && done > 0 && done < count ? -EIO : done;
}
