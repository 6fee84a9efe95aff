// SPDX-License-Identifier: GPL-2.0
/*
 * Extents: which ranges of a file lie in which backing files. The daemon maps them by ioctl(2).
 * Nothing else makes a byte of a backing file reachable.
 *
 * The extents of a file are a maple tree of ranges. It is changed under the connection's
 * extents_mutex and walked under RCU. I/O holds the one extent that it goes through:
 * efuse_extent_begin() finds and holds the extent, efuse_extent_end() lets go of it. A later extent
 * may cut an earlier one in two, so an extent may have several ranges of the tree. It counts them.
 *
 * A change of the tree waits for all I/O through the extents that it replaces. For this purpose an
 * extent is held by a use (struct efuse_use), which counts its holders. A use is over when the
 * extent leaves the tree or loses one of its ranges. If the extent has ranges left, it gets a new
 * use for I/O that begins from then on. Each change of the tree is counted, and I/O that has found
 * an extent looks again if the count has changed. So no I/O holds an extent for a range that the
 * extent has lost. The uses of an extent end in the order in which they were over: a holder from
 * before the last change but one may still move bytes of the range that the last change took. The
 * file of an extent is closed when the last use has ended.
 *
 * A nodeid names an inode only while the kernel holds it. Its extents end when the kernel forgets
 * the inode, and again when the daemon reads that FORGET: until then nothing can be mapped for the
 * nodeid.
 */
#include "io_i.h"

#include <linux/backing-dev.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs_stack.h>
#include <linux/iversion.h>
#include <linux/maple_tree.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

#define EFUSE_EXTENT_FLAGS	(EFUSE_EXTENT_WRITE | EFUSE_EXTENT_TO_EOF |	\
				 EFUSE_EXTENT_SEALED | EFUSE_EXTENT_NEW)

/* Workers that close the files of extents that were held when they ended. */
static struct workqueue_struct *efuse_reap_queue;

/**
 * struct efuse_backed - a file with extents
 * @extents: struct efuse_backing by offset in the file; changed under the connection's
 *         extents_mutex
 * @only: the extent if a single one covers the whole file, else NULL; it makes warm READs faster
 * @version: version of the file's content; extents of an earlier version are void
 * @changes: number of changes of the tree so far
 * @rcu: for freeing
 */
struct efuse_backed {
	struct maple_tree extents;
	struct efuse_backing *only;
	u64 version;
	unsigned long changes;
	struct rcu_head rcu;
};

/* Changing the tree. */

/*
 * Locks extents_mutex. While it is held, memory reclaim must not enter a file system: it could
 * evict an inode of this mount, which takes extents_mutex to end the inode's extents. Lock order:
 * the connection's killsb before extents_mutex.
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

/* Holding an extent. */

/**
 * struct efuse_replaced - what remains to be done after a change of the tree
 * @over: uses that are over and have to be waited for
 * @spare: allocated uses, for extents that the change cuts
 * @nr_spare: number of uses in @spare
 */
struct efuse_replaced {
	struct efuse_use *over;
	struct efuse_use *spare;
	int nr_spare;
};

/*
 * Counts a holder. Counts are per CPU, with separate counters for begin and end, because a task may
 * end on another CPU than it began on. The task that changes the tree and the holder each write
 * their own word, issue a full barrier and read the other's.
 */
static void efuse_use_begin(struct efuse_use *use)
{
	this_cpu_inc(use->counts->begun);
	smp_mb(); /* Pairs with efuse_uses_over(). */
}

/* Is the extent held by no task through this use? */
static bool efuse_use_quiet(const struct efuse_use *use)
{
	u64 begun = 0, ended = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		ended += READ_ONCE(per_cpu_ptr(use->counts, cpu)->ended);
	smp_mb(); /* A holder that was counted as ended is also counted as begun. */
	for_each_possible_cpu(cpu)
		begun += READ_ONCE(per_cpu_ptr(use->counts, cpu)->begun);
	return begun == ended;
}

/**
 * efuse_extent_end - let go of an extent
 * @ec: connection
 * @use: the use that efuse_extent_begin() returned
 *
 * Context: any that efuse_extent_begin() may be called in.
 */
void efuse_extent_end(struct efuse_conn *ec, struct efuse_use *use)
{
	/* The use is freed by RCU: its memory stays until the end of the section. */
	rcu_read_lock();
	smp_mb(); /* After everything that was done through the extent. */
	this_cpu_inc(use->counts->ended);
	smp_mb(); /* Pairs with efuse_uses_over(). */
	if (unlikely(READ_ONCE(use->over)))
		wake_up_all(&ec->extents_wait);
	rcu_read_unlock();
}

static void efuse_use_reap(struct work_struct *work);

static struct efuse_use *efuse_use_new(void)
{
	struct efuse_use *use = kzalloc(sizeof(*use), GFP_KERNEL_ACCOUNT);

	if (!use)
		return NULL;
	use->counts = alloc_percpu_gfp(struct efuse_use_count, GFP_KERNEL_ACCOUNT);
	if (!use->counts) {
		kfree(use);
		return NULL;
	}
	INIT_WORK(&use->reap, efuse_use_reap);
	return use;
}

static void efuse_use_free(struct rcu_head *rcu)
{
	struct efuse_use *use = container_of(rcu, struct efuse_use, rcu);

	free_percpu(use->counts);
	kfree(use);
}

/* Closes the file of an extent that has no uses left, or was never used. */
static void efuse_backing_release(struct efuse_backing *eb)
{
	struct efuse_conn *ec = eb->ec;

	/*
	 * Close the file synchronously: after unmounting this mount, user space may unmount the
	 * file system below.
	 */
	__fput_sync(eb->file);
	put_cred(eb->cred);
	kfree_rcu(eb, rcu);
	/* The connection is freed by RCU: its memory stays until the end of the section. */
	rcu_read_lock();
	if (atomic_dec_and_test(&ec->extents_open))
		wake_up_all(&ec->extents_wait);
	rcu_read_unlock();
}

/*
 * Have the use and all earlier uses of its extent ended? Once true for a use that is over, this
 * stays true.
 */
static bool efuse_use_ended(const struct efuse_use *use)
{
	/* Pairs with efuse_use_release(): everything done through earlier uses comes before. */
	return smp_load_acquire(&use->extent->ended) == use->number && efuse_use_quiet(use);
}

/* Releases a use that has ended or never began. The extent's last use releases the extent. */
static void efuse_use_release(struct efuse_use *use)
{
	struct efuse_backing *eb = use->extent;

	/*
	 * Lets the next use end. The connection stays allocated as long as this use is counted in
	 * eb->uses.
	 */
	smp_store_release(&eb->ended, use->number + 1);
	wake_up_all(&eb->ec->extents_wait);
	call_rcu(&use->rcu, efuse_use_free);
	if (refcount_dec_and_test(&eb->uses))
		efuse_backing_release(eb);
}

static void efuse_use_reap(struct work_struct *work)
{
	struct efuse_use *use = container_of(work, struct efuse_use, reap);

	wait_event(use->extent->ec->extents_wait, efuse_use_ended(use));
	efuse_use_release(use);
}

/* Hands uses to workers, where the caller cannot wait or must not enter a file system. */
static void efuse_uses_reap(struct efuse_use *over)
{
	struct efuse_use *next;

	for (; over; over = next) {
		next = over->next;
		queue_work(efuse_reap_queue, &over->reap);
	}
}

/* The link to a use of the list that has ended, or NULL. */
static struct efuse_use **efuse_uses_ended(struct efuse_use **over)
{
	for (; *over; over = &(*over)->next)
		if (efuse_use_ended(*over))
			return over;
	return NULL;
}

/*
 * Waits until no task holds the extents through these uses. If the caller is killed, workers wait
 * instead.
 *
 * Each use is released as soon as it has ended, even while others are in progress: the list may
 * hold the next use of the same extent, and another change of the tree may wait for this one.
 */
static int efuse_uses_wait(struct efuse_conn *ec, struct efuse_use *over)
{
	struct efuse_use **at, *use;
	int err;

	while (over) {
		err = wait_event_killable(ec->extents_wait, (at = efuse_uses_ended(&over)));
		if (err) {
			efuse_uses_reap(over);
			return err;
		}
		use = *at;
		*at = use->next;
		efuse_use_release(use);
	}
	return 0;
}

/*
 * Allocates the spare uses that a change lacked. If *@err is positive, it is the number needed.
 * Returns true if the change can be tried again. Must not be called under extents_mutex.
 */
static bool efuse_replaced_grow(struct efuse_replaced *replaced, int *err)
{
	struct efuse_use *use;

	if (*err <= 0)
		return false;
	while (replaced->nr_spare < *err) {
		use = efuse_use_new();
		if (!use) {
			*err = -ENOMEM;
			return false;
		}
		use->next = replaced->spare;
		replaced->spare = use;
		replaced->nr_spare++;
	}
	return true;
}

/*
 * Finishes a change that was made, or was refused with @err: waits for the I/O through what was
 * replaced, and frees unneeded spare uses. Returns @err if it is not 0, else 0, or -ERESTARTSYS if
 * the caller was killed.
 */
static int efuse_replaced_wait(struct efuse_conn *ec, struct efuse_replaced *replaced, int err)
{
	int err_wait = efuse_uses_wait(ec, replaced->over);
	struct efuse_use *use;

	while ((use = replaced->spare)) {
		replaced->spare = use->next;
		efuse_use_free(&use->rcu);
	}
	return err ?: err_wait;
}

/*
 * Reads the change counter of a sealed file. False if the file is mapped writable, because stores
 * through a mapping are not counted.
 */
static bool efuse_seal_read(struct file *file, u64 *seal)
{
	struct inode *inode = file_inode(file);

	if (mapping_writably_mapped(file->f_mapping))
		return false;
	*seal = inode_query_iversion(inode);
	return true;
}

/*
 * Reads the change counter for the seal. A write that has begun may have incremented the counter
 * without having changed anything yet. No write is in progress while the inode's lock can be held
 * exclusively, except for direct I/O that dropped the lock; that is counted until it is done.
 */
static bool efuse_seal_take(struct file *file, u64 *seal)
{
	struct inode *inode = file_inode(file);
	bool taken;

	if (!inode_trylock(inode))
		return false;
	taken = !atomic_read(&inode->i_dio_count) && efuse_seal_read(file, seal);
	inode_unlock(inode);
	return taken;
}

/**
 * efuse_device_reads - get the function that counts a file's resident blocks
 * @file: a backing file
 *
 * csd.ko cannot be unloaded while one of its devices is mounted, so the function stays valid while
 * @file is open.
 *
 * Context: process context, may sleep.
 * Return: a function of csd.ko; NULL if the file is on no device of csd.ko or cannot be read
 *         directly
 */
static csd_resident_t efuse_device_reads(const struct file *file)
{
	csd_resident_t (*ask)(const struct file *file) = symbol_get(csd_reads);
	csd_resident_t resident;

	if (!ask)
		return NULL;
	resident = ask(file);
	symbol_put(csd_reads);
	return resident;
}

bool efuse_seal_holds(const struct efuse_backing *eb)
{
	u64 seal;

	return efuse_seal_read(eb->file, &seal) && seal == eb->seal;
}

/*
 * Stacking must end somewhere and must not form a circle: a backing file has to be on a file system
 * of a lower stacking depth than this mount. The depth of this mount is fixed when it is mounted,
 * before anything can be stacked upon it, so whatever lies above is deeper.
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
		/* All writes would go to the end of the file. */
		if (file->f_flags & O_APPEND)
			return -EINVAL;
	}
	/*
	 * Pages that are never written back can be stored to without incrementing the change
	 * counter.
	 */
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
	eb->use = efuse_use_new();
	if (!eb->use)
		goto out_free;
	eb->use->extent = eb;
	refcount_set(&eb->uses, 1);
	eb->ec = ec;
	eb->file = file;
	eb->offset = extent->offset;
	eb->backing_offset = extent->backing_offset;
	eb->flags = extent->flags;
	eb->ends = extent->flags & EFUSE_EXTENT_TO_EOF;
	eb->ranges = 1;
	eb->resident = efuse_device_reads(file);
	spin_lock_init(&eb->content_lock);
	efuse_content_look(&eb->content, file);
	err = -ETXTBSY;
	if (eb->flags & EFUSE_EXTENT_SEALED && !efuse_seal_take(file, &eb->seal))
		goto out_free_use;
	eb->cred = get_current_cred();
	atomic_inc(&ec->extents_open);
	return eb;

out_free_use:
	efuse_use_free(&eb->use->rcu);
out_free:
	kfree(eb);
out_put:
	fput(file);
	return ERR_PTR(err);
}

/*
 * Voids what is kept of a file whose extents have changed. Called after the change: a request
 * issued after the change of the epochs finds the new extents.
 */
static void efuse_backed_changed(struct efuse_conn *ec, u64 nodeid)
{
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}

/* By how many does storing over [first, last] reduce the number of ranges of the extent at @mas? */
static int efuse_range_cut(const struct ma_state *mas, unsigned long first, unsigned long last)
{
	return 1 - (mas->index < first) - (mas->last > last);
}

/*
 * Prepares for storing over [first, last]. Lists the extents there in @touched, each once, and
 * takes the ranges from them. Returns the number of listed extents that have other ranges left.
 */
static int efuse_backed_touch(struct efuse_backed *file, unsigned long first,
			      unsigned long last, struct efuse_backing **touched)
{
	MA_STATE(mas, &file->extents, first, first);
	struct efuse_backing *eb;
	int nr = 0;

	*touched = NULL;
	rcu_read_lock();
	mas_for_each(&mas, eb, last) {
		eb->ranges -= efuse_range_cut(&mas, first, last);
		if (eb->touched)
			continue;
		eb->touched = true;
		eb->next_touched = *touched;
		*touched = eb;
	}
	rcu_read_unlock();
	for (eb = *touched; eb; eb = eb->next_touched)
		nr += eb->ranges > 0;
	return nr;
}

/* Undoes efuse_backed_touch(), because nothing was stored. */
static void efuse_backed_untouch(struct efuse_backed *file, unsigned long first,
				 unsigned long last, struct efuse_backing *touched)
{
	MA_STATE(mas, &file->extents, first, first);
	struct efuse_backing *eb;

	rcu_read_lock();
	mas_for_each(&mas, eb, last)
		eb->ranges += efuse_range_cut(&mas, first, last);
	rcu_read_unlock();
	for (; touched; touched = touched->next_touched)
		touched->touched = false;
}

/*
 * Ends the current uses of the extents in @touched after their ranges were stored over. Extents
 * that have ranges left get a spare use.
 */
static void efuse_uses_over(struct efuse_backing *touched, struct efuse_replaced *replaced)
{
	struct efuse_use *use, *next;
	struct efuse_backing *eb;

	for (eb = touched; eb; eb = eb->next_touched) {
		use = eb->use;
		eb->touched = false;
		if (eb->ranges) {
			/* Before the new use: what follows one of the ranges is not known. */
			WRITE_ONCE(eb->ends, false);
			WRITE_ONCE(eb->ec->extents_fixed, true);
			next = replaced->spare;
			replaced->spare = next->next;
			replaced->nr_spare--;
			next->extent = eb;
			next->number = use->number + 1;
			refcount_inc(&eb->uses);
			smp_store_release(&eb->use, next); /* After file->changes. */
		}
		WRITE_ONCE(use->over, true);
		use->next = replaced->over;
		replaced->over = use;
	}
	smp_mb(); /* Pairs with efuse_use_begin() (the change) and efuse_extent_end() (the end). */
}

/*
 * Stores an extent, or if @eb is NULL a range without an extent. Returns 0, a negative errno, or
 * the number of spare uses that @replaced must have for the next try.
 */
static int efuse_backed_store(struct efuse_backed *file, unsigned long first, unsigned long last,
			      struct efuse_backing *eb, struct efuse_replaced *replaced)
{
	struct efuse_backing *touched;
	int nr, err;

	nr = efuse_backed_touch(file, first, last, &touched);
	err = nr > replaced->nr_spare ? nr :
	      mtree_store_range(&file->extents, first, last, eb, GFP_KERNEL);
	if (err) {
		efuse_backed_untouch(file, first, last, touched);
		return err;
	}
	/* Publishes a fully initialised extent, after the tree. */
	smp_store_release(&file->only, !first && last == LLONG_MAX ? eb : NULL);
	/*
	 * After the change of the tree, and before extents get new uses: I/O that found an extent
	 * in the old tree and begins through a new use sees that the tree has changed.
	 */
	smp_store_release(&file->changes, file->changes + 1);
	efuse_uses_over(touched, replaced);
	return 0;
}

/* Removes all extents of a nodeid. */
static void efuse_backed_erase(struct efuse_conn *ec, u64 nodeid, struct efuse_replaced *replaced)
{
	struct efuse_backed *file = xa_erase(&ec->backed, nodeid);
	struct efuse_backing *touched;

	if (!file)
		return;
	WRITE_ONCE(file->only, NULL);
	efuse_backed_touch(file, 0, ULONG_MAX, &touched);
	/* RCU keeps nodes allocated while they are being walked. */
	mtree_destroy(&file->extents);
	efuse_uses_over(touched, replaced);
	kfree_rcu(file, rcu);
}

/* The file's struct efuse_backed, allocated if it does not exist. Under extents_mutex. */
static struct efuse_backed *efuse_backed_get(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backed *file = xa_load(&ec->backed, nodeid);
	int err;

	if (file)
		return file;
	file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
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
 * Stores a range of the content @version. A version greater than the file's voids and removes all
 * that was mapped before. Returns what efuse_backed_store() returns.
 */
static int efuse_backed_change(struct efuse_conn *ec, u64 nodeid, struct efuse_backed *file,
			       u64 first, u64 last, u64 version, struct efuse_backing *eb,
			       struct efuse_replaced *replaced)
{
	bool void_all = version > file->version;
	int err;

	if (void_all) {
		err = efuse_backed_store(file, 0, LLONG_MAX, NULL, replaced);
		if (err)
			return err;
		file->version = version;
	}
	err = efuse_backed_store(file, first, last, eb, replaced);
	if (!err || void_all)
		efuse_backed_changed(ec, nodeid);
	return err;
}

/*
 * Does the nodeid stand for an inode, or, if @new, may the daemon hand it out now? After the kernel
 * has forgotten an inode, its nodeid stands for the forgotten inode until the daemon has read the
 * last FORGET.
 */
static bool efuse_nodeid_stands(struct efuse_conn *ec, u64 nodeid, bool new)
{
	return efuse_inode_alive(ec, nodeid) || (new && !efuse_identity_ends(ec, nodeid));
}

/*
 * Checks a change of a nodeid's extents. @mark is the result of efuse_identity_mark() before the
 * change. If a FORGET of the nodeid, or of another one of the same bucket, was queued or read
 * meanwhile, the extents may belong to an inode that is gone: all of them are removed.
 */
static int efuse_backed_settle(struct efuse_conn *ec, u64 nodeid, u64 mark,
			       struct efuse_replaced *replaced)
{
	if (efuse_identity_mark(ec, nodeid) == mark)
		return 0;
	efuse_backed_erase(ec, nodeid, replaced);
	return -ESTALE;
}

/*
 * Tries to map an extent once. Returns 0, a negative errno, or the number of spare uses that
 * @replaced must have for the next try. @stored is set to whether the extent came into the tree.
 */
static int efuse_map_try(struct efuse_conn *ec, const struct efuse_extent *extent,
			 struct efuse_backing *eb, struct efuse_replaced *replaced, bool *stored)
{
	struct efuse_backed *file;
	unsigned int flags;
	int err = -ESTALE;
	u64 mark;

	*stored = false;
	/*
	 * The holder of killsb may wait for the daemon: a notification waits for the lock of a
	 * directory.
	 */
	if (!down_read_trylock(&ec->fc->killsb))
		return -EAGAIN;
	flags = efuse_extents_lock(ec);
	if (eb->resident)
		WRITE_ONCE(ec->on_device, true);
	if (!(eb->flags & EFUSE_EXTENT_TO_EOF))
		WRITE_ONCE(ec->extents_fixed, true);
	mark = efuse_identity_mark(ec, extent->nodeid);
	if (ec->extents_ended)
		err = -ENOTCONN;
	if (ec->extents_ended ||
	    !efuse_nodeid_stands(ec, extent->nodeid, extent->flags & EFUSE_EXTENT_NEW))
		goto out;
	file = efuse_backed_get(ec, extent->nodeid);
	err = PTR_ERR_OR_ZERO(file);
	if (!err && extent->version < file->version)
		err = -ESTALE;
	if (!err)
		err = efuse_backed_change(ec, extent->nodeid, file, extent->offset,
					  efuse_range_last(extent->offset, extent->length),
					  extent->version, eb, replaced);
	*stored = !err;
	if (!err)
		err = efuse_backed_settle(ec, extent->nodeid, mark, replaced);
out:
	efuse_extents_unlock(ec, flags);
	up_read(&ec->fc->killsb);
	return err;
}

static int efuse_map(struct efuse_conn *ec, const struct efuse_extent *extent)
{
	struct efuse_replaced replaced = {};
	struct efuse_backing *eb;
	bool stored;
	int err;

	err = efuse_extent_check(extent);
	if (!err && extent->flags & EFUSE_EXTENT_WRITE)
		err = efuse_deferred_prepare(ec);
	if (err)
		return err;
	eb = efuse_backing_new(ec, extent);
	if (IS_ERR(eb))
		return PTR_ERR(eb);

	do {
		err = efuse_map_try(ec, extent, eb, &replaced, &stored);
	} while (efuse_replaced_grow(&replaced, &err));
	if (!stored)
		efuse_use_release(eb->use);
	return efuse_replaced_wait(ec, &replaced, err);
}

/*
 * Tries to unmap a range once. Returns 0, a negative errno, or the number of spare uses that
 * @replaced must have for the next try.
 */
static int efuse_unmap_try(struct efuse_conn *ec, const struct efuse_unmap *range,
			   struct efuse_replaced *replaced)
{
	struct efuse_backed *file;
	unsigned int flags;
	bool alive, held;
	int err = 0;
	u64 mark;

	/* Not waited for, for the reason in efuse_map_try(). */
	held = down_read_trylock(&ec->fc->killsb);
	flags = efuse_extents_lock(ec);
	mark = efuse_identity_mark(ec, range->nodeid);
	/* No version is kept for a nodeid that the kernel does not hold. */
	alive = !held || efuse_inode_alive(ec, range->nodeid);
	file = range->version && alive ?
	       efuse_backed_get(ec, range->nodeid) : xa_load(&ec->backed, range->nodeid);
	if (IS_ERR(file))
		err = PTR_ERR(file);
	else if (file)
		err = efuse_backed_change(ec, range->nodeid, file, range->offset,
					  efuse_range_last(range->offset, range->length),
					  range->version, NULL, replaced);
	/* If this removes all extents, more was unmapped than asked for, which is no error. */
	if (file && !err)
		efuse_backed_settle(ec, range->nodeid, mark, replaced);
	efuse_extents_unlock(ec, flags);
	if (held)
		up_read(&ec->fc->killsb);
	return err;
}

static int efuse_unmap(struct efuse_conn *ec, const struct efuse_unmap *range)
{
	struct efuse_replaced replaced = {};
	int err;

	if (!range->nodeid)
		return -EINVAL;
	if (range->offset > LLONG_MAX || range->length > LLONG_MAX - range->offset)
		return -EOVERFLOW;

	do {
		err = efuse_unmap_try(ec, range, &replaced);
	} while (efuse_replaced_grow(&replaced, &err));
	return efuse_replaced_wait(ec, &replaced, err);
}

/* Replaces the present daemon's nodeid by the kernel's. */
static bool efuse_nodeid_known(struct efuse_conn *ec, u64 *nodeid)
{
	*nodeid = efuse_nodeid_kernel(ec->fc, *nodeid);
	return *nodeid;
}

/**
 * efuse_extents_ioctl - EFUSE_IOC_MAP and EFUSE_IOC_UNMAP
 * @ec: connection
 * @cmd: EFUSE_IOC_MAP or EFUSE_IOC_UNMAP
 * @argp: struct efuse_extent or struct efuse_unmap of the daemon
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
long efuse_extents_ioctl(struct efuse_conn *ec, unsigned int cmd, void __user *argp)
{
	struct efuse_extent extent;
	struct efuse_unmap range;
	bool known;

	/*
	 * FUSE requires the same for its own backing files: files held by the kernel show up in no
	 * list of open files.
	 */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (cmd == EFUSE_IOC_MAP) {
		if (copy_from_user(&extent, argp, sizeof(extent)))
			return -EFAULT;
		known = !extent.nodeid || efuse_nodeid_known(ec, &extent.nodeid);
		return known ? efuse_map(ec, &extent) : -ESTALE;
	}
	if (copy_from_user(&range, argp, sizeof(range)))
		return -EFAULT;
	known = !range.nodeid || efuse_nodeid_known(ec, &range.nodeid);
	return known ? efuse_unmap(ec, &range) : 0;
}

/*
 * The extent that the byte at @pos lies in, not held. @length is set to the number of bytes from
 * @pos to the end of its range. Under RCU.
 */
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

/* Why no extent was found. */
static enum efuse_counter efuse_extent_absent(const struct efuse_backed *file)
{
	/* The content has a newer version, for which this range is not mapped yet. */
	return file && READ_ONCE(file->version) ? EFUSE_STALE : EFUSE_UNMAPPED;
}

/**
 * efuse_extent_begin - find the extent that a byte of a file lies in, and hold it
 * @req: a request for the file
 * @pos: offset of the byte in the file
 * @length: set to the number of bytes from @pos on that lie in the extent
 *
 * A change that takes this byte from the extent waits until efuse_extent_end().
 *
 * Context: process context.
 * Return: the use by which the extent is held; NULL if the daemon has to be asked, then
 *         @req->reason tells why
 */
struct efuse_use *efuse_extent_begin(struct efuse_req *req, u64 pos, u64 *length)
{
	struct efuse_conn *ec = req->ec;
	struct efuse_use *use = NULL;
	struct efuse_backing *eb;
	struct efuse_backed *file;
	unsigned long changes;

	rcu_read_lock();
	while ((file = xa_load(&ec->backed, req->args->nodeid))) {
		changes = smp_load_acquire(&file->changes); /* Pairs with efuse_backed_store(). */
		eb = efuse_backed_find(file, pos, length);
		if (!eb)
			break;
		use = READ_ONCE(eb->use);
		efuse_use_begin(use);
		if (READ_ONCE(file->changes) == changes && !READ_ONCE(use->over))
			break;
		/* Look again, for what is there now. */
		efuse_extent_end(ec, use);
		use = NULL;
	}
	if (!use)
		req->reason = efuse_extent_absent(file);
	rcu_read_unlock();
	if (!use)
		return NULL;
	eb = use->extent;
	if (!efuse_sealed(eb))
		req->reason = EFUSE_STALE;
	else if (file_inode(eb->file)->i_sb->s_stack_depth >= req->fm->sb->s_stack_depth)
		req->reason = EFUSE_DECLINED;
	else
		return use;
	efuse_extent_end(ec, use);
	return NULL;
}

/* Does FUSE determine the end of a file with extents, and not a backing file? */
static bool efuse_extents_cut(struct efuse_conn *ec, u64 nodeid)
{
	const struct efuse_backed *file;
	bool cut;

	rcu_read_lock();
	file = xa_load(&ec->backed, nodeid);
	/*
	 * A single extent that begins at offset 0 and covers the whole file has no length of its
	 * own.
	 */
	cut = file && !READ_ONCE(file->only);
	rcu_read_unlock();
	return cut;
}

/**
 * efuse_extents_size - find out where a file ends that a backing file does not end
 * @ec: connection
 * @file: the file
 * @end: the file has to be as long as that for the caller, in bytes; 0 if any size will do
 * @asked: set if the daemon was asked, and nothing has crossed its answer
 *
 * Extents of fixed length do not tell where the file ends. So the daemon is asked if that is not
 * known; or, as FUSE does, if a read goes beyond the end. The answer may have no timeout.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int efuse_extents_size(struct efuse_conn *ec, struct file *file, u64 end, bool *asked)
{
	struct inode *inode = file_inode(file);
	u64 nodeid = get_node_id(inode), size;

	if (!READ_ONCE(ec->extents_fixed) || !efuse_extents_cut(ec, nodeid))
		return 0;
	if (!efuse_size_told(ec, get_fuse_mount(inode), NULL, nodeid, &size))
		return efuse_size_ask(file, asked);
	return end <= size ? 0 : fuse_update_attributes(inode, file, STATX_SIZE);
}

/**
 * efuse_extents_forget - end the extents of a nodeid that may come back as another file
 * @ec: connection
 * @nodeid: the nodeid
 *
 * Context: process context, may sleep; possibly in memory reclaim.
 */
void efuse_extents_forget(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_replaced replaced = {};
	unsigned int flags;

	/* Most nodeids have none. A later EFUSE_IOC_MAP sees that the nodeid is forgotten. */
	if (!xa_load(&ec->backed, nodeid))
		return;
	flags = efuse_extents_lock(ec);
	efuse_backed_erase(ec, nodeid, &replaced);
	efuse_extents_unlock(ec, flags);
	efuse_uses_reap(replaced.over);
}

void efuse_extents_add(struct efuse_conn *ec)
{
	mutex_init(&ec->extents_mutex);
	init_waitqueue_head(&ec->extents_wait);
	xa_init_flags(&ec->backed, XA_FLAGS_ACCOUNT);
}

/* Ends all extents of an unmounted connection. Nothing can be mapped afterwards. */
void efuse_extents_clear(struct efuse_conn *ec)
{
	unsigned int flags = efuse_extents_lock(ec);
	struct efuse_backed *file;
	unsigned long nodeid;

	ec->extents_ended = true;
	efuse_extents_unlock(ec, flags);
	xa_for_each(&ec->backed, nodeid, file)
		efuse_extents_forget(ec, nodeid);
}

/*
 * Waits until the backing files of an unmounted connection are closed. A killed caller stops
 * waiting, because a file system below may be frozen.
 */
void efuse_extents_settle(struct efuse_conn *ec)
{
	(void)wait_event_killable(ec->extents_wait, !atomic_read(&ec->extents_open));
}

/* Called after the last reference to the connection is gone. */
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
