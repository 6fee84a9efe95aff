// SPDX-License-Identifier: GPL-2.0
/*
 * Runs: a function on its way through a range of a file.
 *
 * All state of a run is in one structure, whether the device or the kernel makes the next step, so
 * a run can change places from one block to the next. read(2) of the run's descriptor advances the
 * run until there is output.
 */
#include "run_i.h"

#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

/* Is the run complete, or has it failed? */
static bool csd_run_over(const struct csd_run *run)
{
	return run->done || run->error;
}

/*
 * Advances the run by some blocks in this kernel. A run that jumps makes several steps here,
 * because deciding the place of each block costs more than looking at the block.
 */
static int csd_run_here(struct csd_run *run, u64 end, u64 blocks)
{
	u32 left = CSD_CHAIN_BLOCKS;
	int err;

	for (;;) {
		err = csd_chain(run, end);
		if (err == -EOPNOTSUPP)
			err = csd_host(run, end, blocks);
		if (err || !csd_run_ready(run) || run->position >= end || !--left)
			return err;
		if (run->jumps)
			run->ahead = 1;
		if (csd_run_follows(run))
			return 0;
		blocks = 1;
	}
}

/* Advances the run by some blocks of a file whose end only read(2) finds. */
static int csd_run_unsized(struct csd_run *run, u64 end, u64 blocks)
{
	int err = csd_run_here(run, end, blocks);

	if (!run->steps[CSD_KERNEL])
		return err;
	run->why = CSD_WHY_ASKED;
	if (run->place != CSD_KERNEL)
		run->why = csd_why_unsized(run->file);
	return err;
}

/* Advances the run by some blocks, in this kernel or at the device. */
static int csd_run_sized(struct csd_run *run, u64 end, u64 blocks)
{
	int err = -EOPNOTSUPP;

	if (run->place == CSD_KERNEL)
		run->why = CSD_WHY_ASKED;
	else
		err = csd_offload(run, end, blocks);
	if (err == -EOPNOTSUPP && run->why == CSD_WHY_SLOWER)
		blocks = run->choice.blocks;
	if (err == -EOPNOTSUPP)
		err = csd_run_here(run, end, blocks);
	csd_learn(run);
	return err;
}

static int csd_run_batch(struct csd_run *run)
{
	u64 end = csd_run_end(run);
	u64 blocks;
	int err;

	if (run->stopped || run->position >= end) {
		csd_run_finish(run);
		return 0;
	}
	blocks = min_t(u64, DIV_ROUND_UP(end - run->position, CSD_BLOCK_SIZE), run->ahead);
	if (run->unsized)
		err = csd_run_unsized(run, end, blocks);
	else
		err = csd_run_sized(run, end, blocks);
	/* After a jump, the next block is not known. */
	run->ahead = run->jumps ? 1 : min(CSD_AHEAD_GROWTH * run->ahead, CSD_WINDOW);
	return err;
}

/* Advances the run until there is output to read, or the run is over. With @once, by one batch. */
static int csd_run_advance(struct csd_run *run, bool once)
{
	int err;

	while (run->output_start == run->output_end && !csd_run_over(run)) {
		run->output_start = 0;
		run->output_end = 0;
		err = csd_run_batch(run);
		if (err)
			return err;
		if (signal_pending(current))
			return -EINTR;
		if (once && run->output_start == run->output_end && !csd_run_over(run))
			return -EAGAIN;
		cond_resched();
	}
	return 0;
}

static ssize_t csd_run_read(struct file *file, char __user *buffer, size_t size, loff_t *pos)
{
	struct csd_run *run = file->private_data;
	size_t waiting;
	ssize_t ret;

	if (mutex_lock_interruptible(&run->mutex))
		return -EINTR;
	ret = csd_run_advance(run, file->f_flags & O_NONBLOCK);
	waiting = run->output_end - run->output_start;
	if (waiting) {
		size = min(size, waiting);
		ret = -EFAULT;
		if (!copy_to_user(buffer, run->output + run->output_start, size)) {
			run->output_start += size;
			ret = size;
		}
	} else if (!ret) {
		ret = run->error;
	}
	mutex_unlock(&run->mutex);
	return ret;
}

static long csd_run_status(struct csd_run *run, struct csd_status __user *argp)
{
	struct csd_status status = {};

	/* The run may be advancing: each number is one that it had recently. */
	status.position = READ_ONCE(run->position);
	status.end = READ_ONCE(run->unsized) ? READ_ONCE(run->found) : csd_run_end(run);
	status.steps[CSD_DEVICE] = READ_ONCE(run->steps[CSD_DEVICE]);
	status.steps[CSD_KERNEL] = READ_ONCE(run->steps[CSD_KERNEL]);
	status.emitted = READ_ONCE(run->emitted);
	status.done = READ_ONCE(run->done);
	status.why = READ_ONCE(run->why);
	status.chained = READ_ONCE(run->chained);
	status.unchained = READ_ONCE(run->unchained);
	return copy_to_user(argp, &status, sizeof(status)) ? -EFAULT : 0;
}

static int csd_run_bring_args(struct csd_run *run, u64 args, u32 size)
{
	if (size != run->args_size)
		return -EMSGSIZE;
	return copy_from_user(run->args, u64_to_user_ptr(args), size) ? -EFAULT : 0;
}

/* Updates the file's size, which only the server of a remote file system may know. */
static int csd_file_look(const struct file *file)
{
	struct kstat stat;
	int err = vfs_getattr(&file->f_path, &stat, STATX_SIZE, AT_STATX_SYNC_AS_STAT);

	/*
	 * Another user's FUSE mount refuses this. read(2) uses the size that the kernel knows, too.
	 */
	return err == -EACCES ? 0 : err;
}

/* Resets the run to the beginning of the range, with zeroed memory of the function. */
static int csd_run_rewind(struct csd_run *run)
{
	int err = csd_file_look(run->file);

	if (err)
		return err;
	memset(run->scratch, 0, run->scratch_size);
	memset(run->steps, 0, sizeof(run->steps));
	run->jumps = false;
	run->follows = 0;
	run->ahead = csd_entry_flags(run->function) & CSD_JUMPS ? 1 : CSD_WINDOW;
	run->passes++;
	run->position = run->start;
	run->end = run->limit;
	run->unsized = !i_size_read(file_inode(run->file));
	run->found = run->start;
	run->end = csd_run_end(run);
	run->chained = 0;
	run->steps_left = run->max_steps;
	/* In a file of size 0, csd_host() adds a step for each block that it finds. */
	if (!run->steps_left && !run->unsized && run->end > run->start)
		run->steps_left = DIV_ROUND_UP(run->end - run->start, CSD_BLOCK_SIZE);
	run->output_start = 0;
	run->output_end = 0;
	run->emitted = 0;
	run->overflown = false;
	run->stopped = false;
	run->done = false;
	run->error = 0;
	run->why = CSD_WHY_NOT;
	run->unchained = CSD_UNCHAINED_NOT;
	return 0;
}

static long csd_run_restart(struct csd_run *run, const struct csd_restart __user *argp)
{
	struct csd_restart restart;
	long ret;

	if (copy_from_user(&restart, argp, sizeof(restart)))
		return -EFAULT;
	if (restart.flags)
		return -EINVAL;
	if (mutex_lock_interruptible(&run->mutex))
		return -EINTR;
	ret = csd_run_bring_args(run, restart.args, restart.args_size) ?: csd_run_rewind(run);
	/* The arguments may be partly new: the run must not go on with them. */
	if (ret && ret != -EMSGSIZE)
		run->error = ret;
	mutex_unlock(&run->mutex);
	return ret;
}

static long csd_run_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	switch (cmd) {
	case CSD_IOC_STATUS:
		return csd_run_status(file->private_data, (void __user *)arg);
	case CSD_IOC_RESTART:
		return csd_run_restart(file->private_data, (void __user *)arg);
	}
	return -ENOTTY;
}

static void csd_run_free(struct csd_run *run)
{
	csd_lease_free(run->lease);
	csd_layout_free(run->layout);
	kvfree(run->buffer);
	kvfree(run->output);
	kvfree(run->scratch);
	kvfree(run->args);
	if (run->device)
		csd_device_put(run->device);
	if (run->function)
		csd_entry_put(run->function);
	if (run->file)
		fput(run->file);
	kfree(run);
}

static int csd_run_release(struct inode *inode, struct file *file)
{
	csd_run_free(file->private_data);
	return 0;
}

static const struct file_operations csd_run_fops = {
	.owner = THIS_MODULE,
	.read = csd_run_read,
	.unlocked_ioctl = csd_run_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = csd_run_release,
};

static int csd_setup_check(const struct csd_setup *setup)
{
	if (setup->flags || setup->place >= CSD_NR_PLACES || setup->offset % CSD_BLOCK_SIZE)
		return -EINVAL;
	if (setup->offset > LLONG_MAX || setup->length > LLONG_MAX - setup->offset)
		return -EOVERFLOW;
	return 0;
}

/* May the caller read the file, and can it be read at offsets? */
static int csd_file_check(const struct file *file)
{
	if (!file)
		return -EBADF;
	if (!(file->f_mode & FMODE_READ) || !(file->f_mode & FMODE_CAN_READ))
		return -EBADF;
	if (S_ISDIR(file_inode(file)->i_mode))
		return -EISDIR;
	if (!S_ISREG(file_inode(file)->i_mode))
		return -EINVAL;
	/* Some files of /proc cannot. */
	return file->f_op->read_iter ? 0 : -EOPNOTSUPP;
}

static int csd_run_fill(struct csd_run *run, const struct csd_setup *setup)
{
	struct csd_entry *function;
	int err;

	run->file = fget(setup->fd);
	err = csd_file_check(run->file);
	if (err)
		return err;
	function = csd_entry_get(setup->name);
	if (IS_ERR(function))
		return PTR_ERR(function);
	run->function = function;
	run->args_size = csd_entry_args_size(run->function);
	run->args = kvmalloc(max_t(u32, run->args_size, 1), GFP_KERNEL_ACCOUNT);
	run->scratch_size = csd_entry_scratch_size(run->function);
	run->scratch = kvmalloc(max_t(u32, run->scratch_size, 1), GFP_KERNEL_ACCOUNT);
	run->output = kvmalloc(CSD_OUTPUT, GFP_KERNEL_ACCOUNT);
	run->buffer = kvmalloc(CSD_BUFFER, GFP_KERNEL_ACCOUNT);
	if (!run->args || !run->scratch || !run->output || !run->buffer)
		return -ENOMEM;
	err = csd_run_bring_args(run, setup->args, setup->args_size);
	if (err)
		return err;

	run->place = setup->place;
	run->start = setup->offset;
	run->limit = setup->length ? setup->offset + setup->length : LLONG_MAX;
	run->max_steps = setup->max_steps;
	return csd_run_rewind(run);
}

/**
 * csd_run_make - CSD_IOC_RUN: make a run
 * @argp: struct csd_setup of the caller
 *
 * Context: process context, may sleep.
 * Return: a descriptor of the run, or a negative errno: -ENOENT if there is no such function;
 *         -EACCES if the caller may not run it; -EMSGSIZE if it takes arguments of another size;
 *         -EOPNOTSUPP if only user space can read the file
 */
long csd_run_make(const struct csd_setup __user *argp)
{
	struct csd_setup setup;
	struct csd_run *run;
	long ret;

	if (copy_from_user(&setup, argp, sizeof(setup)))
		return -EFAULT;
	setup.name[CSD_NAME_LEN - 1] = '\0';
	ret = csd_setup_check(&setup);
	if (ret)
		return ret;
	run = kzalloc(sizeof(*run), GFP_KERNEL_ACCOUNT);
	if (!run)
		return -ENOMEM;
	mutex_init(&run->mutex);
	ret = csd_run_fill(run, &setup);
	if (!ret)
		ret = anon_inode_getfd("[csd-run]", &csd_run_fops, run, O_RDONLY | O_CLOEXEC);
	if (ret < 0)
		csd_run_free(run);
	return ret;
}
