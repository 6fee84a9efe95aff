// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks that the device looks at by itself: only what the function emits leaves the device.
 *
 * The kernel looks at blocks in between that have no place on the device, such as those of a hole.
 * If the device cannot look at blocks at all, the kernel takes over from there on.
 */
#include "run_i.h"

#include <linux/fs.h>

static struct csd_run *csd_run_of(struct csd_command *cmd)
{
	return container_of(cmd, struct csd_run, command);
}

static bool csd_offload_find(const struct csd_run *run, struct csd_extent *extent)
{
	return run->position < run->window_end &&
	       csd_layout_find(run->layout, run->position + run->window_shift, extent);
}

/* Number of bytes of the run's next block that are in the file and in the range. */
static u32 csd_offload_len(const struct csd_run *run)
{
	return min_t(u64, csd_layout_len(run->layout, run->position + run->window_shift),
		     run->window_end - run->position);
}

static int csd_offload_next(struct csd_command *cmd, struct csd_range *range)
{
	struct csd_run *run = csd_run_of(cmd);
	struct csd_extent extent;

	if (!csd_run_ready(run) || !csd_offload_find(run, &extent) || !extent.blocks)
		return 0;
	range->sector = extent.sector;
	range->bytes = extent.blocks * CSD_BLOCK_SIZE;
	return 1;
}

/*
 * Lets the function look at a block with @len bytes of the file. Returns whether the command has to
 * leave this range.
 */
static int csd_offload_step(struct csd_run *run, const void *data, u32 len)
{
	if (len < CSD_BLOCK_SIZE) {
		/* Bytes past the end of the file must not be seen. */
		memcpy(run->buffer, data, len);
		memset(run->buffer + len, 0, CSD_BLOCK_SIZE - len);
		data = run->buffer;
	}
	return !csd_run_step(run, CSD_DEVICE, data, len) || !csd_run_ready(run);
}

static int csd_offload_block(struct csd_command *cmd, const void *data, u32 size)
{
	struct csd_run *run = csd_run_of(cmd);

	return csd_offload_step(run, data, csd_offload_len(run));
}

static u64 csd_offload_result(struct csd_command *cmd)
{
	struct csd_run *run = csd_run_of(cmd);

	csd_run_finish(run);
	return run->output_end - run->sent;
}

/* Goes through the window of the run's layout. Returns 0 or a negative errno. */
static int csd_offload_window(struct csd_run *run, struct block_device *bdev)
{
	struct csd_extent extent;
	int err = 0;
	u32 len;

	run->command.next = csd_offload_next;
	run->command.block = csd_offload_block;
	run->command.result = csd_offload_result;
	while (!err && csd_run_ready(run) && csd_offload_find(run, &extent)) {
		if (extent.blocks) {
			run->sent = run->output_end;
			err = csd_command_run(bdev, &run->command);
			continue;
		}
		run->why = CSD_WHY_UNMAPPED;
		len = csd_offload_len(run);
		memset(extent.data + len, 0, CSD_BLOCK_SIZE - len);
		csd_run_step(run, CSD_KERNEL, extent.data, len);
	}
	return err;
}

static int csd_leased_next(struct csd_command *cmd, struct csd_range *range)
{
	struct csd_run *run = csd_run_of(cmd);
	int ret;

	if (!csd_run_ready(run) || !run->chain_left || csd_chain_late(run))
		return 0;
	ret = csd_chain_find(run, range);
	if (ret <= 0)
		return 0;
	run->chain_left--;
	run->ahead = min(CSD_AHEAD_GROWTH * run->ahead, CSD_WINDOW);
	return 1;
}

static int csd_leased_block(struct csd_command *cmd, const void *data, u32 size)
{
	struct csd_run *run = csd_run_of(cmd);
	int ret = csd_offload_step(run, data, csd_chain_len(run));

	if (run->jumps)
		run->ahead = 1;
	return ret || csd_chain_late(run);
}

/*
 * Goes from block to block in a single command, while a chain keeps all blocks in place. Returns 0
 * or a negative errno; -EOPNOTSUPP if each block has to be found by a layout.
 */
static int csd_offload_leased(struct csd_run *run, u64 end)
{
	struct csd_range range;
	int ret;

	if (csd_chain_begin(run, end))
		return -EOPNOTSUPP;
	ret = csd_chain_look(run, &range);
	if (ret > 0) {
		run->command.next = csd_leased_next;
		run->command.block = csd_leased_block;
		run->command.result = csd_offload_result;
		run->sent = run->output_end;
		run->chain_left = CSD_CHAIN_BLOCKS;
		ret = csd_command_run(bdev_whole(file_inode(run->file)->i_sb->s_bdev),
				      &run->command);
	} else {
		ret = ret == -EINTR ? ret : -EOPNOTSUPP;
	}
	csd_chain_end(run);
	return ret;
}

/*
 * Length of the part of the range that is whole blocks of the file that has the bytes. The last
 * block may be cut by the end of the range.
 */
static u64 csd_offload_whole(const struct csd_run *run, u64 end, const struct efuse_lower *lower)
{
	if (lower->position % CSD_BLOCK_SIZE)
		return 0;
	if (lower->length == end - run->position)
		return lower->length;
	return round_down(lower->length, CSD_BLOCK_SIZE);
}

/* Goes through as much as one layout of the file can hold. Returns 0 or a negative errno. */
static int csd_offload_held(struct csd_run *run, const struct efuse_lower *lower, u64 length)
{
	u64 steps_left = run->steps_left;
	int err;

	if (!run->layout)
		run->layout = csd_layout_alloc();
	if (!run->layout)
		return -ENOMEM;
	run->window_shift = lower->position - run->position;
	run->window_end = run->position + length;
	err = csd_layout_take(run->layout, lower->file, lower->position,
			      DIV_ROUND_UP(length, CSD_BLOCK_SIZE));
	if (err)
		return err;
	err = csd_offload_window(run, bdev_whole(file_inode(lower->file)->i_sb->s_bdev));
	csd_layout_give(run->layout);
	/* No block was there, because the file became shorter. A read(2) will tell. */
	if (!err && csd_run_ready(run) && run->steps_left == steps_left)
		err = -ENODATA;
	return err;
}

/**
 * csd_offload - advance a run by some blocks, at the device that has them
 * @run: the run
 * @end: end of the run's range or file, past the run's position
 * @blocks: most blocks to look at
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -EOPNOTSUPP if the kernel has to look at the blocks, @run->why
 *         tells why
 */
int csd_offload(struct csd_run *run, u64 end, u64 blocks)
{
	u64 length = min_t(u64, end - run->position,
			   min_t(u64, blocks, CSD_WINDOW) * CSD_BLOCK_SIZE);
	struct efuse_lower lower;
	enum csd_why why;
	int err;

	err = csd_lower_begin(run->file, run->position, length, &lower);
	if (err) {
		why = err == -EOPNOTSUPP ? CSD_WHY_DAEMON : CSD_WHY_FAILED;
		goto out;
	}
	length = csd_offload_whole(run, end, &lower);
	why = length ? csd_why_file(lower.file) : CSD_WHY_UNMAPPED;
	if (!why && !csd_choose(run, &lower, DIV_ROUND_UP(length, CSD_BLOCK_SIZE)))
		why = CSD_WHY_SLOWER;
	if (!why) {
		why = CSD_WHY_FAILED;
		length = min_t(u64, length, (u64)run->choice.blocks * CSD_BLOCK_SIZE);
		err = csd_offload_leased(run, end);
		if (err == -EOPNOTSUPP)
			err = csd_offload_held(run, &lower, length);
	} else {
		err = -EOPNOTSUPP;
	}
	csd_lower_end(run->file, &lower);
out:
	if (!err || err == -EINTR)
		return err;
	/* The blocks that the device did are done; the kernel goes on from there. */
	run->why = why;
	return -EOPNOTSUPP;
}
