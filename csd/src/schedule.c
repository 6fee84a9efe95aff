// SPDX-License-Identifier: GPL-2.0
/*
 * Where a run's next blocks are looked at, if its caller leaves that open.
 *
 * A batch of blocks is sent where it is predicted to take less time:
 *	device = n * device_ns + the commands ahead of it * command_ns / cores
 *	kernel = resident * hot_ns + (n - resident) * cold_ns
 * with n blocks, of which the page cache has `resident`. The times of a block are measured, of each
 * function by its name, for each device, and for batches of about that size, since each
 * batch has a cost of its own. A time is known by two batches, the quicker one; each that follows
 * moves it by a quarter of the difference, but counts as no more than four times what was known: a
 * batch that was held up by something else says little. Chains are a size of their own, and what is
 * taken to find out where blocks are is not theirs: the next ones know.
 *
 * What is not known is tried, and so is, now and then, by a smaller batch, the place that is
 * thought to be slower: it may not be any more. What a try has cost more than the better place
 * would have is to be a small part of the time: the next one comes when enough was spent at that,
 * and the later, the more of them have found nothing better. How small is the device's
 * ``try_share``, as it is when that is asked, not when the try was made; its ``forced`` goes before
 * all of this, and before a policy.
 */
#include "csd_i.h"

#include <linux/fs.h>
#include <linux/pagemap.h>

#define CSD_TRY		32	/* blocks; the device's first batches are larger */
#define CSD_PATIENCE	16	/* batches from one try to the next, at least */
#define CSD_SURE	2	/* tries by each of which it is half of that */

/* From block to block, a run that goes again takes chains, which begin with a single block. */
static bool csd_choose_chain(const struct csd_run *run)
{
	return run->ahead == 1 && run->passes > 1 && csd_entry_flags(run->function) & CSD_JUMPS;
}

static enum csd_size csd_size_of(const struct csd_run *run, u64 blocks)
{
	if (csd_choose_chain(run))
		return CSD_CHAIN;
	if (blocks < 8)
		return CSD_SMALL;
	return blocks < 64 ? CSD_MEDIUM : CSD_LARGE;
}

/* The next struct csd_costs.id: never the same again, on no device. */
static atomic64_t csd_costs_ids;

/* Of the function of this name; those that have been there longest make room. Under the lock. */
static struct csd_costs *csd_costs_find(struct csd_schedule *schedule, const char *name)
{
	struct csd_costs *costs;
	char known_as[CSD_NAME_LEN];
	u32 i;

	strscpy(known_as, name, min(strcspn(name, ".") + 1, sizeof(known_as)));
	for (i = 0; i < CSD_NR_COSTS; i++)
		if (!strcmp(schedule->costs[i].name, known_as))
			return &schedule->costs[i];
	costs = &schedule->costs[schedule->oldest++ % CSD_NR_COSTS];
	memset(costs, 0, sizeof(*costs));
	costs->id = atomic64_inc_return(&csd_costs_ids);
	strscpy(costs->name, known_as, sizeof(costs->name));
	return costs;
}

/* Of a run's function: where they were, unless they had to make room. Under the lock. */
static struct csd_cost *csd_cost_of(struct csd_schedule *schedule, struct csd_run *run)
{
	struct csd_costs *costs = &schedule->costs[run->costs];

	if (!run->costs_id || costs->id != run->costs_id) {
		costs = csd_costs_find(schedule, csd_entry_name(run->function));
		run->costs = costs - schedule->costs;
		run->costs_id = costs->id;
	}
	return &costs->size[run->choice.size];
}

/**
 * csd_resident - how many of a file's blocks the page cache has
 * @file: the file
 * @position: in it: of the first block
 * @blocks: how many are asked for
 *
 * Context: process context.
 * Return: how many; of those that are just being read, none
 */
u32 csd_resident(const struct file *file, u64 position, u32 blocks)
{
	XA_STATE(xas, &file->f_mapping->i_pages, position >> PAGE_SHIFT);
	pgoff_t first = position >> PAGE_SHIFT, last = first + blocks - 1;
	struct folio *folio;
	u32 resident = 0;

	rcu_read_lock();
	xas_for_each(&xas, folio, last) {
		if (xas_retry(&xas, folio) || xa_is_value(folio))
			continue;
		if (folio_test_uptodate(folio))
			resident += min(folio_next_index(folio) - 1, last) -
				    max(folio->index, first) + 1;
		if (folio_next_index(folio) > last)
			break;
	}
	rcu_read_unlock();
	return min(resident, blocks);
}

/* Of the commands that are ahead of one that is sent now. */
static u64 csd_queue_ns(const struct csd_device *device)
{
	u64 cores = READ_ONCE(device->cores), busy = READ_ONCE(device->cores_busy);

	if (busy < cores)
		return 0;
	return (READ_ONCE(device->cores_waiting) + 1) * READ_ONCE(device->command_ns) / cores;
}

static bool csd_known(const struct csd_mean *mean)
{
	return mean->samples > 1;
}

static void csd_mean_add(struct csd_mean *mean, u64 sample)
{
	sample = max_t(u64, sample, 1);
	if (csd_known(mean))
		mean->ns = (3 * mean->ns + min(sample, 4 * mean->ns)) / 4;
	else
		mean->ns = mean->samples++ ? min(mean->ns, sample) : sample;
}

/* 0: not known. */
static u64 csd_predict_device(const struct csd_choice *choice, const struct csd_cost *cost,
			      u64 queue_ns)
{
	if (!csd_known(&cost->device))
		return 0;
	return cost->device.ns * choice->blocks + queue_ns;
}

static u64 csd_predict_kernel(const struct csd_choice *choice, const struct csd_cost *cost)
{
	u32 resident = choice->resident;

	if ((resident && !csd_known(&cost->hot)) ||
	    (resident < choice->blocks && !csd_known(&cost->cold)))
		return 0;
	return cost->hot.ns * resident + cost->cold.ns * (choice->blocks - resident);
}

/* Is it time to try the place that is not thought to be the better one? Never with a share of 0. */
static bool csd_cost_impatient(struct csd_cost *cost, enum csd_place better, u64 try_share)
{
	if (cost->better != better) {
		cost->better = better;
		cost->lost_ns = 0;
		cost->confirmed = 0;
		return false;
	}
	return ++cost->batches >= CSD_PATIENCE && try_share &&
	       div64_u64(cost->spent_ns, try_share) >= cost->lost_ns;
}

/* Under the lock. */
static enum csd_place csd_choose_place(struct csd_choice *choice, struct csd_cost *cost,
				       const struct csd_batch *batch)
{
	enum csd_place better;

	if (!batch->device_ns)
		return CSD_DEVICE;
	if (!batch->kernel_ns)
		return CSD_KERNEL;
	better = batch->device_ns <= batch->kernel_ns ? CSD_DEVICE : CSD_KERNEL;
	choice->open = true;
	choice->trial = csd_cost_impatient(cost, better,
					   READ_ONCE(choice->device->schedule.try_share));
	if (!choice->trial)
		return better;
	cost->batches = 0;
	cost->spent_ns = 0;
	return better == CSD_DEVICE ? CSD_KERNEL : CSD_DEVICE;
}

/* What is known of a run's next batch, and, if that is open, where it would be sent. */
static void csd_predict(struct csd_run *run, bool open, struct csd_batch *batch)
{
	struct csd_choice *choice = &run->choice;
	struct csd_schedule *schedule = &choice->device->schedule;
	struct csd_cost *cost;

	batch->blocks = choice->blocks;
	batch->resident = choice->resident;
	batch->queue_ns = csd_queue_ns(choice->device);
	spin_lock(&schedule->lock);
	cost = csd_cost_of(schedule, run);
	batch->device_ns = csd_predict_device(choice, cost, batch->queue_ns);
	batch->kernel_ns = csd_predict_kernel(choice, cost);
	batch->place = open ? csd_choose_place(choice, cost, batch) : CSD_AUTO;
	batch->pad = 0;
	spin_unlock(&schedule->lock);
}

static enum csd_place csd_choose_auto(struct csd_run *run, struct csd_batch *batch)
{
	struct csd_choice *choice = &run->choice;
	struct csd_schedule *schedule = &choice->device->schedule;
	enum csd_place place = READ_ONCE(schedule->forced);

	if (place == CSD_AUTO) {
		place = csd_policy_choose(csd_entry_name(run->function), batch);
		if (place != CSD_AUTO)
			atomic64_inc(&schedule->chosen_policy);
	}
	if (place != CSD_AUTO)
		choice->open = false;
	else
		place = batch->place;
	atomic64_inc(place == CSD_DEVICE ? &schedule->chosen_device : &schedule->chosen_kernel);
	return place;
}

/* How many blocks at a time. The kernel takes fewer than the device, what is only tried as well. */
static u32 csd_choose_most(const struct csd_choice *choice, const struct csd_batch *batch)
{
	bool better = batch->kernel_ns && batch->kernel_ns < batch->device_ns;

	if (choice->place == CSD_KERNEL)
		return better ? CSD_BUFFER / CSD_BLOCK_SIZE : CSD_TRY;
	return choice->open && choice->trial ? CSD_TRY : CSD_WINDOW;
}

static void csd_choose_fewer(struct csd_run *run, const struct efuse_lower *lower,
			     struct csd_batch *batch)
{
	struct csd_choice *choice = &run->choice;
	u32 most = csd_choose_most(choice, batch);

	if (choice->blocks <= most)
		return;
	choice->blocks = most;
	choice->resident = csd_resident(lower->file, lower->position, most);
	csd_predict(run, false, batch);
}

/*
 * The device that a block device is of, kept for as long as the run is there. It may be losing its
 * power: what is sent there fails, and the kernel goes on.
 */
static struct csd_device *csd_choose_device(struct csd_run *run, struct block_device *bdev)
{
	if (run->device && READ_ONCE(run->device->disk) == bdev->bd_disk)
		return run->device;
	if (run->device)
		csd_device_put(run->device);
	run->device = csd_device_get(bdev);
	return run->device;
}

/**
 * csd_choose - choose where a batch is looked at, and begin to measure it
 * @run: the run
 * @lower: the file that has it, on a device of ours
 * @blocks: of the batch
 *
 * Context: process context. Ends with csd_learn().
 * Return: whether the device is to, else the kernel; up to @run->choice.blocks
 */
bool csd_choose(struct csd_run *run, const struct efuse_lower *lower, u32 blocks)
{
	struct csd_choice *choice = &run->choice;
	struct csd_device *device = csd_choose_device(run, file_inode(lower->file)->i_sb->s_bdev);
	bool open = run->place == CSD_AUTO;
	struct csd_batch batch;

	choice->device = device;
	choice->blocks = blocks;
	/* Its power has just gone: what is sent there fails, and the kernel goes on. */
	if (!device)
		return true;
	choice->open = false;
	choice->trial = false;
	choice->size = csd_size_of(run, blocks);
	choice->resident = open ? csd_resident(lower->file, lower->position, blocks) : 0;
	choice->looked_at = open && blocks == 1 ? run->position : CSD_NOWHERE;
	choice->apart_ns = 0;
	csd_predict(run, open, &batch);
	choice->place = open ? csd_choose_auto(run, &batch) : CSD_DEVICE;
	csd_choose_fewer(run, lower, &batch);
	choice->predicted_ns = choice->place == CSD_KERNEL ? batch.kernel_ns : batch.device_ns;
	choice->steps = run->steps[choice->place];
	choice->others = run->steps[CSD_DEVICE] + run->steps[CSD_KERNEL] - choice->steps;
	run->command.waited_ns = 0;
	choice->begun_ns = ktime_get_ns();
	return choice->place == CSD_DEVICE;
}

/* What blocks would take at the better place, of which @hot the page cache has. */
static u64 csd_cost_better(const struct csd_cost *cost, u64 steps, u64 hot)
{
	if (cost->better == CSD_DEVICE)
		return steps * cost->device.ns;
	return hot * cost->hot.ns + (steps - hot) * cost->cold.ns;
}

/* Under the lock. */
static void csd_cost_spend(struct csd_cost *cost, const struct csd_choice *choice, u64 steps,
			   u64 hot, u64 ns)
{
	u64 better_ns = csd_cost_better(cost, steps, hot);

	if (!choice->open)
		return;
	if (!choice->trial) {
		cost->spent_ns += ns;
	} else if (ns > better_ns) {
		cost->lost_ns = (ns - better_ns) << cost->confirmed;
		cost->confirmed = min(cost->confirmed + 1, CSD_SURE);
	} else {
		cost->lost_ns = 0;
		cost->confirmed = 0;
	}
}

/* Under the lock. */
static void csd_cost_learn(struct csd_cost *cost, const struct csd_choice *choice, u64 steps,
			   u64 ns)
{
	u64 hot = div_u64(steps * choice->resident, choice->blocks);
	u64 hot_ns = hot * cost->hot.ns;

	csd_cost_spend(cost, choice, steps, hot, ns);
	ns -= min(ns, choice->apart_ns);
	if (choice->place == CSD_DEVICE)
		csd_mean_add(&cost->device, div64_u64(ns, steps));
	else if (hot == steps)
		csd_mean_add(&cost->hot, div64_u64(ns, steps));
	else if (!hot || csd_known(&cost->hot))
		csd_mean_add(&cost->cold, div64_u64(ns > hot_ns ? ns - hot_ns : 0, steps - hot));
	else
		/* What both took together is not less than the quicker one. */
		csd_mean_add(&cost->hot, div64_u64(ns, steps));
}

static void csd_count_error(struct csd_schedule *schedule, u64 predicted, u64 actual)
{
	atomic64_add(predicted, &schedule->predicted_ns);
	atomic64_add(actual, &schedule->actual_ns);
	atomic64_add(abs_diff(predicted, actual), &schedule->error_ns);
}

/**
 * csd_learn - end what csd_choose() has begun, if it has
 * @run: the run
 */
void csd_learn(struct csd_run *run)
{
	struct csd_choice *choice = &run->choice;
	struct csd_device *device = choice->device;
	u64 steps, others, ns;

	if (!device)
		return;
	ns = ktime_get_ns() - choice->begun_ns;
	steps = run->steps[choice->place] - choice->steps;
	others = run->steps[CSD_DEVICE] + run->steps[CSD_KERNEL] - run->steps[choice->place] -
		 choice->others;
	/* Of what went on at another place it is not known how long each took. */
	if (steps && !others) {
		if (choice->predicted_ns)
			csd_count_error(&device->schedule,
					div_u64(choice->predicted_ns * steps, choice->blocks), ns);
		/* The wait for a core is none of the function's. */
		ns -= min(ns, run->command.waited_ns);
		spin_lock(&device->schedule.lock);
		csd_cost_learn(csd_cost_of(&device->schedule, run), choice, steps, ns);
		spin_unlock(&device->schedule.lock);
	}
	choice->device = NULL;
}
