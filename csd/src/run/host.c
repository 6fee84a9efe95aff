// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks that the kernel looks at. They are read as any reader of the file would read them, with
 * the file's locks and through its page cache, so they are correct for any file.
 */
#include "run_i.h"

#include <linux/fs.h>
#include <linux/sched/signal.h>
#include <linux/uio.h>

static ssize_t csd_host_read_some(struct csd_run *run, size_t at, size_t size)
{
	struct kvec kvec = { .iov_base = run->buffer + at, .iov_len = size - at };
	struct iov_iter iter;
	struct kiocb kiocb;

	init_sync_kiocb(&kiocb, run->file);
	/* The buffer may not be aligned for a device, and the caller waits anyway. */
	kiocb.ki_flags &= ~(IOCB_DIRECT | IOCB_NOWAIT);
	kiocb.ki_pos = run->position + at;
	iov_iter_kvec(&iter, ITER_DEST, &kvec, 1, size - at);
	return vfs_iocb_iter_read(run->file, &kiocb, &iter);
}

/*
 * Fills the buffer. A read of some file systems may return less than there is; only a read of 0
 * bytes is the end of the file.
 */
static ssize_t csd_host_read(struct csd_run *run, size_t size)
{
	size_t have = 0;
	ssize_t ret;

	while (have < size) {
		ret = csd_host_read_some(run, have, size);
		if (ret < 0)
			return ret;
		if (!ret)
			break;
		have += ret;
	}
	return have;
}

/* Did a signal end the read? Then the read is repeated when the caller goes on. */
static bool csd_host_interrupted(ssize_t ret)
{
	switch (ret) {
	case -EINTR:
	case -ERESTARTSYS:
	case -ERESTARTNOINTR:
	case -ERESTARTNOHAND:
	case -ERESTART_RESTARTBLOCK:
		return signal_pending(current);
	}
	return false;
}

/*
 * Notes that a file of size 0 has bytes up to @end, and allows the run a step for each of their
 * blocks.
 */
static void csd_host_found(struct csd_run *run, u64 end)
{
	if (!run->unsized || end <= run->found)
		return;
	if (!run->max_steps)
		run->steps_left += DIV_ROUND_UP(end, CSD_BLOCK_SIZE) -
				   DIV_ROUND_UP(run->found, CSD_BLOCK_SIZE);
	WRITE_ONCE(run->found, end);
}

/* Handles the end of the file at the run's position. */
static void csd_host_ended(struct csd_run *run)
{
	/*
	 * If the file has a size, csd_next() to such a block was refused, or the file has become
	 * shorter.
	 */
	if (run->unsized && run->jumps)
		run->error = -ERANGE;
	else
		run->stopped = true;
}

/**
 * csd_host - advance a run by some blocks, in this kernel and through the file system
 * @run: the run
 * @end: end of the run's range or file, past the run's position
 * @blocks: most blocks to look at
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -EINTR after a signal. If the file or the function fails, the
 *         errno is stored in @run->error
 */
int csd_host(struct csd_run *run, u64 end, u64 blocks)
{
	size_t size = min_t(u64, min(end - run->position, blocks * CSD_BLOCK_SIZE), CSD_BUFFER);
	ssize_t have = csd_host_read(run, size);
	size_t at;

	if (csd_host_interrupted(have))
		return -EINTR;
	if (have < 0) {
		run->error = have;
		return 0;
	}
	if (!have) {
		csd_host_ended(run);
		return 0;
	}
	csd_host_found(run, run->position + have);
	memset(run->buffer + have, 0, round_up(have, CSD_BLOCK_SIZE) - have);
	for (at = 0; at < have && csd_run_ready(run); at += CSD_BLOCK_SIZE) {
		if (!csd_run_step(run, CSD_KERNEL, run->buffer + at,
				  min_t(size_t, have - at, CSD_BLOCK_SIZE)))
			break;
		cond_resched();
	}
	return 0;
}
