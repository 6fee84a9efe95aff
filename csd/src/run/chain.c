// SPDX-License-Identifier: GPL-2.0
/*
 * Chains: in this kernel, a function goes from block to block below the file system.
 *
 * The completion of one block's read starts the read of the block that the function names
 * (resubmission.c). The place of that block on the device is remembered, and the block cannot leave
 * the place meanwhile (lease.c). Everything else is read through the file system by host.c, which
 * is always correct. So is the rest of a chain that cannot go on.
 *
 * Taking a block away from the file has to wait for a chain. So a chain ends after
 * CSD_CHAIN_BLOCKS blocks, or with the first block that arrives after CSD_CHAIN_TIME. The next
 * chain begins under the inode's lock, and so queues up behind the tasks that waited for this one.
 *
 * Blocks in the page cache are read faster from there, and a chain leaves nothing in the page
 * cache. So some passes use the page cache, unless the file is open with O_DIRECT.
 */
#include "run_i.h"

#include <linux/err.h>
#include <linux/fs.h>

#define CSD_WARM	16	/* one pass out of so many uses the page cache */
#define CSD_CHAIN_TIME	(2 * HZ)
#define CSD_LOOKS	3	/* layouts to take if the file changes meanwhile */

static int csd_chain_alloc(struct csd_run *run)
{
	struct csd_lease *lease;

	if (!run->layout)
		run->layout = csd_layout_alloc();
	if (!run->layout)
		return -ENOMEM;
	if (run->lease)
		return 0;
	lease = csd_lease_alloc(run->file);
	if (IS_ERR(lease))
		return PTR_ERR(lease);
	run->lease = lease;
	return 0;
}

static enum csd_unchained csd_chain_why(const struct csd_run *run)
{
	if (!(csd_entry_flags(run->function) & CSD_JUMPS))
		return CSD_UNCHAINED_FOLLOWS;
	if (run->passes < 2)
		return CSD_UNCHAINED_FIRST;
	if (run->unsized)
		return CSD_UNCHAINED_UNMAPPED;
	/*
	 * On other file systems blocks may move during a chain, or may have moved before the next
	 * chain without leaving a trace.
	 */
	if (csd_why_file(run->file) || !IS_I_VERSION(file_inode(run->file)))
		return CSD_UNCHAINED_FILESYSTEM;
	return CSD_UNCHAINED_NOT;
}

static enum csd_unchained csd_chain_failed(int err)
{
	if (err == -EAGAIN)
		return CSD_UNCHAINED_WRITTEN;
	return err == -ENODATA ? CSD_UNCHAINED_UNMAPPED : CSD_UNCHAINED_FAILED;
}

/* May the caller still read the file? Asks what each read(2) asks. */
static int csd_chain_allowed(struct csd_run *run, u64 end)
{
	loff_t position = run->position;

	return rw_verify_area(READ, run->file, &position, end - run->position);
}

static int csd_chain_keep(struct csd_run *run)
{
	int err = csd_lease_keep(run->lease);

	if (!err)
		run->window_end = min_t(u64, run->window_end, csd_lease_size(run->lease));
	return err;
}

/**
 * csd_chain_begin - begin a chain: keep the blocks of a run's file in their places
 * @run: the run; @run->window_end becomes @end, or the present end of the file if that is less
 * @end: end of the run's range or file
 *
 * Context: process context, may sleep.
 * Return: CSD_UNCHAINED_NOT, then csd_chain_end() has to follow; or why there is no chain
 */
enum csd_unchained csd_chain_begin(struct csd_run *run, u64 end)
{
	enum csd_unchained why = csd_chain_why(run);
	int err;

	if (why)
		return why;
	err = csd_chain_allowed(run, end) ?: csd_chain_alloc(run) ?: csd_lease_begin(run->lease);
	if (err)
		return csd_chain_failed(err);
	run->window_end = end;
	run->chain_until = jiffies + CSD_CHAIN_TIME;
	err = csd_chain_keep(run);
	if (!err)
		return CSD_UNCHAINED_NOT;
	csd_lease_end(run->lease);
	return csd_chain_failed(err);
}

/**
 * csd_chain_late - has a run's chain made others wait for long enough?
 * @run: a run whose chain has begun
 *
 * Return: true if the chain has to end before its next block
 */
bool csd_chain_late(const struct csd_run *run)
{
	return time_after(jiffies, run->chain_until);
}

void csd_chain_end(struct csd_run *run)
{
	csd_lease_end(run->lease);
}

/**
 * csd_chain_find - find a run's next blocks on the device
 * @run: a run whose chain has begun
 * @range: set to the next contiguous blocks: @run->ahead at most, and before @run->window_end
 *
 * Context: any.
 * Return: 1 if @range is set; 0 if there is no next block, or it has no place of its own; -ENODATA
 *         if its place is not known
 */
int csd_chain_find(struct csd_run *run, struct csd_range *range)
{
	u64 left = run->window_end - run->position;
	int blocks;

	if (run->position >= run->window_end)
		return 0;
	blocks = csd_lease_find(run->lease, run->position, &range->sector);
	if (blocks <= 0)
		return blocks;
	blocks = min_t(u64, min_t(u32, blocks, run->ahead), DIV_ROUND_UP(left, CSD_BLOCK_SIZE));
	range->bytes = blocks * CSD_BLOCK_SIZE;
	return 1;
}

/* Finds out where a run's next block is. The chain does not keep its blocks in place meanwhile. */
static int csd_chain_fill(struct csd_run *run)
{
	u64 begun = ktime_get_ns();
	int err;

	/* A layout takes the inode's lock, which a task that waits for this chain holds already. */
	csd_lease_let(run->lease);
	err = csd_lease_fill(run->lease, run->layout, run->position) ?: csd_chain_keep(run);
	run->choice.apart_ns += ktime_get_ns() - begun;
	return err;
}

/**
 * csd_chain_look - find a run's next blocks, and find out their places if they are not known
 * @run: a run whose chain has begun, and has not read a block yet
 * @range: set as by csd_chain_find()
 *
 * Context: process context, may sleep.
 * Return: 1 or 0 as from csd_chain_find(); or a negative errno: -ENODATA if the file changes too
 *         often, -EAGAIN if it is open for writing by now
 */
int csd_chain_look(struct csd_run *run, struct csd_range *range)
{
	u32 looks = 0;
	int ret, err;

	while ((ret = csd_chain_find(run, range)) == -ENODATA && looks++ < CSD_LOOKS) {
		err = csd_chain_fill(run);
		if (err)
			return err;
	}
	return ret;
}

/**
 * csd_chain_len - get the number of bytes of a run's next block that are in the file and the range
 * @run: a run whose chain has begun
 *
 * Return: CSD_BLOCK_SIZE at most
 */
u32 csd_chain_len(const struct csd_run *run)
{
	return min_t(u64, run->window_end - run->position, CSD_BLOCK_SIZE);
}

static struct csd_run *csd_run_of(struct csd_resubmission *resubmission)
{
	return container_of(resubmission, struct csd_run, resubmission);
}

static bool csd_chain_arrived(struct csd_resubmission *resubmission)
{
	struct csd_run *run = csd_run_of(resubmission);
	u32 len = csd_chain_len(run);
	struct csd_range range;

	/* Bytes past the end of the file must not be seen. */
	memset(run->buffer + len, 0, CSD_BLOCK_SIZE - len);
	csd_run_step(run, CSD_KERNEL, run->buffer, len);
	if (csd_run_follows(run) || !csd_run_ready(run) || !--run->chain_left ||
	    csd_chain_late(run) || csd_chain_find(run, &range) <= 0)
		return false;
	resubmission->sector = range.sector;
	return true;
}

static int csd_chain_resubmit(struct csd_run *run)
{
	struct csd_range range;
	int ret = csd_chain_look(run, &range);

	if (ret <= 0)
		return ret ?: -ENODATA;
	run->resubmission.sector = range.sector;
	run->resubmission.data = run->buffer;
	run->resubmission.arrived = csd_chain_arrived;
	run->chain_left = CSD_CHAIN_BLOCKS;
	return csd_resubmission_run(bdev_whole(file_inode(run->file)->i_sb->s_bdev),
				    &run->resubmission);
}

/* Is the run's next block in the page cache? csd_choose() may have looked it up already. */
static bool csd_chain_resident(const struct csd_run *run)
{
	const struct csd_choice *choice = &run->choice;

	if (choice->device && choice->looked_at == run->position)
		return choice->resident;
	return csd_resident(run->file, run->position, 1);
}

/* Returns why the page cache is the better way, or CSD_UNCHAINED_NOT. */
static enum csd_unchained csd_chain_cached(const struct csd_run *run)
{
	if (run->file->f_flags & O_DIRECT)
		return CSD_UNCHAINED_NOT;
	if (run->passes % CSD_WARM == 0)
		return CSD_UNCHAINED_WARMS;
	return csd_chain_resident(run) ? CSD_UNCHAINED_CACHED : CSD_UNCHAINED_NOT;
}

/**
 * csd_chain - advance a run by some blocks, in this kernel and below the file system
 * @run: the run
 * @end: end of the run's range or file, past the run's position
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -EOPNOTSUPP if the file system has to be used, @run->unchained
 *         tells why
 */
int csd_chain(struct csd_run *run, u64 end)
{
	u64 steps = run->steps[CSD_KERNEL];
	enum csd_unchained why;
	int err;

	why = run->ahead > 1 ? CSD_UNCHAINED_FOLLOWS : csd_chain_why(run);
	why = why ?: csd_chain_cached(run);
	why = why ?: csd_chain_begin(run, end);
	if (!why) {
		err = csd_chain_resubmit(run);
		csd_chain_end(run);
		run->chained += run->steps[CSD_KERNEL] - steps;
		if (!err || err == -EINTR)
			return err;
		why = csd_chain_failed(err);
	}
	run->unchained = why;
	return -EOPNOTSUPP;
}
