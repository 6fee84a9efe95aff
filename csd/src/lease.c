// SPDX-License-Identifier: GPL-2.0
/*
 * Leases: where a file's blocks are, for as long as nobody may write to it.
 *
 * A digest keeps a window of a file in its place by a direct read that is under way; to go from
 * block to block, a digest for each block would cost more than the block. What keeps all of a file
 * in its place is a read lease (fcntl(2), F_SETLEASE), of the kernel's own: on the file systems
 * that chain.c names, blocks are moved for those only who have the file open for writing, or
 * truncate it, and both wait until the lease is given up. So what digests have said in the meantime
 * stays true until then, and is looked up here.
 *
 * A lease that nobody uses just then is given up at once, else when it is not used any more.
 */
#include "csd_i.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/filelock.h>
#include <linux/fs.h>
#include <linux/maple_tree.h>

#define CSD_MOST_PLACES	16384	/* ranges that are remembered of a file */

/**
 * struct csd_lease - a lease on a file, or the wish for one
 * @file: it, opened for this alone: a lease is an open file's
 * @lock: of the next two
 * @held: the lease is ours, and nobody has asked for it
 * @busy: it is used
 * @places: by the number of a block: csd_place_make(); true while the lease is held
 * @nr_places: how often something was stored there
 */
struct csd_lease {
	struct file *file;
	spinlock_t lock;	/* of the next two */
	bool held;
	bool busy;
	struct maple_tree places;
	u32 nr_places;
};

#define CSD_PLACE_MASK	(LONG_MAX >> 1)
#define CSD_NO_PLACE	CSD_PLACE_MASK
#define CSD_SECTORS	(CSD_BLOCK_SIZE / SECTOR_SIZE)	/* of a block */

/* Of blocks that follow each other, the same: how far their sectors are from their numbers. */
static void *csd_place_make(unsigned long index, sector_t sector)
{
	return xa_mk_value((sector - index * CSD_SECTORS) & CSD_PLACE_MASK);
}

static sector_t csd_place_sector(const void *place, unsigned long index)
{
	return (xa_to_value(place) + index * CSD_SECTORS) & CSD_PLACE_MASK;
}

/* Somebody wants to write to the file. Returns whether the lease ends with this. */
static bool csd_lease_break(struct file_lease *fl)
{
	struct csd_lease *lease = fl->c.flc_owner;
	bool busy;

	/* However long it takes: it is given up soon, and not before. */
	fl->fl_break_time = 0;
	spin_lock(&lease->lock);
	lease->held = false;
	busy = lease->busy;
	spin_unlock(&lease->lock);
	return !busy;
}

static int csd_lease_change(struct file_lease *fl, int arg, struct list_head *dispose)
{
	return arg & F_UNLCK ? lease_modify(fl, arg, dispose) : -EAGAIN;
}

static const struct lease_manager_operations csd_lease_ops = {
	.lm_break = csd_lease_break,
	.lm_change = csd_lease_change,
	CSD_OPEN_CONFLICT
};

static void csd_lease_forget(struct csd_lease *lease)
{
	mtree_destroy(&lease->places);
	lease->nr_places = 0;
}

static int csd_lease_set(struct csd_lease *lease)
{
	struct file_lease *fl = locks_alloc_lease();
	int err;

	if (!fl)
		return -ENOMEM;
	fl->c.flc_flags = FL_LEASE;
	fl->c.flc_type = F_RDLCK;
	fl->c.flc_owner = lease;
	fl->c.flc_pid = current->tgid;
	fl->c.flc_file = lease->file;
	fl->fl_lmops = &csd_lease_ops;
	err = kernel_setlease(lease->file, F_RDLCK, &fl, NULL);
	if (fl)
		locks_free_lease(fl);
	return err;
}

static void csd_lease_unset(struct csd_lease *lease)
{
	void *owner = lease;

	kernel_setlease(lease->file, F_UNLCK, NULL, &owner);
}

/**
 * csd_lease_begin - use a lease
 * @lease: that nobody uses
 *
 * Context: process context, may sleep.
 * Return: 0, to be followed by csd_lease_end(), or a negative errno: -EAGAIN: somebody has the
 *         file open for writing
 */
int csd_lease_begin(struct csd_lease *lease)
{
	bool held;
	int err;

	spin_lock(&lease->lock);
	held = lease->held;
	lease->held = true;
	lease->busy = true;
	spin_unlock(&lease->lock);
	if (held)
		return 0;
	/* Somebody could have written to the file meanwhile. */
	csd_lease_forget(lease);
	err = csd_lease_set(lease);
	if (!err)
		return 0;
	spin_lock(&lease->lock);
	lease->held = false;
	lease->busy = false;
	spin_unlock(&lease->lock);
	return err;
}

/**
 * csd_lease_end - use a lease no more; who waits for it, has it
 * @lease: used
 *
 * Context: process context, may sleep.
 */
void csd_lease_end(struct csd_lease *lease)
{
	bool held;

	spin_lock(&lease->lock);
	held = lease->held;
	lease->busy = false;
	spin_unlock(&lease->lock);
	if (!held)
		csd_lease_unset(lease);
}

/**
 * csd_lease_find - where a block of the file is
 * @lease: used
 * @position: of the block in the file, in bytes
 * @sector: is told, of the whole disk
 *
 * Context: any.
 * Return: how many blocks follow each other from there on; 0: it has no place of its own;
 *         -ENODATA: not known, see csd_lease_fill()
 */
int csd_lease_find(struct csd_lease *lease, u64 position, sector_t *sector)
{
	unsigned long index = position / CSD_BLOCK_SIZE;
	void *place;

	MA_STATE(mas, &lease->places, index, index);

	rcu_read_lock();
	place = mas_walk(&mas);
	rcu_read_unlock();
	if (!place)
		return -ENODATA;
	if (xa_to_value(place) == CSD_NO_PLACE)
		return 0;
	*sector = csd_place_sector(place, index);
	return mas.last - index + 1;
}

/* Note what a digest says of some blocks. Returns how many, or a negative errno. */
static int csd_lease_note(struct csd_lease *lease, unsigned long index, const struct csd_spot *spot)
{
	u32 blocks = spot->blocks ?: 1;
	void *place = spot->blocks ? csd_place_make(index, spot->sector) :
				     xa_mk_value(CSD_NO_PLACE);

	return mtree_store_range(&lease->places, index, index + blocks - 1, place, GFP_KERNEL) ?:
	       blocks;
}

/**
 * csd_lease_fill - find out where a block of the file and those around it are
 * @lease: used
 * @digest: one that is not held
 * @position: of the block in the file, in bytes: before its end
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
int csd_lease_fill(struct csd_lease *lease, struct csd_digest *digest, u64 position)
{
	u64 size = i_size_read(file_inode(lease->file));
	struct csd_spot spot;
	u64 blocks;
	int ret;

	if (lease->nr_places >= CSD_MOST_PLACES)
		csd_lease_forget(lease);
	position = round_down(position, CSD_WINDOW * CSD_BLOCK_SIZE);
	blocks = min_t(u64, DIV_ROUND_UP(size - position, CSD_BLOCK_SIZE), CSD_WINDOW);
	ret = csd_digest_take(digest, lease->file, position, blocks);
	if (ret)
		return ret;
	while (ret >= 0 && csd_digest_find(digest, position, &spot)) {
		ret = csd_lease_note(lease, position / CSD_BLOCK_SIZE, &spot);
		position += ret * CSD_BLOCK_SIZE;
		lease->nr_places++;
	}
	csd_digest_give(digest);
	return min(ret, 0);
}

/**
 * csd_lease_alloc - prepare a lease
 * @file: on what; open for reading
 *
 * Context: process context, may sleep.
 * Return: a lease that is not used, or an ERR_PTR()
 */
struct csd_lease *csd_lease_alloc(const struct file *file)
{
	struct csd_lease *lease = kzalloc(sizeof(*lease), GFP_KERNEL_ACCOUNT);
	struct file *own;

	if (!lease)
		return ERR_PTR(-ENOMEM);
	own = dentry_open(&file->f_path, O_RDONLY | O_LARGEFILE | O_NONBLOCK, file->f_cred);
	if (IS_ERR(own)) {
		kfree(lease);
		return ERR_CAST(own);
	}
	lease->file = own;
	spin_lock_init(&lease->lock);
	mt_init(&lease->places);
	return lease;
}

/**
 * csd_lease_free - free a lease that is not used
 * @lease: it, or NULL
 *
 * Context: process context, may sleep.
 */
void csd_lease_free(struct csd_lease *lease)
{
	if (!lease)
		return;
	csd_lease_unset(lease);
	csd_lease_forget(lease);
	fput(lease->file);
	kfree(lease);
}
