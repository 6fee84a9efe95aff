// SPDX-License-Identifier: GPL-2.0
/*
 * The direct path: a READ or WRITE between the request's own pages and the backing files that its
 * range is mapped to, with the credentials of the task that mapped them.
 *
 * Backing files are the truth, not a copy: a READ returns what the daemon would read there now. A
 * request that the direct path cannot carry out goes to the daemon as a whole.
 *
 * A move of bytes reports why it stopped (enum efuse_stop). A call that moved fewer bytes than it
 * was asked for tells nothing by itself: a signal or an error may have ended it. The next call
 * tells, and only a call that reads nothing marks the end of the file.
 *
 * The caller's task does the I/O. The file systems below see of that task:
 *   credentials	replaced by those of the task that mapped the extent (efuse_act_as())
 *   RLIMIT_FSIZE	limits positions in the file above, and is checked there; where the backing
 *			file would reach the limit sooner, the daemon writes
 *   fatal signals	end the request, not the file
 *   memory cgroup,	the caller's: it is charged for the pages of the backing file that it reads,
 *   I/O priority	and its I/O has its priority
 *   IOCB_NOWAIT	never passed on from the caller: its nowait calls take FUSE's own way
 */
#include "io_i.h"

#include <linux/backing-dev.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/fsnotify.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>

/*
 * Does what override_creds() does, but without changing the reference count, a cache line that all
 * CPUs share. The extent owns a reference, and is held.
 */
const struct cred *efuse_act_as(const struct cred *cred)
{
	const struct cred *old = current_cred();

	rcu_assign_pointer(current->cred, cred);
	return old;
}

/*
 * Is a file of this module read through the page cache? eFuse fills those pages without the file's
 * lock. Reads with FUSE's passthrough take the lock of another file, direct I/O that of the file.
 */
static bool efuse_reads_pages(const struct file *file)
{
	const struct fuse_file *ff = file->private_data;

	return file_inode(file)->i_sb->s_type->owner == THIS_MODULE &&
	       !(ff->open_flags & (FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH));
}

/*
 * Is a file's page cache filled without the file's lock? Not with direct I/O, nor on a file system
 * that reads without pages.
 */
static bool efuse_reads_unlocked(const struct file *file)
{
	const struct inode *inode = efuse_content_inode(file);

	switch (inode->i_sb->s_magic) {
	case FUSE_SUPER_MAGIC:
		return inode == file_inode(file) && efuse_reads_pages(file);
	case EXT4_SUPER_MAGIC: /* also ext2 and ext3 */
	case BTRFS_SUPER_MAGIC:
	case TMPFS_MAGIC:
	case MSDOS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case SQUASHFS_MAGIC:
	case ISOFS_SUPER_MAGIC:
		return !IS_DAX(inode);
	}
	return false;
}

/* Is the destination memory of a program that asked for the bytes, not pages of a file? */
static bool efuse_direct_to_user(const struct fuse_args *args)
{
	return args->efuse.iter ? user_backed_iter(args->efuse.iter) :
				  args->user_pages && args->is_pinned;
}

/*
 * A page of a file is read while the page is locked. Tasks that hold the lock of the backing file
 * may wait for that page: they write to or read from the backing file, and their buffer is a
 * mapping of the file above. So a READ into such a page must not wait for the backing file's lock.
 * Testing the lock first would not help: it may be taken between the test and the read. The page
 * may belong to a file on yet another mount above this one, whose backing file this one is.
 */
static bool efuse_direct_nowait(const struct efuse_req *req, const struct efuse_backing *eb)
{
	return req->args->opcode == FUSE_READ && !efuse_direct_to_user(req->args) &&
	       (req->at_device || !efuse_reads_unlocked(eb->file));
}

static int efuse_direct_flags(const struct efuse_req *req, const struct efuse_backing *eb)
{
	const struct fuse_args *args = req->args;
	u32 flags = efuse_arg_flags(args);
	int iocb = efuse_direct_nowait(req, eb) ? IOCB_NOWAIT : 0;

	if (req->at_device)
		return iocb | IOCB_DIRECT;

	/*
	 * The page cache's own pages are filled as for buffered readers, for instance in a page
	 * fault: never with direct I/O.
	 */
	if (eb->file->f_flags & O_DIRECT && args->user_pages)
		iocb |= IOCB_DIRECT;
	if (args->opcode == FUSE_READ)
		return iocb;
	if (flags & O_DSYNC)
		iocb |= IOCB_DSYNC;
	if (flags & __O_SYNC)
		iocb |= IOCB_SYNC;
	/*
	 * The file system below determines the end of the file. With write-back FUSE does: its
	 * dirty pages may lie beyond the present end of the backing file.
	 */
	if (flags & O_APPEND && efuse_extent_ends(eb) && !req->ec->fc->writeback_cache)
		iocb |= IOCB_APPEND;
	return iocb;
}

/*
 * The file has the access time of the backing file. Call this after a read of the backing file.
 * Where the file system below keeps the access time outside the inode (S_NOATIME), a change does
 * not show, and one is assumed.
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

/*
 * Begins to write to a backing file, unless its file system is frozen or being frozen: then the
 * WRITE goes to the daemon. It must not wait for the thaw. Its caller, or another task that waits
 * for this WRITE, may hold the lock of a pipe (splice(2)), and a third one may wait for that pipe
 * and keep the file system below from being frozen.
 *
 * Another eFuse below does not wait either. Other stacked file systems, such as overlayfs, wait for
 * the one below them, which may be frozen at any moment. So WRITEs to these go to the daemon.
 */
static bool efuse_backing_begin(const struct file *file)
{
	struct super_block *sb = file_inode(file)->i_sb;

	return (!sb->s_stack_depth || efuse_reads_pages(file)) && sb_start_write_trylock(sb);
}

static void efuse_backing_end(const struct file *file)
{
	sb_end_write(file_inode(file)->i_sb);
}

/* What vfs_iocb_iter_write() does after it has verified the range and begun to write. */
static ssize_t efuse_backing_write(struct kiocb *kiocb, struct iov_iter *iter)
{
	struct file *file = kiocb->ki_filp;
	ssize_t ret;

	if (!file->f_op->write_iter)
		return -EINVAL;
	ret = file->f_op->write_iter(kiocb, iter);
	if (ret > 0)
		fsnotify_modify(file);
	return ret;
}

static ssize_t efuse_backing_io(struct efuse_req *req, const struct efuse_backing *eb,
				struct kiocb *kiocb, struct iov_iter *iter)
{
	const struct cred *old = efuse_act_as(eb->cred);
	ssize_t ret;

	if (req->args->opcode == FUSE_READ)
		ret = vfs_iocb_iter_read(eb->file, kiocb, iter);
	else
		ret = efuse_backing_write(kiocb, iter);
	efuse_act_as(old);
	return ret;
}

/* Why a call of the file system below failed with @err, or moved nothing (0). */
static enum efuse_stop efuse_stop_of(const struct efuse_req *req, ssize_t err)
{
	if (fatal_signal_pending(current))
		return EFUSE_STOP_SIGNAL;
	/* Only a buffer of the caller can fault; a request's own pages are in memory. */
	return err == -EFAULT && req->args->efuse.iter ? EFUSE_STOP_FAULT : EFUSE_STOP_ERROR;
}

/*
 * Did a READ that moved some bytes end at the end of the file? False: not known, the next call
 * tells.
 */
static bool efuse_backing_at_end(const struct efuse_backing *eb, const struct kiocb *kiocb)
{
	return kiocb->ki_pos == i_size_read(file_inode(eb->file));
}

/*
 * Moves bytes between @iter and the extent's file. @done is set to the number of bytes moved. An
 * append is done in one call, because only that call tells where its bytes went.
 */
static enum efuse_stop efuse_backing_move_begun(struct efuse_req *req,
						const struct efuse_backing *eb, u64 pos,
						const struct iov_iter *iter, size_t *done)
{
	bool write = req->args->opcode == FUSE_WRITE;
	size_t len = iov_iter_count(iter);
	struct iov_iter rest;
	struct kiocb kiocb;
	ssize_t ret;

	*done = 0;
	init_sync_kiocb(&kiocb, eb->file);
	/* The daemon may have changed the descriptor's flags after mapping it. */
	kiocb.ki_flags &= ~(IOCB_APPEND | IOCB_DIRECT | IOCB_NOWAIT);
	kiocb.ki_flags |= efuse_direct_flags(req, eb);
	kiocb.ki_pos = pos - eb->offset + eb->backing_offset;
	for (;;) {
		rest = *iter;
		iov_iter_advance(&rest, *done);
		ret = efuse_backing_io(req, eb, &kiocb, &rest);
		/* The buffer or range is not aligned as the device below requires. */
		if (ret == -EINVAL && kiocb.ki_flags & IOCB_DIRECT && !req->at_device) {
			kiocb.ki_flags &= ~IOCB_DIRECT;
			continue;
		}
		if (ret == -EAGAIN && kiocb.ki_flags & IOCB_NOWAIT) {
			req->reason = EFUSE_DECLINED;
			return EFUSE_STOP_REFUSED;
		}
		if (ret < 0)
			return efuse_stop_of(req, ret);
		*done += ret;
		if (kiocb.ki_flags & IOCB_APPEND)
			req->appended = kiocb.ki_pos - eb->backing_offset + eb->offset;
		if (*done == len)
			return EFUSE_STOP_ALL;
		if (write) {
			if (!ret || kiocb.ki_flags & IOCB_APPEND)
				return efuse_stop_of(req, 0);
		} else if (!ret || efuse_backing_at_end(eb, &kiocb)) {
			return EFUSE_STOP_EOF;
		}
	}
}

/* Is a WRITE of @len bytes permitted? This may ask a program, so it comes before the begin. */
static bool efuse_backing_verify(const struct efuse_backing *eb, u64 pos, size_t len)
{
	const struct cred *old = efuse_act_as(eb->cred);
	loff_t at = pos - eb->offset + eb->backing_offset;
	int err = rw_verify_area(WRITE, eb->file, &at, len);

	efuse_act_as(old);
	return !err;
}

/* As efuse_backing_move_begun(), but a WRITE is refused while the file system below is frozen. */
static enum efuse_stop efuse_backing_move(struct efuse_req *req, const struct efuse_backing *eb,
					  u64 pos, const struct iov_iter *iter, size_t *done)
{
	enum efuse_stop stop;

	if (req->args->opcode == FUSE_READ)
		return efuse_backing_move_begun(req, eb, pos, iter, done);
	*done = 0;
	if (!efuse_backing_verify(eb, pos, iov_iter_count(iter)) ||
	    !efuse_backing_begin(eb->file)) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_STOP_REFUSED;
	}
	stop = efuse_backing_move_begun(req, eb, pos, iter, done);
	efuse_backing_end(eb->file);
	return stop;
}

/* May the kernel write this range as the daemon would? Sets @req->reason if not. */
static bool efuse_direct_writable(struct efuse_req *req, const struct efuse_backing *eb, u64 pos,
				  u64 len)
{
	const struct fuse_write_in *in = efuse_req_in(req->args, sizeof(*in));
	umode_t mode = file_inode(eb->file)->i_mode;
	u64 lower_end = pos + len - eb->offset + eb->backing_offset;
	bool append = efuse_arg_flags(req->args) & O_APPEND;
	u64 size;

	if (!(eb->flags & EFUSE_EXTENT_WRITE))
		req->reason = EFUSE_UNMAPPED;
	/*
	 * The file system below may append because of the open file's flag, whatever ki_flags has.
	 */
	else if (eb->file->f_flags & O_APPEND)
		req->reason = EFUSE_DECLINED;
	/*
	 * Whether these bits are cleared depends on the rights of the writer, which the daemon
	 * knows.
	 */
	else if (!in || (in->write_flags & FUSE_WRITE_KILL_SUIDGID &&
			 mode & (S_ISUID | S_ISGID)))
		req->reason = EFUSE_DECLINED;
	/* A file that consists of more than one backing file can be extended only by the daemon. */
	else if (!efuse_extent_ends(eb) &&
		 (append ||
		  !efuse_size_told(req->ec, req->fm, req->args, req->args->nodeid, &size) ||
		  pos + len > size))
		req->reason = EFUSE_DECLINED;
	/* The file above may end elsewhere than the backing file. */
	else if (append && (eb->offset || eb->backing_offset))
		req->reason = EFUSE_DECLINED;
	/*
	 * The task's limit applies to positions in the file above, which may differ from positions
	 * in the backing file. Write-back is not done by the writer's task.
	 */
	else if (lower_end > rlimit(RLIMIT_FSIZE) &&
		 (eb->offset != eb->backing_offset || efuse_is_write_back(req->args)))
		req->reason = EFUSE_DECLINED;
	else
		return true;
	return false;
}

/* Could a WRITE begin now? */
static bool efuse_backing_ready(struct efuse_req *req, const struct file *file)
{
	if (efuse_backing_begin(file)) {
		efuse_backing_end(file);
		return true;
	}
	req->reason = EFUSE_DECLINED;
	return false;
}

/* May all of [pos, pos + len) be written to extents? */
static bool efuse_direct_covers(struct efuse_req *req, u64 pos, u64 len)
{
	struct efuse_use *use;
	bool writable;
	u64 room;

	while (len) {
		use = efuse_extent_begin(req, pos, &room);
		if (!use)
			return false;
		room = min(room, len);
		writable = efuse_direct_writable(req, use->extent, pos, room) &&
			   efuse_backing_ready(req, use->extent->file);
		efuse_extent_end(req->ec, use);
		if (!writable)
			return false;
		pos += room;
		len -= room;
	}
	return true;
}

/*
 * Cuts a READ at the end of the file. The backing file of an extent of fixed length does not tell
 * the end. FUSE's page cache and read(2) never ask for more than the size that FUSE knows. If
 * another reader does, the daemon answers, and if the end may have changed. It answers, too, where
 * a write-back mount knows a longer file.
 */
static enum efuse_stop efuse_direct_cut(struct efuse_req *req, const struct efuse_backing *eb,
					u64 pos, u64 *room)
{
	const struct fuse_args *args = req->args;
	bool settled, told;
	u64 size;

	if (args->opcode != FUSE_READ || efuse_extent_ends(eb))
		return EFUSE_STOP_ALL;
	settled = efuse_size_settled(req->ec, args->nodeid);
	told = efuse_size_told(req->ec, req->fm, args, args->nodeid, &size);
	if (told && pos + *room <= size)
		return EFUSE_STOP_ALL;
	if (!told || !settled || (!args->efuse.iter && !args->page_zeroing) ||
	    (req->ec->fc->writeback_cache && !efuse_size_agrees(req->fm, args->nodeid, size))) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_STOP_REFUSED;
	}
	if (pos >= size)
		return EFUSE_STOP_EOF;
	*room = size - pos;
	return EFUSE_STOP_ALL;
}

/* May [pos, pos + room) of the request go through the held extent? May reduce @room. */
static enum efuse_stop efuse_direct_check(struct efuse_req *req, const struct efuse_backing *eb,
					  u64 pos, u64 *room)
{
	if (req->at_device && !eb->resident) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_STOP_REFUSED;
	}
	if (efuse_direct_nowait(req, eb) && !(eb->file->f_mode & FMODE_NOWAIT)) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_STOP_REFUSED;
	}
	/* Checked for each piece: the extents may have changed since the WRITE began. */
	if (req->args->opcode == FUSE_WRITE && !efuse_direct_writable(req, eb, pos, *room))
		return EFUSE_STOP_REFUSED;
	return efuse_direct_cut(req, eb, pos, room);
}

/* Moves bytes through one extent, which is held. @done is set to the number of bytes. */
static enum efuse_stop efuse_direct_piece(struct efuse_req *req, struct efuse_backing *eb, u64 pos,
					  u64 room, struct efuse_data *data, size_t *done)
{
	struct inode *inode = file_inode(eb->file);
	struct timespec64 atime = inode_get_atime(inode);
	struct efuse_span span __uninitialized;
	struct efuse_content before;
	bool watched;
	enum efuse_stop stop;
	struct iov_iter iter;

	*done = 0;
	stop = efuse_direct_check(req, eb, pos, &room);
	if (stop != EFUSE_STOP_ALL)
		return stop;
	/* Cached bytes could not be told from the bytes the file has after the seal was broken. */
	if (eb->flags & EFUSE_EXTENT_SEALED)
		req->args->efuse.unkept = true;
	efuse_data_next(data, &span, &iter, room);
	if (req->args->opcode == FUSE_WRITE)
		return efuse_backing_move(req, eb, pos, &iter, done);

	/*
	 * In exclusive mode only this mount changes the file, and its changes are counted anyway.
	 */
	watched = READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE;
	if (watched)
		efuse_content_look(&before, eb->file);
	stop = efuse_backing_move(req, eb, pos, &iter, done);
	efuse_backing_accessed(req->ec, req->args->nodeid, inode, atime);
	if (!efuse_sealed(eb)) {
		req->reason = EFUSE_STALE;
		return EFUSE_STOP_REFUSED;
	}
	/* An end of file is content, too. */
	if (watched && (*done || stop == EFUSE_STOP_EOF))
		req->racy |= efuse_content_seen(req->ec, req->args->nodeid, eb, &before);
	/* What changes without another time, or while it is read, has no version. */
	if (watched && before.racy)
		efuse_version_unlike(req);
	/* Only the daemon knows what follows a backing file that ends within its extent. */
	if (stop == EFUSE_STOP_EOF && !efuse_extent_ends(eb)) {
		req->reason = EFUSE_FAILED;
		return EFUSE_STOP_REFUSED;
	}
	return stop;
}

/*
 * Moves the bytes of a request. Returns how many, from the request's start; @req->stop tells why
 * not more.
 */
static size_t efuse_direct_move(struct efuse_req *req, u64 pos, u64 len)
{
	struct efuse_use *use;
	struct efuse_data data;
	bool write = req->args->opcode == FUSE_WRITE;
	size_t done = 0, piece = 0;
	u64 room;

	efuse_data_start(&data, req->args, write ? ITER_SOURCE : ITER_DEST);
	req->stop = EFUSE_STOP_ALL;
	while (done < len && req->stop == EFUSE_STOP_ALL) {
		use = efuse_extent_begin(req, pos + done, &room);
		if (!use) {
			req->stop = EFUSE_STOP_UNMAPPED;
			break;
		}
		/*
		 * Before the first piece of a WRITE is written, check that the other pieces can be.
		 */
		if (write && !done && room < len &&
		    !efuse_direct_covers(req, pos + room, len - room))
			req->stop = EFUSE_STOP_REFUSED;
		else
			req->stop = efuse_direct_piece(req, use->extent, pos + done,
						       min(room, len - done), &data, &piece);
		efuse_extent_end(req->ec, use);
		done += piece;
	}
	if (req->stop >= EFUSE_STOP_SIGNAL && req->stop <= EFUSE_STOP_ERROR)
		req->reason = EFUSE_FAILED;
	return done;
}

/*
 * A fatal signal ended the request before it moved a byte. The daemon must not retry it: it fails
 * with EINTR.
 */
static bool efuse_direct_killed(struct efuse_req *req)
{
	req->ret = -EINTR;
	req->error = -EINTR;
	return true;
}

/**
 * efuse_direct_shown - a READ is about to show what it read from backing files
 * @req: the READ
 *
 * If the READ bypasses FUSE's pages, these may be older than what the caller sees. For a READ into
 * the caller's own buffer, file_io.c drops the pages of the range.
 */
void efuse_direct_shown(const struct efuse_req *req)
{
	const struct fuse_args *args = req->args;

	if (req->racy && args->user_pages && !args->efuse.iter)
		efuse_epoch_bump(req->ec, efuse_bucket_inode(args->nodeid, EFUSE_KIND_PAGES));
}

/**
 * efuse_direct_read - READ from backing files
 * @req: the READ
 *
 * A READ into the caller's own buffer may bring fewer bytes than asked for: the caller continues.
 * In any other READ fewer bytes mean the end of the file.
 *
 * Context: process context; may sleep.
 * Return: true if the READ is answered: @req->ret is what the caller gets, @req->stop tells why not
 *         more. False if the daemon has to be asked
 */
static bool efuse_direct_read(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	size_t done = efuse_direct_move(req, efuse_arg_offset(args), args->out_args[0].size);

	switch (req->stop) {
	case EFUSE_STOP_ALL:
	case EFUSE_STOP_EOF:
		break;
	case EFUSE_STOP_SIGNAL:
		if (!done || !args->efuse.iter)
			return efuse_direct_killed(req);
		break;
	case EFUSE_STOP_FAULT:
	case EFUSE_STOP_ERROR:
		if (!done || !args->efuse.iter)
			return false;
		break;
	default:
		return false;
	}
	if (req->stop == EFUSE_STOP_EOF)
		efuse_data_end(args, done);
	efuse_direct_shown(req);
	args->out_args[0].size = done;
	req->ret = done;
	return true;
}

/* Did an append of @done bytes go to another position than where FUSE believes the file to end? */
static bool efuse_appended_elsewhere(const struct efuse_req *req, size_t done)
{
	return req->appended && req->appended != efuse_arg_offset(req->args) + done;
}

/**
 * efuse_direct_write - WRITE to backing files
 * @req: the WRITE
 *
 * If only a part could be written, the result is a short write, as the daemon's could be. But a
 * write-back that was cut short is sent to the daemon as a whole, because its pages are clean by
 * then.
 *
 * Context: process context; may sleep.
 * Return: true if the WRITE is answered: @req->ret is what the caller gets, @req->stop tells why
 *         not more. False if the daemon has to be asked
 */
static bool efuse_direct_write(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_write_out *out = args->out_args[0].value;
	size_t len = efuse_arg_size(args);
	size_t done = efuse_direct_move(req, efuse_arg_offset(args), len);

	if (done)
		req->ended = args->nodeid;
	/* FUSE put the bytes into its pages where it believed the file to end. */
	if (efuse_appended_elsewhere(req, done) && !args->efuse.iter)
		efuse_epoch_bump(req->ec, efuse_bucket_inode(args->nodeid, EFUSE_KIND_PAGES));
	if (done < len && efuse_is_write_back(args))
		return false;
	if (!done)
		return req->stop == EFUSE_STOP_SIGNAL && efuse_direct_killed(req);
	memset(out, 0, sizeof(*out));
	out->size = done;
	req->ret = 0;
	return true;
}

static void efuse_path_written(struct efuse_req *req, const struct efuse_changes *ch)
{
	struct efuse_ops *ops;

	req->ended_epoch = ch->epoch;
	rcu_read_lock();
	ops = rcu_dereference(req->ec->ops);
	if (ops && ops->written)
		ops->written(req);
	rcu_read_unlock();
}

/**
 * efuse_path_direct - answer a READ or WRITE from backing files
 * @req: the request
 *
 * Return: true if the request is answered; otherwise @req->reason tells why not
 */
bool efuse_path_direct(struct efuse_req *req)
{
	struct efuse_conn *ec = req->ec;
	struct efuse_changes ch __uninitialized;
	bool write = req->args->opcode == FUSE_WRITE;
	atomic_t *depth;
	bool done;

	if (xa_empty(&ec->backed)) {
		req->reason = EFUSE_UNMAPPED;
		req->stop = EFUSE_STOP_UNMAPPED;
		return false;
	}
	if (write) {
		efuse_changes_begin(&ch, ec, req->fm, req->args);
	} else {
		/* At most the access time changes: see efuse_backing_accessed(). */
		ch.nr = 0;
		req->args->efuse.epoch = efuse_epoch_now(ec);
	}
	/* Incremented and decremented for the same CPU, even if the task moves to another one. */
	depth = &raw_cpu_ptr(ec->stats)->depth;
	atomic_inc(depth);
	done = write ? efuse_direct_write(req) : efuse_direct_read(req);
	atomic_dec(depth);
	/* Also if the request goes on to the daemon, because a part of it may have been written. */
	if (write && !req->ended && req->stop >= EFUSE_STOP_UNMAPPED)
		efuse_epoch_cancel(ec, &ch);
	else if (write)
		efuse_changes_end(&ch, ec, req->fm, req->args,
				  done && !req->ret &&
				  !efuse_appended_elsewhere(req, efuse_arg_size(req->args)));
	if (req->ended)
		efuse_path_written(req, &ch);
	return done;
}
