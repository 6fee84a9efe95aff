// SPDX-License-Identifier: GPL-2.0
/*
 * Extents: which ranges of which files lie in which backing files. The daemon maps
 * them by ioctl(2); nothing but that makes a byte of a backing file reachable.
 *
 * A file's extents are a maple tree of ranges, changed under the connection's
 * extents_mutex and walked under RCU. I/O holds the one extent that it goes through:
 * efuse_extent_begin() finds and holds it, efuse_extent_end() lets it go. An extent may
 * stand in several ranges, since a later one may have cut it in two; it counts them.
 *
 * Who changes the tree waits for all I/O that has found what was there. So an extent's
 * holders are counted by a use of it. A use is over when the extent leaves the tree, or
 * loses one of its ranges: then it gets a new use, for what begins from now on. Each change
 * of the tree is counted, and who has found an extent looks for one before he goes on:
 * nobody holds an extent for a range that it has lost. The uses of an extent end in the order
 * in which they were over: a holder from before the last change but one may still move bytes
 * of the range that the last change took. The file of an extent is closed when its last use
 * has ended.
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
 * @changes: of the tree, so far
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

/* Holding an extent. */

/**
 * struct efuse_replaced - what a change of the tree leaves to be done
 * @over: uses that are over, to be waited for
 * @spare: uses for extents that the change cuts
 * @nr_spare: how many
 */
struct efuse_replaced {
	struct efuse_use *over;
	struct efuse_use *spare;
	int nr_spare;
};

/*
 * Holders are counted per CPU, those that began and those that ended apart, since a task
 * may end on another CPU. Who changes the tree, and who begins, each writes its own word,
 * issues a full barrier and reads the other's.
 */
static void efuse_use_begin(struct efuse_use *use)
{
	this_cpu_inc(use->counts->begun);
	smp_mb(); /* Pairs with efuse_uses_over(). */
}

/* Does nobody hold the extent by this use? */
static bool efuse_use_quiet(const struct efuse_use *use)
{
	u64 begun = 0, ended = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		ended += READ_ONCE(per_cpu_ptr(use->counts, cpu)->ended);
	smp_mb(); /* A holder counted as ended is counted as begun. */
	for_each_possible_cpu(cpu)
		begun += READ_ONCE(per_cpu_ptr(use->counts, cpu)->begun);
	return begun == ended;
}

/**
 * efuse_extent_end - let go of an extent
 * @ec: connection
 * @use: from efuse_extent_begin()
 *
 * Context: any that efuse_extent_begin() may be called in.
 */
void efuse_extent_end(struct efuse_conn *ec, struct efuse_use *use)
{
	/* Until the end of the section the use's memory stays. */
	rcu_read_lock();
	smp_mb(); /* What was done through the extent comes before. */
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

/* Close the file of an extent that nobody holds, or never held. */
static void efuse_backing_release(struct efuse_backing *eb)
{
	struct efuse_conn *ec = eb->ec;

	/* At once: whoever unmounts ours may unmount the backing file's file system next. */
	__fput_sync(eb->file);
	put_cred(eb->cred);
	kfree_rcu(eb, rcu);
	/* Until the end of the section the connection's memory stays. */
	rcu_read_lock();
	if (atomic_dec_and_test(&ec->extents_open))
		wake_up_all(&ec->extents_wait);
	rcu_read_unlock();
}

/* Has the use ended, and have all earlier ones of its extent? Once it is over, that stays so. */
static bool efuse_use_ended(const struct efuse_use *use)
{
	/* Pairs with efuse_use_release(): what was done by the earlier ones comes before. */
	return smp_load_acquire(&use->extent->ended) == use->number && efuse_use_quiet(use);
}

/* A use that has ended, or never began: its extent's last one lets go of the extent. */
static void efuse_use_release(struct efuse_use *use)
{
	struct efuse_backing *eb = use->extent;

	/* The next one may end. Until this one is counted off, the connection's memory stays. */
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

/* A worker is to close the files: the caller cannot wait, or must not enter a file system. */
static void efuse_uses_reap(struct efuse_use *over)
{
	struct efuse_use *next;

	for (; over; over = next) {
		next = over->next;
		queue_work(efuse_reap_queue, &over->reap);
	}
}

/* Where in the list a use stands that has ended, or NULL. */
static struct efuse_use **efuse_uses_ended(struct efuse_use **over)
{
	for (; *over; over = &(*over)->next)
		if (efuse_use_ended(*over))
			return over;
	return NULL;
}

/*
 * Wait until nobody holds the extents by these uses. A killed caller leaves that to a worker.
 *
 * Each use is released as soon as it has ended, whatever the others wait for: the list may have
 * the next use of the same extent, and another change of the tree may wait for this one.
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
 * Get as many spare uses as the change would have needed (@err, if it is positive). Returns true
 * if the change can be tried again. Not under extents_mutex.
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
 * The change has been made, or (@err) was refused: wait for the I/O through what it replaced, and
 * free the uses that it did not need. Returns @err, or -ERESTARTSYS if the caller was killed.
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

/* The bytes of the backing file are those of the registration: nobody may hold a way in. */
static bool efuse_seal_read(struct file *file, u64 *seal)
{
	struct inode *inode = file_inode(file);

	if (mapping_writably_mapped(file->f_mapping))
		return false;
	*seal = inode_query_iversion(inode);
	return true;
}

/*
 * A write that has begun has counted its change, and may not have changed anything yet: there is
 * none while its lock can be had from all others, but for direct I/O that lets go of it, and is
 * counted until it is done.
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
	/* What is not written back has pages that are stored to without a counted change. */
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
 * Extents have changed: what is kept may be of another content. In this order: who reads after the
 * change of the epochs finds the new extents.
 */
static void efuse_backed_changed(struct efuse_conn *ec, u64 nodeid)
{
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_WHOLE));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}

/* How many ranges fewer does an extent stand in once [first, last] is stored over? */
static int efuse_range_cut(const struct ma_state *mas, unsigned long first, unsigned long last)
{
	return 1 - (mas->index < first) - (mas->last > last);
}

/*
 * [first, last] is about to be stored over. Notes what stands there in a list, each once, and
 * takes the ranges from it. Returns how many of them still stand elsewhere.
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

/* It is not stored over after all. */
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

/* It was stored over: the uses of what was touched are over. */
static void efuse_uses_over(struct efuse_backing *touched, struct efuse_replaced *replaced)
{
	struct efuse_use *use, *next;
	struct efuse_backing *eb;

	for (eb = touched; eb; eb = eb->next_touched) {
		use = eb->use;
		eb->touched = false;
		if (eb->ranges) {
			next = replaced->spare;
			replaced->spare = next->next;
			replaced->nr_spare--;
			next->extent = eb;
			next->number = use->number + 1;
			refcount_inc(&eb->uses);
			smp_store_release(&eb->use, next); /* Behind file->changes. */
		}
		WRITE_ONCE(use->over, true);
		use->next = replaced->over;
		replaced->over = use;
	}
	smp_mb(); /* Pairs with efuse_use_begin() (the change) and efuse_extent_end() (the end). */
}

/*
 * Stores an extent, or (@eb is NULL) a range without any. Returns 0, a negative errno, or how many
 * spare uses @replaced has to have.
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
	/* Whole, with the tree. */
	smp_store_release(&file->only, !first && last == LLONG_MAX ? eb : NULL);
	/*
	 * Behind the tree, and before extents get new uses: who has found one in the tree as it
	 * was, and begins by a new use, sees that the tree has changed.
	 */
	smp_store_release(&file->changes, file->changes + 1);
	efuse_uses_over(touched, replaced);
	return 0;
}

/* Takes all extents of a nodeid out. */
static void efuse_backed_erase(struct efuse_conn *ec, u64 nodeid, struct efuse_replaced *replaced)
{
	struct efuse_backed *file = xa_erase(&ec->backed, nodeid);
	struct efuse_backing *touched;

	if (!file)
		return;
	WRITE_ONCE(file->only, NULL);
	efuse_backed_touch(file, 0, ULONG_MAX, &touched);
	/* Nodes that are walked now are freed behind the walk. */
	mtree_destroy(&file->extents);
	efuse_uses_over(touched, replaced);
	kfree_rcu(file, rcu);
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
 * Stores a range, of the content @version. If that is greater than the file's so far, all that was
 * mapped before is void, and leaves. Returns as efuse_backed_store().
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
			       struct efuse_replaced *replaced)
{
	if (efuse_life_mark(ec, nodeid) == mark)
		return 0;
	efuse_backed_erase(ec, nodeid, replaced);
	return -ESTALE;
}

/*
 * Returns 0, a negative errno, or how many spare uses @replaced has to have for the next try.
 * @stored says whether the extent came into the tree.
 */
static int efuse_map_try(struct efuse_conn *ec, const struct efuse_extent *extent,
			 struct efuse_backing *eb, struct efuse_replaced *replaced, bool *stored)
{
	struct efuse_backed *file;
	unsigned int flags;
	int err = -ESTALE;
	u64 mark;

	*stored = false;
	/* Whoever has it may wait for the daemon: a notification for a directory's lock. */
	if (!down_read_trylock(&ec->fc->killsb))
		return -EAGAIN;
	flags = efuse_extents_lock(ec);
	if (eb->resident)
		WRITE_ONCE(ec->on_device, true);
	mark = efuse_life_mark(ec, extent->nodeid);
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
		err = efuse_later_prepare(ec);
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

/* As efuse_map_try(). */
static int efuse_unmap_try(struct efuse_conn *ec, const struct efuse_unmap *range,
			   struct efuse_replaced *replaced)
{
	struct efuse_backed *file;
	unsigned int flags;
	bool alive, held;
	int err = 0;
	u64 mark;

	/* Not waited for, as in efuse_map_try(). */
	held = down_read_trylock(&ec->fc->killsb);
	flags = efuse_extents_lock(ec);
	mark = efuse_life_mark(ec, range->nodeid);
	/* What the kernel does not hold has no version to remember. */
	alive = !held || efuse_inode_alive(ec, range->nodeid);
	file = range->version && alive ?
	       efuse_backed_get(ec, range->nodeid) : xa_load(&ec->backed, range->nodeid);
	if (IS_ERR(file))
		err = PTR_ERR(file);
	else if (file)
		err = efuse_backed_change(ec, range->nodeid, file, range->offset,
					  efuse_range_last(range->offset, range->length),
					  range->version, NULL, replaced);
	/* That they all left is more than was asked for. */
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

/* Why no extent is found. */
static enum efuse_counter efuse_extent_absent(const struct efuse_backed *file)
{
	/* Of a later content it has not been mapped yet. */
	return file && READ_ONCE(file->version) ? EFUSE_STALE : EFUSE_UNMAPPED;
}

/**
 * efuse_extent_begin - find the extent that a byte of a file lies in, and hold it
 * @req: a request for the file
 * @pos: of the byte
 * @length: how many bytes from there on lie in it, too
 *
 * Whoever takes the extent out of the file, or this byte from it, waits until efuse_extent_end().
 *
 * Context: process context.
 * Return: the use by which its extent is held, or NULL where the daemon has to be asked;
 *         @req->reason says why.
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
		/* The next look finds what is there now. */
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
	struct efuse_replaced replaced = {};
	unsigned int flags;

	/* Most have none; what is mapped for this nodeid later sees that it is forgotten. */
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
	xa_init(&ec->backed);
}

/* The connection is unmounted: nothing is read or written any more, nor mapped. */
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
