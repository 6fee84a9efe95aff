// SPDX-License-Identifier: GPL-2.0
/*
 * The direct path: a READ or WRITE between the request's own pages and the backing
 * files that its range is mapped to, with the credentials of who mapped it.
 *
 * Backing files are truth, not a copy: what is read is what the daemon would read
 * there now. Whatever does not go as it should goes to the daemon, whole.
 *
 * Why a move of bytes stopped (enum efuse_stop) is part of its result. A call that moved fewer
 * bytes than it was asked for says nothing: a signal or an error may have ended it. The next call
 * tells, and only one that reads nothing is the end of the file.
 *
 * The I/O is done by the caller's task. What file systems take from that:
 *   credentials	those of who mapped the extent (efuse_act_as())
 *   RLIMIT_FSIZE	holds for positions in the file, and was looked at there; where the backing
 *			file would reach it sooner, the daemon writes
 *   fatal signals	end the request, not the file
 *   memory cgroup,	the caller's: pages of the backing file are charged to who reads them, and
 *   I/O priority	its I/O is the caller's
 *   IOCB_NOWAIT	of a caller never: such calls take FUSE's own way
 */
#include "efuse_i.h"

#include <linux/backing-dev.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>

/*
 * As override_creds(), without touching the reference count that all CPUs share: the
 * extent has one, and is held.
 */
const struct cred *efuse_act_as(const struct cred *cred)
{
	const struct cred *old = current_cred();

	rcu_assign_pointer(current->cred, cred);
	return old;
}

/* An overlay's inode has copies of what its real one has, as they were some time. */
static struct inode *efuse_content_inode(const struct file *file)
{
	return d_real_inode(file_dentry(file));
}

/*
 * Is a file of ours read by way of pages? These are filled as all pages of ours are. FUSE's
 * passthrough takes the locks of another file, its direct I/O the file's own.
 */
static bool efuse_reads_pages(const struct file *file)
{
	const struct fuse_file *ff = file->private_data;

	return file_inode(file)->i_sb->s_type->owner == THIS_MODULE &&
	       !(ff->open_flags & (FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH));
}

/* Is a file's page cache filled without the file's lock? Not by direct I/O, nor without pages. */
static bool efuse_reads_unlocked(const struct file *file)
{
	const struct inode *inode = efuse_content_inode(file);

	switch (inode->i_sb->s_magic) {
	case FUSE_SUPER_MAGIC:
		return inode == file_inode(file) && efuse_reads_pages(file);
	case EXT4_SUPER_MAGIC: /* ext2 and ext3, too */
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

/* Do the bytes go to memory of a program that has asked for them, not to pages of a file? */
static bool efuse_direct_to_user(const struct fuse_args *args)
{
	return args->efuse.iter ? user_backed_iter(args->efuse.iter) :
				  args->user_pages && args->is_pinned;
}

/*
 * A page of a file is read with the page's lock in hand, for which others may wait who have the
 * lock of the backing file: they write to that file, or read it, from or into a map of the file
 * above. So the lock below is not waited for. A look at it would not do: somebody may wait for it
 * by then. The page may be of a file above this one, whose backing file this one is.
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

	/* The page cache's own pages are read as its readers may, in a page fault. */
	if (eb->file->f_flags & O_DIRECT && args->user_pages)
		iocb |= IOCB_DIRECT;
	if (args->opcode == FUSE_READ)
		return iocb;
	if (flags & O_DSYNC)
		iocb |= IOCB_DSYNC;
	if (flags & __O_SYNC)
		iocb |= IOCB_SYNC;
	/*
	 * The file system below says where the file ends. With write-back FUSE says it: its dirty
	 * pages may lie beyond what the backing file has by now.
	 */
	if (flags & O_APPEND && eb->flags & EFUSE_EXTENT_TO_EOF && !req->ec->fc->writeback_cache)
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

/* The content of a backing file. */

/* FAT rounds times to 2 s, and does not say so in s_time_gran. */
#define EFUSE_COARSEST_TIME_NS	(2 * NSEC_PER_SEC)

/* Times of files have a granularity; a change within it may leave them as they were. */
static bool efuse_ctime_racy(const struct inode *inode, struct timespec64 ctime)
{
	u64 grain_ns = max_t(u64, TICK_NSEC, inode->i_sb->s_time_gran);
	struct timespec64 now;

	if (!ctime.tv_nsec)
		grain_ns = EFUSE_COARSEST_TIME_NS;
	grain_ns *= 2;
	ktime_get_coarse_real_ts64(&now);
	return timespec64_to_ns(&now) - timespec64_to_ns(&ctime) <= (s64)grain_ns;
}

/* Does another machine have a part in it? */
static bool efuse_inode_remote(const struct inode *inode)
{
	switch (inode->i_sb->s_magic) {
	case FUSE_SUPER_MAGIC:
	case NFS_SUPER_MAGIC:
	case SMB_SUPER_MAGIC:
	case SMB2_SUPER_MAGIC:
	case CIFS_SUPER_MAGIC:
	case V9FS_MAGIC:
	case CEPH_SUPER_MAGIC:
	case AFS_SUPER_MAGIC:
	case AFS_FS_MAGIC:
	case CODA_SUPER_MAGIC:
		return true;
	}
	return false;
}

/* Is the content changed where its times do not tell of it, or late? */
static bool efuse_content_untold(const struct inode *inode)
{
	/* Stores through a map: where pages are written back, the first one moves the times. */
	return efuse_inode_remote(inode) || inode->i_sb->s_stack_depth > 0 ||
	       mapping_writably_mapped(inode->i_mapping) ||
	       !mapping_can_writeback(inode->i_mapping);
}

/* Has somebody the inode's lock for himself, or waits for that? */
static bool efuse_inode_write_locked(struct inode *inode)
{
	if (!inode_is_locked(inode))
		return false;
	if (!inode_trylock_shared(inode))
		return true;
	inode_unlock_shared(inode);
	return false;
}

/**
 * efuse_content_look - note which content a backing file has now
 * @content: set
 * @file: the backing file
 *
 * A write(2) sets the time before it copies, which may take long; it holds the lock meanwhile.
 * Direct I/O that is asynchronous lets go of the lock, and is counted until it is done.
 */
void efuse_content_look(struct efuse_content *content, const struct file *file)
{
	struct inode *inode = efuse_content_inode(file);

	content->ctime = inode_get_ctime(inode);
	content->size = i_size_read(inode);
	smp_rmb(); /* A write(2) that begins after this sets a later time. */
	content->racy = efuse_inode_write_locked(inode);
	smp_rmb(); /* Direct I/O is counted before it lets go of the lock. */
	content->racy |= atomic_read(&inode->i_dio_count) || efuse_content_untold(inode) ||
			 efuse_ctime_racy(inode, content->ctime);
}

static bool efuse_content_same(const struct efuse_content *content, const struct inode *inode)
{
	struct timespec64 ctime = inode_get_ctime(inode);

	return timespec64_equal(&content->ctime, &ctime) && content->size == i_size_read(inode);
}

/*
 * While it is changed it is racy: nobody takes the new times for those of a content that is known.
 */
static void efuse_content_note(struct efuse_backing *eb, const struct efuse_content *content)
{
	spin_lock(&eb->content_lock);
	WRITE_ONCE(eb->content.racy, true);
	smp_wmb(); /* Pairs with efuse_content_seen(). */
	eb->content.ctime = content->ctime;
	eb->content.size = content->size;
	smp_wmb(); /* As above. */
	WRITE_ONCE(eb->content.racy, content->racy);
	spin_unlock(&eb->content_lock);
}

/*
 * The backing file was seen, of which the data cache may keep, and FUSE's page cache may have,
 * what was there before. Nobody who has seen a byte of the new may be shown an older one. @before
 * is how it was looked at before it was seen: a change meanwhile is found by the next look.
 *
 * Returns whether it may have changed without telling: then only what was seen is known to be new,
 * and whoever was shown that drops FUSE's pages of it. Where that goes on for long, as it does
 * below a map for writing, all pages would be dropped at each READ.
 */
static bool efuse_content_seen(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb,
			       const struct efuse_content *before)
{
	bool same = efuse_content_same(&eb->content, efuse_content_inode(eb->file));

	smp_rmb(); /* Pairs with efuse_content_note(). */
	if (same && !READ_ONCE(eb->content.racy) && !before->racy)
		return false;
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_WHOLE));
	if (!same || !before->racy)
		efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
	efuse_content_note(eb, before);
	return same && before->racy;
}

/**
 * efuse_content_shown - a backing file was shown to somebody by another way than a READ
 * @ec: connection
 * @nodeid: of the file
 * @eb: the extent, held
 *
 * FUSE's pages and the data cache show nothing older from now on. Not for exclusive mode.
 */
void efuse_content_shown(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb)
{
	struct efuse_content now;

	efuse_content_look(&now, eb->file);
	if (efuse_content_seen(ec, nodeid, eb, &now))
		efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}

static ssize_t efuse_backing_io(struct efuse_req *req, const struct efuse_backing *eb,
				struct kiocb *kiocb, struct iov_iter *iter)
{
	const struct cred *old = efuse_act_as(eb->cred);
	ssize_t ret;

	ret = req->args->opcode == FUSE_WRITE ? vfs_iocb_iter_write(eb->file, kiocb, iter) :
						vfs_iocb_iter_read(eb->file, kiocb, iter);
	efuse_act_as(old);
	return ret;
}

/* Why a call has failed. */
static enum efuse_stop efuse_stop_of(const struct efuse_req *req, ssize_t err)
{
	if (fatal_signal_pending(current))
		return EFUSE_STOP_SIGNAL;
	/* Only the caller's own buffer can be missing. */
	return err == -EFAULT && req->args->efuse.iter ? EFUSE_STOP_FAULT : EFUSE_STOP_ERROR;
}

/* Does a READ that brought something end where the file ends? False: the next call tells. */
static bool efuse_backing_at_end(const struct efuse_backing *eb, const struct kiocb *kiocb)
{
	return kiocb->ki_pos == i_size_read(file_inode(eb->file));
}

/*
 * Moves what @iter goes over, between it and the extent's file. @done gets the bytes moved, from
 * its start. An append is done in one call, which says where it went.
 */
static enum efuse_stop efuse_backing_move(struct efuse_req *req, const struct efuse_backing *eb,
					  u64 pos, const struct iov_iter *iter, size_t *done)
{
	bool write = req->args->opcode == FUSE_WRITE;
	size_t len = iov_iter_count(iter);
	struct iov_iter rest;
	struct kiocb kiocb;
	ssize_t ret;

	*done = 0;
	init_sync_kiocb(&kiocb, eb->file);
	/* The daemon may have set flags of its descriptor since it was mapped. */
	kiocb.ki_flags &= ~(IOCB_APPEND | IOCB_DIRECT | IOCB_NOWAIT);
	kiocb.ki_flags |= efuse_direct_flags(req, eb);
	kiocb.ki_pos = pos - eb->offset + eb->backing_offset;
	for (;;) {
		rest = *iter;
		iov_iter_advance(&rest, *done);
		ret = efuse_backing_io(req, eb, &kiocb, &rest);
		/* Not aligned as that device wants it. */
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

/* May the kernel write there as the daemon would? */
static bool efuse_direct_writable(struct efuse_req *req, const struct efuse_backing *eb, u64 pos,
				  u64 len)
{
	const struct fuse_write_in *in = efuse_req_in(req->args, sizeof(*in));
	umode_t mode = file_inode(eb->file)->i_mode;
	u64 lower_end = pos + len - eb->offset + eb->backing_offset;
	bool append = efuse_arg_flags(req->args) & O_APPEND;

	if (!(eb->flags & EFUSE_EXTENT_WRITE))
		req->reason = EFUSE_UNMAPPED;
	/* A file system below may append by the flag of the file, whatever the write says. */
	else if (eb->file->f_flags & O_APPEND)
		req->reason = EFUSE_DECLINED;
	/* Those bits fall by the rights of the writer, whom the daemon knows. */
	else if (!in || (in->write_flags & FUSE_WRITE_KILL_SUIDGID &&
			 mode & (S_ISUID | S_ISGID)))
		req->reason = EFUSE_DECLINED;
	/* Only the daemon can make a file longer that is not all in one backing file. */
	else if (!(eb->flags & EFUSE_EXTENT_TO_EOF) &&
		 (pos + len > efuse_inode_size(req->fm, req->args->nodeid) ||
		  (append && !req->ec->fc->writeback_cache)))
		req->reason = EFUSE_DECLINED;
	/* The end of the backing file may be no part of this extent, or lie below another one. */
	else if (append && eb->flags & EFUSE_EXTENT_TO_EOF &&
		 (eb->offset || eb->backing_offset ||
		  efuse_extents_cut(req->ec, req->args->nodeid)))
		req->reason = EFUSE_DECLINED;
	/* The limit of this task is one of the file's positions, which differ. */
	else if (lower_end > rlimit(RLIMIT_FSIZE) &&
		 (eb->offset != eb->backing_offset || efuse_is_write_back(req->args)))
		req->reason = EFUSE_DECLINED;
	else
		return true;
	return false;
}

/* Is all of [pos, pos + len) mapped for writing? */
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
		writable = efuse_direct_writable(req, use->extent, pos, room);
		efuse_extent_end(req->ec, use);
		if (!writable)
			return false;
		pos += room;
		len -= room;
	}
	return true;
}

/*
 * A READ of a range that lies in an extent of fixed length is cut where the file ends, which
 * FUSE knows: the backing file does not. FUSE's page cache and read(2) ask for no more than FUSE
 * believes to be there; what others ask for beyond, the daemon tells.
 */
static enum efuse_stop efuse_direct_cut(struct efuse_req *req, const struct efuse_backing *eb,
					u64 pos, u64 *room)
{
	const struct fuse_args *args = req->args;
	u64 size;

	if (args->opcode != FUSE_READ || eb->flags & EFUSE_EXTENT_TO_EOF)
		return EFUSE_STOP_ALL;
	size = efuse_inode_size(req->fm, args->nodeid);
	if (pos + *room <= size)
		return EFUSE_STOP_ALL;
	if (!args->efuse.iter && !args->page_zeroing) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_STOP_REFUSED;
	}
	if (pos >= size)
		return EFUSE_STOP_EOF;
	*room = size - pos;
	return EFUSE_STOP_ALL;
}

/* May the held extent take [pos, pos + room) of the request? @room may become less. */
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
	/* Looked at for each piece: another may have been mapped since the WRITE began. */
	if (req->args->opcode == FUSE_WRITE && !efuse_direct_writable(req, eb, pos, *room))
		return EFUSE_STOP_REFUSED;
	return efuse_direct_cut(req, eb, pos, room);
}

/* Moves bytes through one extent, which is held. @done gets how many. */
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
	/* What is kept of it could not be told from what it is by then. */
	if (eb->flags & EFUSE_EXTENT_SEALED)
		req->args->efuse.unkept = true;
	efuse_data_next(data, &span, &iter, room);
	if (req->args->opcode == FUSE_WRITE)
		return efuse_backing_move(req, eb, pos, &iter, done);

	/* In exclusive mode nobody but this mount changes the file, and that is counted already. */
	watched = READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE;
	if (watched)
		efuse_content_look(&before, eb->file);
	stop = efuse_backing_move(req, eb, pos, &iter, done);
	efuse_backing_accessed(req->ec, req->args->nodeid, inode, atime);
	if (!efuse_sealed(eb)) {
		req->reason = EFUSE_STALE;
		return EFUSE_STOP_REFUSED;
	}
	/* That there is nothing was seen as well. */
	if (watched && (*done || stop == EFUSE_STOP_EOF))
		req->racy |= efuse_content_seen(req->ec, req->args->nodeid, eb, &before);
	/* Only the daemon knows what lies behind a backing file that ends within its extent. */
	if (stop == EFUSE_STOP_EOF && !(eb->flags & EFUSE_EXTENT_TO_EOF)) {
		req->reason = EFUSE_FAILED;
		return EFUSE_STOP_REFUSED;
	}
	return stop;
}

/* Returns the bytes moved, from the start of the request; req->stop says why not more. */
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
		/* A WRITE is not begun unless all of it can go on: first, what lies elsewhere. */
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

/* A signal has ended the request before any of it was done. It is not the daemon's to try. */
static bool efuse_direct_killed(struct efuse_req *req)
{
	req->ret = -EINTR;
	req->error = -EINTR;
	return true;
}

/**
 * efuse_direct_shown - a READ has brought what it read from backing files
 * @req: the READ
 *
 * Where it goes past FUSE's pages, these may be older than what the caller has seen. Of a caller's
 * own buffer, file_io.c drops those of the range.
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
 * Into the caller's own buffer a READ may bring fewer bytes than it was asked for, and the
 * caller goes on. Elsewhere that would mean that the file ends there.
 *
 * Context: process context; may sleep.
 * Return: whether it is answered; @req->ret is what the caller gets, @req->stop why not more.
 */
bool efuse_direct_read(struct efuse_req *req)
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

/**
 * efuse_direct_write - WRITE into backing files
 * @req: the WRITE
 *
 * What could be written only in part is a short write, as it would be of the daemon; but
 * of write-back, whose pages are clean by then, the daemon gets all of it once more.
 *
 * Context: process context; may sleep.
 * Return: whether it is answered; @req->ret is what the caller gets, @req->stop why not more.
 */
bool efuse_direct_write(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_write_out *out = args->out_args[0].value;
	size_t len = efuse_arg_size(args);
	size_t done = efuse_direct_move(req, efuse_arg_offset(args), len);

	if (done)
		req->ended = args->nodeid;
	/* FUSE has it in pages where it believed the file to end. */
	if (req->appended && req->appended != efuse_arg_offset(args) + done && !args->efuse.iter)
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
