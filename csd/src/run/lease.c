// SPDX-License-Identifier: GPL-2.0
/*
 * Leases: where a file's blocks are, remembered from one chain to the next.
 *
 * A layout keeps a window of a file in place by a direct read in flight. To go from block to block,
 * a layout for each block would cost more than the block. So the results of layouts are remembered
 * here, and a chain that uses them relies on two things.
 *
 * First, no block leaves its place while the chain reads: the chain counts as direct I/O of the
 * inode (inode_dio_begin()). The file systems that csd_why_file() accepts wait for direct I/O,
 * under the inode's exclusive lock, before they take a block away from a file, for whatever reason:
 * truncate by a path, a descriptor or O_TRUNC, an overlay above, hole punching, defragmentation.
 *
 * Second, no block has left its place since a layout found it: csd_lease_keep() compares, under the
 * inode's shared lock, the traces of such changes. All changes but one increment i_version under
 * the inode's lock, or, if they fail half-way, change the size. Defragmentation (EXT4_IOC_MOVE_EXT)
 * leaves no trace, but needs a descriptor that is open for writing. While there is one, no chain
 * begins. The read lease (fcntl(2), F_SETLEASE) that is kept on the file tells of each open for
 * writing since. Dirty pages in the page cache are found out in the same way: layouts write them to
 * the device, and whatever makes more of them increments i_version or has the file open for
 * writing.
 *
 * The lease itself keeps no block in place. Besides telling of writers, it makes them wait until a
 * chain in flight ends, so that the chain sees one version of the file. But it does so only if the
 * chain's caller could have had such a lease by fcntl(2). A lease that is not in use is given up
 * immediately.
 */
#include "run_i.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/filelock.h>
#include <linux/fs.h>
#include <linux/iversion.h>
#include <linux/maple_tree.h>

/*
 * Most changes of a file's remembered places. This bounds the nodes of the maple tree to 2 MiB,
 * which no memory cgroup is charged for: the tree does not pass flags on to each allocation.
 */
#define CSD_MOST_PLACES	16384

/**
 * struct csd_lease - where a file's blocks are, and a lease on the file
 * @file: the file, opened for this purpose alone, because a lease belongs to an open file
 * @firm: an open for writing has to wait while the lease is used
 * @lock: guards @held and @busy
 * @held: the lease is on the file, and the file has not been opened for writing since
 * @busy: the lease is used
 * @kept: the user of the lease counts as direct I/O of the inode
 * @version: i_version of the file when csd_lease_keep() compared last
 * @size: size of the file at that time, in bytes
 * @places: values of csd_place_make() by the number of a block; valid while @kept
 * @nr_places: number of stores to @places
 */
struct csd_lease {
	struct file *file;
	bool firm;
	spinlock_t lock;	/* of the next two */
	bool held;
	bool busy;
	bool kept;
	u64 version;
	u64 size;
	struct maple_tree places;
	u32 nr_places;
};

#define CSD_PLACE_MASK	(LONG_MAX >> 1)
#define CSD_NO_PLACE	CSD_PLACE_MASK
#define CSD_SECTORS	(CSD_BLOCK_SIZE / SECTOR_SIZE)	/* sectors of a block */

/*
 * Encodes a place as the distance between the block's sector and its number in the file. Contiguous
 * blocks have the same distance.
 */
static void *csd_place_make(unsigned long index, sector_t sector)
{
	return xa_mk_value((sector - index * CSD_SECTORS) & CSD_PLACE_MASK);
}

static sector_t csd_place_sector(const void *place, unsigned long index)
{
	return (xa_to_value(place) + index * CSD_SECTORS) & CSD_PLACE_MASK;
}

/* Called when the file is opened for writing. Returns whether the lease ends with this. */
static bool csd_lease_break(struct file_lease *fl)
{
	struct csd_lease *lease = fl->c.flc_owner;
	bool busy;

	/* No timeout: the lease is given up soon, but not before the chain has ended. */
	fl->fl_break_time = 0;
	spin_lock(&lease->lock);
	lease->held = false;
	busy = lease->busy;
	spin_unlock(&lease->lock);
	return !busy || !lease->firm;
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

/* May the current task set a lease on the file by fcntl(2)? See vfs_setlease(). */
static bool csd_lease_allowed(const struct file *file)
{
	vfsuid_t owner = i_uid_into_vfsuid(file_mnt_idmap(file), file_inode(file));

	return vfsuid_eq_kuid(owner, current_fsuid()) || capable(CAP_LEASE);
}

/*
 * Forgets the places if they may have changed. Returns -EAGAIN if the file is open for writing.
 * Under the inode's lock.
 */
static int csd_lease_compare(struct csd_lease *lease, struct inode *inode)
{
	u64 version = inode_query_iversion(inode);
	u64 size = i_size_read(inode);
	bool held;

	/*
	 * An open for writing that is not seen below changes the version after it was read above.
	 */
	smp_mb();
	spin_lock(&lease->lock);
	held = lease->held;
	spin_unlock(&lease->lock);
	if (!held || inode_is_open_for_write(inode))
		return -EAGAIN;
	if (lease->version != version || lease->size != size)
		csd_lease_forget(lease);
	lease->version = version;
	lease->size = size;
	return 0;
}

/**
 * csd_lease_keep - keep the blocks of the file in their places
 * @lease: a lease in use
 *
 * From here on, taking a block away from the file waits, and the known places are valid.
 *
 * Context: process context, may sleep. Takes the inode's lock for reading, so it must not be called
 *         while the blocks are kept: a task that waits for that to end holds the lock.
 * Return: 0, then csd_lease_let() or csd_lease_end() has to follow; or a negative errno: -EAGAIN if
 *         the file is open for writing, -EINTR if killed
 */
int csd_lease_keep(struct csd_lease *lease)
{
	struct inode *inode = file_inode(lease->file);
	int err = inode_lock_shared_killable(inode);

	if (err)
		return err;
	err = csd_lease_compare(lease, inode);
	if (!err) {
		inode_dio_begin(inode);
		lease->kept = true;
	}
	inode_unlock_shared(inode);
	return err;
}

/**
 * csd_lease_let - stop keeping the blocks of the file in their places, if they are kept
 * @lease: a lease in use
 */
void csd_lease_let(struct csd_lease *lease)
{
	if (lease->kept)
		inode_dio_end(file_inode(lease->file));
	lease->kept = false;
}

/**
 * csd_lease_size - get the size of the file
 * @lease: a lease whose blocks are kept
 *
 * Return: the size in bytes
 */
u64 csd_lease_size(const struct csd_lease *lease)
{
	return lease->size;
}

/**
 * csd_lease_begin - begin to use a lease
 * @lease: a lease that is not in use
 *
 * Context: process context, may sleep.
 * Return: 0, then csd_lease_end() has to follow; or a negative errno: -EAGAIN if the file is open
 *         for writing
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
	/* The file may have been open for writing meanwhile. */
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
 * csd_lease_end - end the use of a lease, and let the blocks and waiting openers go
 * @lease: a lease in use
 *
 * Context: process context, may sleep.
 */
void csd_lease_end(struct csd_lease *lease)
{
	bool held;

	csd_lease_let(lease);
	spin_lock(&lease->lock);
	held = lease->held;
	lease->busy = false;
	spin_unlock(&lease->lock);
	if (!held)
		csd_lease_unset(lease);
}

/**
 * csd_lease_find - find a block of the file on the device
 * @lease: a lease whose blocks are kept
 * @position: offset of the block in the file, in bytes
 * @sector: set to the block's sector in the whole disk
 *
 * Context: any.
 * Return: the number of blocks that are contiguous from there on; 0 if the block has no place of
 *         its own; -ENODATA if its place is not known, see csd_lease_fill()
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

/* Remembers the place of some blocks. Returns the number of blocks, or a negative errno. */
static int csd_lease_note(struct csd_lease *lease, unsigned long index,
			  const struct csd_extent *extent)
{
	u32 blocks = extent->blocks ?: 1;
	void *place = extent->blocks ? csd_place_make(index, extent->sector) :
				     xa_mk_value(CSD_NO_PLACE);

	return mtree_store_range(&lease->places, index, index + blocks - 1, place, GFP_KERNEL) ?:
	       blocks;
}

/**
 * csd_lease_fill - find out the place of a block of the file, and of the blocks around it
 * @lease: a lease in use whose blocks are not kept, because a layout takes the inode's lock
 * @layout: a layout that is not held
 * @position: offset of the block in the file, in bytes
 *
 * The places are valid if the next csd_lease_keep() does not forget them.
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -ENODATA if the file ends before the block
 */
int csd_lease_fill(struct csd_lease *lease, struct csd_layout *layout, u64 position)
{
	u64 size = i_size_read(file_inode(lease->file));
	struct csd_extent extent;
	u64 blocks;
	int ret;

	if (position >= size)
		return -ENODATA;
	if (lease->nr_places >= CSD_MOST_PLACES)
		csd_lease_forget(lease);
	position = round_down(position, CSD_WINDOW * CSD_BLOCK_SIZE);
	blocks = min_t(u64, DIV_ROUND_UP(size - position, CSD_BLOCK_SIZE), CSD_WINDOW);
	ret = csd_layout_take(layout, lease->file, position, blocks);
	if (ret)
		return ret;
	while (ret >= 0 && csd_layout_find(layout, position, &extent)) {
		ret = csd_lease_note(lease, position / CSD_BLOCK_SIZE, &extent);
		position += ret * CSD_BLOCK_SIZE;
		lease->nr_places++;
	}
	csd_layout_give(layout);
	return min(ret, 0);
}

/**
 * csd_lease_alloc - make a lease object for a file, without a lease on the file yet
 * @file: the file, open for reading
 *
 * Context: process context, may sleep.
 * Return: a lease that is not in use, or an ERR_PTR()
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
	lease->firm = csd_lease_allowed(file);
	spin_lock_init(&lease->lock);
	mt_init(&lease->places);
	return lease;
}

/**
 * csd_lease_free - free a lease that is not in use
 * @lease: the lease, or NULL
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
