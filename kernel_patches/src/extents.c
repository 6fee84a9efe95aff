// SPDX-License-Identifier: GPL-2.0
/*
 * Extents: which ranges of which files lie in which backing files. The daemon maps
 * them by ioctl(2); nothing but that makes a byte of a backing file reachable.
 *
 * A file's extents are a maple tree of ranges, changed under the connection's
 * extents_mutex and walked under RCU. I/O holds the one extent that it goes through:
 * efuse_extent_begin() finds and holds it, efuse_extent_end() lets it go. An extent that
 * leaves the tree lets nobody begin any more, and its file is closed when the last
 * holder has ended. An extent may stand in several ranges, since a later one may have
 * cut it in two; it counts them.
 *
 * A nodeid names an inode only while the kernel holds it. Its extents end when the
 * kernel forgets the inode, and again when the daemon reads that FORGET: until then
 * nothing can be mapped for it.
 */
#include "efuse_i.h"

#include <linux/backing-dev.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs_stack.h>
#include <linux/iversion.h>
#include <linux/maple_tree.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

#define EFUSE_EXTENT_FLAGS	(EFUSE_EXTENT_WRITE | EFUSE_EXTENT_TO_EOF |	\
				 EFUSE_EXTENT_SEALED | EFUSE_EXTENT_NEW)

/* Closes files of extents that were in use when they ended. */
static struct workqueue_struct *efuse_reap_queue;

/**
 * struct efuse_backed - a file with extents
 * @extents: struct efuse_backing by offset; written under the connection's extents_mutex
 * @only: the extent that is all of them, if one is; to find it is most of a warm READ
 * @version: extents of an earlier one are void
 * @rcu: for freeing
 */
struct efuse_backed {
	struct maple_tree extents;
	struct efuse_backing *only;
	u64 version;
	struct rcu_head rcu;
};

/* Holding an extent. */

/*
 * Holders are counted per CPU, those that began and those that ended apart, since a task
 * may end on another CPU. Nobody begins once @gone is set: each side writes its own word,
 * issues a full barrier and reads the other's.
 */
static bool efuse_backing_begin(struct efuse_backing *eb)
{
	this_cpu_inc(eb->use->begun);
	smp_mb(); /* Pairs with efuse_backings_leave(). */
	return !READ_ONCE(eb->gone);
}

/* Is the extent held by nobody? Once it is gone, that stays so. */
static bool efuse_backing_quiet(const struct efuse_backing *eb)
{
	u64 begun = 0, ended = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		ended += READ_ONCE(per_cpu_ptr(eb->use, cpu)->ended);
	smp_mb(); /* A holder counted as ended is counted as begun. */
	for_each_possible_cpu(cpu)
		begun += READ_ONCE(per_cpu_ptr(eb->use, cpu)->begun);
	return begun == ended;
}

/**
 * efuse_extent_end - let go of an extent
 * @ec: connection
 * @eb: the extent, from efuse_extent_begin()
 *
 * Context: any that efuse_extent_begin() may be called in.
 */
void efuse_extent_end(struct efuse_conn *ec, struct efuse_backing *eb)
{
	/* Until the end of the section the extent's memory stays. */
	rcu_read_lock();
	smp_mb(); /* What was done through the extent comes before. */
	this_cpu_inc(eb->use->ended);
	smp_mb(); /* Pairs with efuse_backings_leave(). */
	if (unlikely(READ_ONCE(eb->gone)))
		wake_up_all(&ec->extents_wait);
	rcu_read_unlock();
}

static void efuse_backing_free(struct rcu_head *rcu)
{
	struct efuse_backing *eb = container_of(rcu, struct efuse_backing, rcu);

	free_percpu(eb->use);
	kfree(eb);
}

/* Close the file of an extent that nobody holds, or never held. */
static void efuse_backing_release(struct efuse_backing *eb)
{
	struct efuse_conn *ec = eb->ec;

	/* At once: whoever unmounts ours may unmount the backing file's file system next. */
	__fput_sync(eb->file);
	put_cred(eb->cred);
	call_rcu(&eb->rcu, efuse_backing_free);
	/* Until the end of the section the connection's memory stays. */
	rcu_read_lock();
	if (atomic_dec_and_test(&ec->extents_open))
		wake_up_all(&ec->extents_wait);
	rcu_read_unlock();
}

static void efuse_backing_reap(struct work_struct *work)
{
	struct efuse_backing *eb = container_of(work, struct efuse_backing, reap);

	wait_event(eb->ec->extents_wait, efuse_backing_quiet(eb));
	efuse_backing_release(eb);
}

/* A worker is to close the files: the caller cannot wait, or must not enter a file system. */
static void efuse_backings_reap(struct efuse_backing *gone)
{
	struct efuse_backing *next;

	for (; gone; gone = next) {
		next = gone->next_gone;
		queue_work(efuse_reap_queue, &gone->reap);
	}
}

/* Extents that stand in no range any more: nobody begins to use them. */
static void efuse_backings_leave(struct efuse_backing *gone)
{
	for (; gone; gone = gone->next_gone)
		WRITE_ONCE(gone->gone, true);
	smp_mb(); /* Pairs with efuse_backing_begin() and efuse_extent_end(). */
}

/*
 * Wait until nobody uses the extents any more, and close their files. A killed caller leaves
 * that to a worker.
 */
static int efuse_backings_wait(struct efuse_conn *ec, struct efuse_backing *gone)
{
	struct efuse_backing *next;
	int err;

	for (; gone; gone = next) {
		next = gone->next_gone;
		err = wait_event_killable(ec->extents_wait, efuse_backing_quiet(gone));
		if (err) {
			efuse_backings_reap(gone);
			return err;
		}
		efuse_backing_release(gone);
	}
	return 0;
}

/* The bytes of the backing file are those of the registration: nobody may hold a way in. */
static bool efuse_seal_read(struct file *file, u64 *seal)
{
	struct inode *inode = file_inode(file);

	if (mapping_writably_mapped(file->f_mapping))
		return false;
	*seal = inode_query_iversion(inode);
	return true;
}

bool efuse_seal_holds(const struct efuse_backing *eb)
{
	u64 seal;

	return efuse_seal_read(eb->file, &seal) && seal == eb->seal;
}

/*
 * Stacked file systems end somewhere, and never in a circle: a backing file lies on a file
 * system of a lower depth than ours. Ours is fixed when it is mounted, before anything can be
 * stacked upon it: what lies above it is deeper.
 */
static int efuse_stack_check(struct efuse_conn *ec, const struct file *file)
{
	const struct super_block *sb = file_inode(file)->i_sb;
	struct fuse_mount *fm;
	bool fits = true;

	if (!down_read_trylock(&ec->fc->killsb))
		return -EAGAIN;
	list_for_each_entry(fm, &ec->fc->mounts, fc_entry)
		fits &= fm->sb && sb != fm->sb && sb->s_stack_depth < fm->sb->s_stack_depth;
	up_read(&ec->fc->killsb);
	return fits ? 0 : -ELOOP;
}

static int efuse_extent_check(const struct efuse_extent *extent)
{
	bool to_eof = extent->flags & EFUSE_EXTENT_TO_EOF;
	u64 length = to_eof ? 1 : extent->length;

	if (extent->flags & ~EFUSE_EXTENT_FLAGS || !extent->nodeid ||
	    (extent->flags & EFUSE_EXTENT_WRITE && extent->flags & EFUSE_EXTENT_SEALED) ||
	    (to_eof && extent->length) || !length)
		return -EINVAL;
	if (extent->offset > LLONG_MAX || extent->backing_offset > LLONG_MAX ||
	    length > LLONG_MAX - extent->offset || length > LLONG_MAX - extent->backing_offset)
		return -EOVERFLOW;
	return 0;
}

static int efuse_backing_check(struct efuse_conn *ec, struct file *file, u32 flags)
{
	if (S_ISDIR(file_inode(file)->i_mode))
		return -EISDIR;
	if (!S_ISREG(file_inode(file)->i_mode))
		return -EINVAL;
	if (!(file->f_mode & FMODE_READ) || !(file->f_mode & FMODE_CAN_READ) ||
	    !file->f_op->read_iter)
		return -EBADF;
	if (flags & EFUSE_EXTENT_WRITE) {
		if (!(file->f_mode & FMODE_WRITE) || !(file->f_mode & FMODE_CAN_WRITE) ||
		    !file->f_op->write_iter)
			return -EBADF;
		/* Its writes would all go to the end. */
		if (file->f_flags & O_APPEND)
			return -EINVAL;
	}
	/* What is not written back has pages that can be stored to without a change that is counted. */
	if (flags & EFUSE_EXTENT_SEALED &&
	    (!IS_I_VERSION(file_inode(file)) || !mapping_can_writeback(file->f_mapping)))
		return -EOPNOTSUPP;
	return efuse_stack_check(ec, file);
}

static struct efuse_backing *efuse_backing_new(struct efuse_conn *ec,
					       const struct efuse_extent *extent)
{
	struct efuse_backing *eb;
	struct file *file;
	int err;

	file = fget(extent->fd);
	if (!file)
		return ERR_PTR(-EBADF);
	err = efuse_backing_check(ec, file, extent->flags);
	if (err)
		goto out_put;
	err = -ENOMEM;
	eb = kzalloc(sizeof(*eb), GFP_KERNEL_ACCOUNT);
	if (!eb)
		goto out_put;
	eb->use = alloc_percpu_gfp(struct efuse_use, GFP_KERNEL_ACCOUNT);
	if (!eb->use)
		goto out_free;
	eb->ec = ec;
	eb->file = file;
	eb->offset = extent->offset;
	eb->backing_offset = extent->backing_offset;
	eb->version = extent->version;
	eb->flags = extent->flags;
	eb->ranges = 1;
	eb->resident = efuse_device_reads(file);
	INIT_WORK(&eb->reap, efuse_backing_reap);
	efuse_content_look(&eb->content, file);
	err = -ETXTBSY;
	if (eb->flags & EFUSE_EXTENT_SEALED && !efuse_seal_read(file, &eb->seal))
		goto out_free;
	eb->cred = get_current_cred();
	atomic_inc(&ec->extents_open);
	return eb;

out_free:
	free_percpu(eb->use);
	kfree(eb);
out_put:
	fput(file);
	return ERR_PTR(err);
}

/*
 * [first, last] is about to be stored over, or (@undo) was not after all: counts the
 * ranges of what stands there. Returns those that are in no range any more.
 */
static struct efuse_backing *efuse_backed_displace(struct efuse_backed *file,
						   unsigned long first, unsigned long last,
						   bool undo)
{
	MA_STATE(mas, &file->extents, first, first);
	struct efuse_backing *eb, *gone = NULL;

	rcu_read_lock();
	mas_for_each(&mas, eb, last) {
		int cut = (mas.index < first) + (mas.last > last) - 1;

		eb->ranges += undo ? -cut : cut;
		if (!eb->ranges) {
			eb->next_gone = gone;
			gone = eb;
		}
	}
	rcu_read_unlock();
	return gone;
}

/*
 * Stores an extent, or (@eb is NULL) a range without any. @gone gets the extents that stand in
 * no range any more.
 */
static int efuse_backed_store(struct efuse_backed *file, unsigned long first, unsigned long last,
			      struct efuse_backing *eb, struct efuse_backing **gone)
{
	int err;

	WRITE_ONCE(file->only, NULL);
	*gone = efuse_backed_displace(file, first, last, false);
	err = mtree_store_range(&file->extents, first, last, eb, GFP_KERNEL);
	if (err) {
		efuse_backed_displace(file, first, last, true);
		*gone = NULL;
		return err;
	}
	if (!first && last == LLONG_MAX)
		smp_store_release(&file->only, eb); /* Whole, with the tree. */
	efuse_backings_leave(*gone);
	return 0;
}

/* Takes all extents of a nodeid out. Returns them. */
static struct efuse_backing *efuse_backed_erase(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backed *file = xa_erase(&ec->backed, nodeid);
	struct efuse_backing *eb, *gone = NULL;
	unsigned long index = 0;

	if (!file)
		return NULL;
	WRITE_ONCE(file->only, NULL);
	mt_for_each(&file->extents, eb, index, ULONG_MAX) {
		if (--eb->ranges)
			continue;
		eb->next_gone = gone;
		gone = eb;
	}
	/* Nodes that are walked now are freed behind the walk. */
	mtree_destroy(&file->extents);
	efuse_backings_leave(gone);
	kfree_rcu(file, rcu);
	return gone;
}

/*
 * Under extents_mutex no memory is got by entering a file system: that may evict an inode
 * of ours, which ends its extents. The connection's killsb is taken before, if at all.
 */
static unsigned int efuse_extents_lock(struct efuse_conn *ec)
{
	unsigned int flags = memalloc_nofs_save();

	mutex_lock(&ec->extents_mutex);
	return flags;
}

static void efuse_extents_unlock(struct efuse_conn *ec, unsigned int flags)
{
	mutex_unlock(&ec->extents_mutex);
	memalloc_nofs_restore(flags);
}

/* The file's extents, made if there are none. Under extents_mutex. */
static struct efuse_backed *efuse_backed_get(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backed *file = xa_load(&ec->backed, nodeid);
	int err;

	if (file)
		return file;
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return ERR_PTR(-ENOMEM);
	mt_init_flags(&file->extents, MT_FLAGS_USE_RCU);
	err = xa_err(xa_store(&ec->backed, nodeid, file, GFP_KERNEL));
	if (err) {
		kfree(file);
		return ERR_PTR(err);
	}
	return file;
}

static u64 efuse_range_last(u64 offset, u64 length)
{
	return length ? offset + length - 1 : LLONG_MAX;
}

/*
 * Extents have changed: blocks that were kept may be of another content. In this order:
 * who reads after the change of the epoch finds the new extents.
 */
static void efuse_backed_changed(struct efuse_conn *ec, u64 nodeid, struct efuse_backed *file,
				 u64 version)
{
	if (version > file->version)
		WRITE_ONCE(file->version, version);
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_WHOLE));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}

static int efuse_backed_map(struct efuse_conn *ec, const struct efuse_extent *extent,
			    struct efuse_backing *eb, struct efuse_backing **gone)
{
	struct efuse_backed *file = efuse_backed_get(ec, extent->nodeid);
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	if (extent->version < file->version)
		return -ESTALE;
	err = efuse_backed_store(file, extent->offset,
				 efuse_range_last(extent->offset, extent->length), eb, gone);
	if (!err)
		efuse_backed_changed(ec, extent->nodeid, file, extent->version);
	return err;
}

/*
 * Does the nodeid stand for an inode, or (@new) is the daemon about to hand it out? Until the
 * daemon has read the last FORGET of a nodeid that the kernel does not hold any more, it stands for
 * the inode that was forgotten.
 */
static bool efuse_nodeid_stands(struct efuse_conn *ec, u64 nodeid, bool new)
{
	return efuse_inode_alive(ec, nodeid) || (new && !efuse_life_ends(ec, nodeid));
}

/*
 * The extents of a nodeid were changed, since when its life was at @mark. If a FORGET of it (or
 * of another nodeid of its bucket) was queued or read meanwhile, they may be of an inode that is
 * no more: all of them leave.
 */
static int efuse_backed_settle(struct efuse_conn *ec, u64 nodeid, u64 mark,
			       struct efuse_backing **gone)
{
	if (efuse_life_mark(ec, nodeid) == mark)
		return 0;
	efuse_backings_reap(*gone);
	*gone = efuse_backed_erase(ec, nodeid);
	return -ESTALE;
}

static int efuse_map(struct efuse_conn *ec, const struct efuse_extent *extent)
{
	struct efuse_backing *eb, *gone = NULL;
	int err, err_wait, stale = 0;
	unsigned int flags;
	u64 mark;

	err = efuse_extent_check(extent);
	if (!err && extent->flags & EFUSE_EXTENT_WRITE)
		err = efuse_later_prepare(ec);
	if (err)
		return err;
	eb = efuse_backing_new(ec, extent);
	if (IS_ERR(eb))
		return PTR_ERR(eb);

	/* Whoever has it may wait for the daemon: a notification for a directory's lock. */
	if (!down_read_trylock(&ec->fc->killsb)) {
		efuse_backing_release(eb);
		return -EAGAIN;
	}
	flags = efuse_extents_lock(ec);
	if (eb->resident)
		WRITE_ONCE(ec->on_device, true);
	mark = efuse_life_mark(ec, extent->nodeid);
	err = efuse_nodeid_stands(ec, extent->nodeid, extent->flags & EFUSE_EXTENT_NEW) ?
	      efuse_backed_map(ec, extent, eb, &gone) : -ESTALE;
	if (!err)
		stale = efuse_backed_settle(ec, extent->nodeid, mark, &gone);
	efuse_extents_unlock(ec, flags);
	up_read(&ec->fc->killsb);

	if (err) {
		efuse_backing_release(eb);
		return err;
	}
	/* Who found what was replaced has done its I/O. */
	err_wait = efuse_backings_wait(ec, gone);
	return stale ?: err_wait;
}

static int efuse_unmap(struct efuse_conn *ec, const struct efuse_unmap *range)
{
	struct efuse_backing *gone = NULL;
	struct efuse_backed *file;
	unsigned int flags;
	bool alive, held;
	int err = 0;
	u64 mark;

	if (!range->nodeid)
		return -EINVAL;
	if (range->offset > LLONG_MAX || range->length > LLONG_MAX - range->offset)
		return -EOVERFLOW;

	/* Not waited for, as in efuse_map(). */
	held = down_read_trylock(&ec->fc->killsb);
	flags = efuse_extents_lock(ec);
	mark = efuse_life_mark(ec, range->nodeid);
	/* What the kernel does not hold has no version to remember. */
	alive = !held || efuse_inode_alive(ec, range->nodeid);
	file = range->version && alive ?
	       efuse_backed_get(ec, range->nodeid) : xa_load(&ec->backed, range->nodeid);
	if (IS_ERR(file)) {
		err = PTR_ERR(file);
	} else if (file) {
		err = efuse_backed_store(file, range->offset,
					 efuse_range_last(range->offset, range->length), NULL,
					 &gone);
		if (!err) {
			efuse_backed_changed(ec, range->nodeid, file, range->version);
			/* That they all left is more than was asked for. */
			efuse_backed_settle(ec, range->nodeid, mark, &gone);
		}
	}
	efuse_extents_unlock(ec, flags);
	if (held)
		up_read(&ec->fc->killsb);

	/* Who found an extent before has done its I/O. */
	return err ?: efuse_backings_wait(ec, gone);
}

/**
 * efuse_extents_ioctl - EFUSE_IOC_MAP and EFUSE_IOC_UNMAP
 * @ec: connection
 * @cmd: which
 * @argp: its argument
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
long efuse_extents_ioctl(struct efuse_conn *ec, unsigned int cmd, void __user *argp)
{
	struct efuse_extent extent;
	struct efuse_unmap range;

	/* As for FUSE's own backing files: they show up in no list of open files. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (cmd == EFUSE_IOC_MAP)
		return copy_from_user(&extent, argp, sizeof(extent)) ? -EFAULT :
		       efuse_map(ec, &extent);
	return copy_from_user(&range, argp, sizeof(range)) ? -EFAULT : efuse_unmap(ec, &range);
}

/* The extent that a byte lies in, not held. Under RCU. */
static struct efuse_backing *efuse_backed_find(struct efuse_backed *file, u64 pos, u64 *length)
{
	MA_STATE(mas, &file->extents, pos, pos);
	/* Pairs with efuse_backed_store(). */
	struct efuse_backing *eb = smp_load_acquire(&file->only);

	if (eb) {
		*length = LLONG_MAX - pos + 1ULL;
		return eb;
	}
	eb = mas_walk(&mas);
	*length = mas.last - pos + 1;
	return eb;
}

/**
 * efuse_extent_begin - find the extent that a byte of a file lies in, and hold it
 * @req: a request for the file
 * @pos: of the byte
 * @length: how many bytes from there on lie in it, too
 *
 * Whoever takes the extent out of the file waits until efuse_extent_end().
 *
 * Context: process context.
 * Return: the extent, or NULL where the daemon has to be asked; @req->reason says why.
 */
struct efuse_backing *efuse_extent_begin(struct efuse_req *req, u64 pos, u64 *length)
{
	struct efuse_conn *ec = req->ec;
	struct efuse_backing *eb = NULL;
	struct efuse_backed *file;
	u64 version = 0;

	rcu_read_lock();
	file = xa_load(&ec->backed, req->args->nodeid);
	while (file) {
		eb = efuse_backed_find(file, pos, length);
		version = READ_ONCE(file->version);
		if (!eb || efuse_backing_begin(eb))
			break;
		/* It left the tree before that was said: the next look finds what is there now. */
		efuse_extent_end(ec, eb);
	}
	rcu_read_unlock();
	if (!eb) {
		req->reason = EFUSE_UNMAPPED;
		return NULL;
	}
	if (eb->version < version || !efuse_sealed(eb))
		req->reason = EFUSE_STALE;
	else if (file_inode(eb->file)->i_sb->s_stack_depth >= req->fm->sb->s_stack_depth)
		req->reason = EFUSE_DECLINED;
	else
		return eb;
	efuse_extent_end(ec, eb);
	return NULL;
}

/**
 * efuse_extents_cut - does a file end where FUSE says, not where a backing file ends?
 * @ec: connection
 * @nodeid: of a file with extents
 */
bool efuse_extents_cut(struct efuse_conn *ec, u64 nodeid)
{
	const struct efuse_backed *file;
	bool cut;

	rcu_read_lock();
	file = xa_load(&ec->backed, nodeid);
	/* One extent from the first byte on that is all of a file has no length of its own. */
	cut = file && !READ_ONCE(file->only);
	rcu_read_unlock();
	return cut;
}

/**
 * efuse_extents_forget - a nodeid may come back as another file
 * @ec: connection
 * @nodeid: which
 *
 * Context: process context, may sleep; perhaps to reclaim memory.
 */
void efuse_extents_forget(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backing *gone;
	unsigned int flags;

	/* Most have none; what is mapped for this nodeid later sees that it is forgotten. */
	if (!xa_load(&ec->backed, nodeid))
		return;
	flags = efuse_extents_lock(ec);
	gone = efuse_backed_erase(ec, nodeid);
	efuse_extents_unlock(ec, flags);
	efuse_backings_reap(gone);
}

void efuse_extents_add(struct efuse_conn *ec)
{
	mutex_init(&ec->extents_mutex);
	init_waitqueue_head(&ec->extents_wait);
	xa_init(&ec->backed);
}

/* The connection is unmounted: nothing is read or written any more. */
void efuse_extents_clear(struct efuse_conn *ec)
{
	struct efuse_backed *file;
	unsigned long nodeid;

	xa_for_each(&ec->backed, nodeid, file)
		efuse_extents_forget(ec, nodeid);
}

/*
 * Waits until the backing files of an unmounted connection are closed. A killed caller does not:
 * a file system below may be frozen.
 */
void efuse_extents_settle(struct efuse_conn *ec)
{
	(void)wait_event_killable(ec->extents_wait, !atomic_read(&ec->extents_open));
}

/* The last reference to the connection is gone. */
void efuse_extents_free(struct efuse_conn *ec)
{
	efuse_extents_clear(ec);
	wait_event(ec->extents_wait, !atomic_read(&ec->extents_open));
	xa_destroy(&ec->backed);
}

/* Module. */

int efuse_extents_init(void)
{
	efuse_reap_queue = alloc_workqueue("efuse_reap", WQ_UNBOUND, 0);
	return efuse_reap_queue ? 0 : -ENOMEM;
}

void efuse_extents_exit(void)
{
	destroy_workqueue(efuse_reap_queue);
}
