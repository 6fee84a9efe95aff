// SPDX-License-Identifier: GPL-2.0
/*
 * Steps: a run's function looks at one block. The place of the block makes no difference here.
 */
#include "run_i.h"

#include <linux/fs.h>

/**
 * csd_output_add - append to a run's output
 * @run: the run
 * @data: the bytes
 * @size: number of bytes
 *
 * Return: 0, or -ENOSPC, which fails the run after the current call
 */
int csd_output_add(struct csd_run *run, const void *data, u32 size)
{
	if (size > CSD_STEP_OUTPUT - run->call_emitted) {
		run->overflown = true;
		return -ENOSPC;
	}
	memcpy(run->output + run->output_end, data, size);
	run->output_end += size;
	run->call_emitted += size;
	run->emitted += size;
	return 0;
}

/* Is there room for the most that a call may emit? */
static bool csd_output_free(const struct csd_run *run)
{
	return CSD_OUTPUT - run->output_end >= CSD_STEP_OUTPUT;
}

static int csd_run_call(struct csd_run *run, bool last)
{
	int ret;

	run->call_emitted = 0;
	ret = csd_entry_call(run->function, run, last);
	if (run->overflown)
		ret = -ENOSPC;
	if (ret < 0)
		run->error = ret;
	return ret;
}

/**
 * csd_run_end - get the end of a run's range or of its file, whichever is first
 * @run: the run
 *
 * In a file of size 0 only read(2) finds the end.
 *
 * Return: offset in the file in bytes
 */
u64 csd_run_end(const struct csd_run *run)
{
	if (run->unsized)
		return run->end;
	return min_t(u64, run->end, i_size_read(file_inode(run->file)));
}

/**
 * csd_run_finish - call finish() if all blocks were looked at
 * @run: a run that is ready, or wants no more blocks
 *
 * Context: as for csd_run_step().
 */
void csd_run_finish(struct csd_run *run)
{
	if (run->done || run->error || !csd_output_free(run) ||
	    (!run->stopped && run->position < csd_run_end(run)))
		return;
	csd_run_call(run, true);
	WRITE_ONCE(run->done, true);
}

/**
 * csd_run_ready - may step() be called for the next block?
 * @run: the run
 *
 * Return: false if the run wants no more blocks, has failed, or has output that must be read first
 */
bool csd_run_ready(const struct csd_run *run)
{
	return !run->stopped && !run->error && csd_output_free(run);
}

/* Moves the run on to the next block. -ERANGE: csd_next() named an invalid one. */
static int csd_run_move(struct csd_run *run)
{
	if (!run->jumps) {
		run->position += CSD_BLOCK_SIZE;
		return 0;
	}
	if (run->next % CSD_BLOCK_SIZE || run->next < run->start || run->next >= run->end)
		return -ERANGE;
	run->position = run->next;
	run->follows = 0;
	return 0;
}

/**
 * csd_run_step - let the function look at the run's next block
 * @run: a run that is ready
 * @place: place of the caller
 * @data: CSD_BLOCK_SIZE bytes; those past @len are zeroes
 * @len: number of bytes that are in the file
 *
 * Context: any in which no other step of the run can interrupt this one; does not sleep.
 * Return: true if the following block comes next
 */
bool csd_run_step(struct csd_run *run, enum csd_place place, const void *data, u32 len)
{
	int ret;

	if (run->steps_left == 0) {
		run->error = -ELOOP;
		return false;
	}
	run->steps_left--;
	run->steps[place]++;
	run->block = data;
	run->len = len;
	run->offset = run->position;
	run->jumps = false;
	run->follows++;
	ret = csd_run_call(run, false);
	if (ret < 0)
		return false;
	if (ret == CSD_DONE) {
		run->stopped = true;
		return false;
	}
	run->error = csd_run_move(run);
	return !run->error && !run->jumps;
}

/**
 * csd_run_follows - does a run look at blocks in sequence?
 * @run: the run
 *
 * A single block that follows the last one does not count: csd_next() may have named it.
 *
 * Return: true if so; the kernel then reads ahead
 */
bool csd_run_follows(const struct csd_run *run)
{
	return run->ahead > 1 || run->follows > 1;
}
