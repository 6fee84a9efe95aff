// SPDX-License-Identifier: GPL-2.0
/*
 * read(2) and write(2) of a file that the daemon mapped, between the caller's own buffer
 * and the paths, before FUSE makes requests of its pages: in FUSE's page cache there
 * would be a second copy of what the backing file's page cache has.
 *
 * Where FUSE's page cache knows better, because pages are dirty, and where a path does
 * not take it all, FUSE goes on as ever with what is left.
 *
 * A fault in the caller's buffer may be answered by the daemon, which may wait in an ioctl
 * for I/O on backing files to end. So there are no faults meanwhile; pages that a try
 * has missed are faulted in behind it.
 */
#include "efuse_i.h"

#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

typedef ssize_t (*efuse_iter_t)(struct kiocb *iocb, struct iov_iter *iter);

/* As efuse_file_try(). */
typedef ssize_t (*efuse_try_t)(struct efuse_conn *ec, struct kiocb *iocb, struct iov_iter *iter,
			       u32 opcode, bool *ended);

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

/* Is all that was written to the file where READ and WRITE find it? */
bool efuse_file_clean(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;
	struct fuse_inode *fi = get_fuse_inode(inode);

	/* Of a dirty page, first it is dirty, then under write-back, then a WRITE. */
	if (mapping_tagged(mapping, PAGECACHE_TAG_DIRTY))
		return false;
	smp_rmb(); /* Looked for in that order, it is not missed. */
	if (mapping_tagged(mapping, PAGECACHE_TAG_WRITEBACK))
		return false;
	smp_rmb(); /* As above. */
	/* FUSE has copied it; the page is clean, the WRITE is not yet answered. */
	if (efuse_copies_pending(fi))
		return false;
	smp_rmb(); /* Out of the tree for a moment, its WRITE is counted. */
	return !READ_ONCE(fi->writectr);
}

/**
 * efuse_write_flags - the flags that a WRITE says its file has
 * @iocb: the write
 * @flags: of the file
 *
 * Whether it appends is the write's own: RWF_APPEND and RWF_NOAPPEND say so, and a file's flag
 * may change meanwhile.
 */
unsigned int efuse_write_flags(const struct kiocb *iocb, unsigned int flags)
{
	flags &= ~O_APPEND;
	return iocb->ki_flags & IOCB_APPEND ? flags | O_APPEND : flags;
}

static void efuse_file_args(struct efuse_io *io, const struct kiocb *iocb,
			    struct iov_iter *iter, u32 opcode)
{
	const struct fuse_file *ff = iocb->ki_filp->private_data;
	struct fuse_args *args = &io->ap.args;

	args->opcode = opcode;
	args->nodeid = ff->nodeid;
	args->user_pages = iocb->ki_flags & IOCB_DIRECT;
	args->efuse.iter = iter;
	efuse_io_complete(io, iocb->ki_pos, iov_iter_count(iter));
	if (opcode == FUSE_READ) {
		io->read.fh = ff->fh;
		io->read.flags = iocb->ki_filp->f_flags;
		return;
	}
	io->write.fh = ff->fh;
	io->write.flags = efuse_write_flags(iocb, iocb->ki_filp->f_flags & ~O_SYNC);
	if (iocb->ki_flags & IOCB_DSYNC)
		io->write.flags |= O_DSYNC;
	if (iocb->ki_flags & IOCB_SYNC)
		io->write.flags |= O_SYNC;
	io->write.write_flags = FUSE_WRITE_KILL_SUIDGID;
}

/*
 * An append went elsewhere than to where FUSE believed the file to end: what FUSE and the data
 * cache have of the file may be of another content.
 */
static void efuse_file_appended(struct efuse_conn *ec, struct inode *inode, loff_t end, size_t len)
{
	efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES));
	efuse_pages_drop(inode, end - len, len);
	efuse_inode_written(inode);
	fuse_invalidate_attr(inode);
}

/*
 * One request for all of it. @ended is set if the file ends where the bytes moved end. Returns the
 * bytes moved, by which @iocb and @iter are moved on; the error that the caller gets; -EFAULT
 * if a page of the caller's is missing; or -EAGAIN if no path took it.
 */
static ssize_t efuse_file_try(struct efuse_conn *ec, struct kiocb *iocb, struct iov_iter *iter,
			      u32 opcode, bool *ended)
{
	struct fuse_file *ff = iocb->ki_filp->private_data;
	struct efuse_req req __uninitialized;
	struct efuse_io io = {};
	bool nofault = iter->nofault, answered;
	ssize_t ret;

	efuse_file_args(&io, iocb, iter, opcode);
	pagefault_disable();
	iter->nofault = true;
	answered = efuse_answer_now(&req, ec, ff->fm, &io.ap.args);
	/* A backing file may lie on another mount of ours, which is called with this set. */
	iter->nofault = nofault;
	pagefault_enable();
	if (!answered)
		return req.stop == EFUSE_STOP_FAULT ? -EFAULT : -EAGAIN;
	ret = req.ret;
	if (!ret && opcode == FUSE_WRITE)
		ret = io.written.size;
	*ended = opcode == FUSE_READ && req.stop == EFUSE_STOP_EOF;
	if (ret <= 0)
		return ret;
	/* FUSE's pages of what was seen may be older, also where a WRITE is under way. */
	if (opcode == FUSE_READ && (req.racy || inode_is_locked(file_inode(iocb->ki_filp))))
		efuse_pages_void(ec, file_inode(iocb->ki_filp), iocb->ki_pos, ret);
	iov_iter_advance(iter, ret);
	iocb->ki_pos += ret;
	if (req.appended && req.appended != iocb->ki_pos) {
		iocb->ki_pos = req.appended;
		efuse_file_appended(ec, file_inode(iocb->ki_filp), iocb->ki_pos, ret);
	}
	return ret;
}

/*
 * Is the caller's buffer there, by its first pages? One that was just allocated is not,
 * but often for a first page that holds what the allocator notes, too.
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
 * No more of a buffer is made present, and asked for at once, than FUSE believes the file to
 * fill, and a page: a device fills whole blocks, and wants all of its buffer.
 */
static size_t efuse_file_window(const struct kiocb *iocb, u32 opcode)
{
	loff_t size = i_size_read(file_inode(iocb->ki_filp));

	if (opcode == FUSE_WRITE)
		return MAX_RW_COUNT;
	return round_up(max_t(loff_t, size - iocb->ki_pos, 0), PAGE_SIZE) + PAGE_SIZE;
}

/* Whether there is another byte of the caller's to go on with. */
static bool efuse_file_fault_in(struct iov_iter *iter, u32 opcode, size_t window)
{
	size_t len = min(iov_iter_count(iter), window);

	if (!len || !user_backed_iter(iter))
		return false;
	return (opcode == FUSE_READ ? fault_in_iov_iter_writeable(iter, len) :
				      fault_in_iov_iter_readable(iter, len)) < len;
}

/*
 * Tries until nothing is left, the file ends, or another try does not help. Returns
 * the bytes moved, or a negative errno if there were none; @left says whether FUSE has to
 * go on.
 */
static ssize_t efuse_file_move(struct efuse_conn *ec, struct kiocb *iocb, struct iov_iter *iter,
			       u32 opcode, efuse_try_t try, bool *left)
{
	size_t window = efuse_file_window(iocb, opcode);
	bool again = true, ended = false;
	size_t count, held;
	ssize_t done = 0, ret;

	*left = false;
	if (!efuse_file_resident(iter))
		again = efuse_file_fault_in(iter, opcode, window);
	for (;;) {
		count = iov_iter_count(iter);
		iov_iter_truncate(iter, window);
		held = count - iov_iter_count(iter);
		ret = try(ec, iocb, iter, opcode, &ended);
		iov_iter_reexpand(iter, iov_iter_count(iter) + held);
		if (ret == -EAGAIN)
			break;
		if (ret < 0 && ret != -EFAULT)
			return done ?: ret;
		if (ret >= 0) {
			done += ret;
			if (!ret || !iov_iter_count(iter) || ended)
				return done;
			again = true;
		}
		if (fatal_signal_pending(current))
			return done ?: -EINTR;
		if (!again || !efuse_file_fault_in(iter, opcode, window))
			break;
		/* The file is longer than FUSE knows. */
		window = min_t(size_t, 2 * window, MAX_RW_COUNT);
		again = false;
	}
	*left = true;
	return done;
}

/* FUSE's own way, behind @done bytes. Returns as ->read_iter(). */
static ssize_t efuse_file_rest(struct kiocb *iocb, struct iov_iter *iter, efuse_iter_t ordinary,
			       ssize_t done)
{
	ssize_t rest = ordinary(iocb, iter);

	return rest < 0 && done ? done : done + rest;
}

/*
 * Does a write(2) go FUSE's own way? What it has brought shows in FUSE's pages before it is below.
 * One that goes past the pages says so.
 */
static bool efuse_file_locked(struct inode *inode)
{
	return inode_is_locked(inode) && !READ_ONCE(get_fuse_inode(inode)->efuse_passed.end);
}

/**
 * efuse_file_read - read(2) of a regular file
 * @iocb: as of ->read_iter()
 * @to: likewise
 * @ordinary: FUSE's own way
 *
 * Context: process context, may sleep.
 * Return: as ->read_iter().
 */
ssize_t efuse_file_read(struct kiocb *iocb, struct iov_iter *to, efuse_iter_t ordinary)
{
	struct efuse_conn *ec = efuse_file_conn(iocb, to, FUSE_READ);
	struct inode *inode = file_inode(iocb->ki_filp);
	ssize_t done;
	bool left;
	int err;

	/* What is stored through a map shows in FUSE's pages before these are known to be dirty. */
	if (!ec || mapping_writably_mapped(inode->i_mapping) || !efuse_file_clean(inode) ||
	    efuse_file_locked(inode)) {
		efuse_refresh_pages(inode);
		return ordinary(iocb, to);
	}
	/* As FUSE: where the file ends may have to be asked for. */
	if (iocb->ki_pos + iov_iter_count(to) > i_size_read(inode) &&
	    efuse_extents_cut(ec, get_node_id(inode))) {
		err = fuse_update_attributes(inode, iocb->ki_filp, STATX_SIZE);
		if (err)
			return err;
	}
	done = efuse_file_move(ec, iocb, to, FUSE_READ, efuse_file_try, &left);
	/* Whoever has seen the new content must not be shown the old by FUSE's pages. */
	if (inode->i_mapping->nrpages)
		efuse_refresh_pages(inode);
	fuse_invalidate_atime(inode);
	return left ? efuse_file_rest(iocb, to, ordinary, done) : done;
}

/* May a WRITE pass the page cache by? Its pages there are gone then. */
static bool efuse_file_emptied(struct inode *inode, loff_t pos, size_t len)
{
	if (!efuse_file_clean(inode) || mapping_writably_mapped(inode->i_mapping) ||
	    !efuse_pages_drop(inode, pos, len))
		return false;
	/* Until it was gone, a page could be stored to and written back: by a WRITE under way. */
	return efuse_file_clean(inode);
}

static ssize_t efuse_file_try_write(struct efuse_conn *ec, struct kiocb *iocb,
				    struct iov_iter *from, u32 opcode, bool *ended)
{
	struct inode *inode = file_inode(iocb->ki_filp);
	/* What a program has stored behind the end of the file does not come into it. */
	loff_t pos = min(iocb->ki_pos, i_size_read(inode));
	size_t len = iocb->ki_pos - pos + iov_iter_count(from);
	ssize_t ret = -EAGAIN;

	efuse_pages_pass(inode, pos, len);
	if (efuse_file_emptied(inode, pos, len)) {
		ret = efuse_file_try(ec, iocb, from, opcode, ended);
		if (ret > 0)
			fuse_write_update_attr(inode, iocb->ki_pos, ret);
		/* One that has failed may have changed some bytes, too. */
		efuse_pages_void(ec, inode, pos, len);
	}
	efuse_pages_passed(inode);
	return ret;
}

/* What every write does before its first byte. Returns 0 or a negative errno. */
static int efuse_file_modified(struct kiocb *iocb)
{
	struct file *file = iocb->ki_filp;

	return file_remove_privs(file) ?: file_update_time(file);
}

/* Under the inode's lock, which FUSE's own way takes by itself. */
static ssize_t efuse_file_write_locked(struct efuse_conn *ec, struct kiocb *iocb,
				       struct iov_iter *from, bool *left)
{
	bool append = iocb->ki_flags & IOCB_APPEND;
	struct inode *inode = file_inode(iocb->ki_filp);
	ssize_t ret;

	*left = false;
	/* The daemon may have said that the file is another one by now. */
	ret = append ? fuse_update_attributes(inode, iocb->ki_filp, STATX_SIZE) : 0;
	if (ret)
		return ret;
	ret = generic_write_checks(iocb, from);
	if (ret <= 0)
		return ret;
	ret = efuse_file_modified(iocb);
	if (ret)
		return ret;
	ret = efuse_file_move(ec, iocb, from, FUSE_WRITE, efuse_file_try_write, left);
	/* Another append must not come between the parts of one: it is a short one. */
	if (iocb->ki_flags & IOCB_APPEND && ret > 0)
		*left = false;
	return ret;
}

/**
 * efuse_file_write - write(2) of a regular file
 * @iocb: as of ->write_iter()
 * @from: likewise
 * @ordinary: FUSE's own way
 *
 * Context: process context, may sleep.
 * Return: as ->write_iter().
 */
ssize_t efuse_file_write(struct kiocb *iocb, struct iov_iter *from, efuse_iter_t ordinary)
{
	struct efuse_conn *ec = efuse_file_conn(iocb, from, FUSE_WRITE);
	struct inode *inode = file_inode(iocb->ki_filp);
	ssize_t done;
	bool left;

	/* Where the file ends is known for certain if nobody else makes it longer. */
	if (!ec || inode->i_mode & (S_ISUID | S_ISGID) || !efuse_file_clean(inode) ||
	    (iocb->ki_flags & IOCB_APPEND && READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE))
		return ordinary(iocb, from);

	inode_lock(inode);
	done = efuse_file_write_locked(ec, iocb, from, &left);
	inode_unlock(inode);
	if (done > 0)
		done = generic_write_sync(iocb, done);
	return left && done >= 0 ? efuse_file_rest(iocb, from, ordinary, done) : done;
}
