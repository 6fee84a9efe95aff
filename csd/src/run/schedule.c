// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses where to look at a run's next blocks, if the caller leaves it open.
 *
 * A batch of blocks is sent where it is predicted to take less time:
 *   device = n * device_ns + commands ahead of it * command_ns / cores
 *   kernel = resident * hot_ns + (n - resident) * cold_ns
 * where the page cache has `resident` of the n blocks. The times per block are measured for each
 * function name, for each device, and for each size class of batches, because every batch has a
 * fixed cost of its own. A time is known after two batches: it is that of the quicker one. Each
 * later batch moves it by a quarter of the difference. A batch that took more than four times the
 * known time counts as four times, because something else may have held it up. Chains are a size
 * class of their own. The time to find out where blocks are does not count for chains, because
 * later chains know the places.
 *
 * A time that is not known is measured by trying. The place that is predicted to be slower is also
 * tried now and then, with a smaller batch, because it may not be slower any more. What tries cost
 * more than the better place is kept a small share of the time: the next try comes when enough time
 * was spent at the better place, and later the more consecutive tries have found nothing better.
 * The share is 1 / ``try_share`` of the device, read at each decision. The device's ``forced``
 * takes precedence over all of this, and over a policy.
 */
#include "run_i.h"

#include <linux/fs.h>

#define CSD_TRY		32	/* blocks of a try; the first batches at a device are larger */
#define CSD_PATIENCE	16	/* least number of batches between two tries */
#define CSD_SURE	2	/* consecutive confirming tries, each of which halves the share */

/*
 * Does the run's next batch go from block to block in a chain? A chain begins with a single block,
 * and not in a run's first pass.
 */
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

/* The last struct csd_costs.id; ids are never used again, on any device. */
static atomic64_t csd_costs_ids;

/*
 * The costs of the function of this name. A new entry takes the place of the oldest. Under the
 * schedule's lock.
 */
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

/*
 * The costs of a run's function in the size class of its batch: at the remembered index if the
 * entry was not reused. Under the schedule's lock.
 */
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

/* Time in ns until the commands ahead of a new one are done. */
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

/* Predicted time in ns; 0 if it is not known. */
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

/* Is it time to try the place that is predicted to be slower? Never with a try_share of 0. */
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

/* Under the schedule's lock. */
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

/* Predicts a run's next batch. With @open, also chooses its place without a policy. */
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

/* Most blocks of the batch: fewer in the kernel than at the device, and few for a try. */
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
 * The device behind a block device. The run keeps a reference to it. It may be losing its power:
 * then what is sent there fails, and the kernel takes over.
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
 * csd_choose - choose where to look at a batch, and begin to measure it
 * @run: the run
 * @lower: the file that has the blocks, on a device of csd.ko
 * @blocks: number of blocks of the batch
 *
 * csd_learn() has to follow.
 *
 * Context: process context.
 * Return: true for the device, false for the kernel; at most @run->choice.blocks blocks
 */
bool csd_choose(struct csd_run *run, const struct efuse_lower *lower, u32 blocks)
{
	struct csd_choice *choice = &run->choice;
	struct csd_device *device = csd_choose_device(run, file_inode(lower->file)->i_sb->s_bdev);
	bool open = run->place == CSD_AUTO;
	struct csd_batch batch;

	choice->device = device;
	choice->blocks = blocks;
	/* The power has just gone. The device path will fail, and the kernel takes over. */
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

/* Time that the blocks would take at the better place. The page cache has @hot of them. */
static u64 csd_cost_better(const struct csd_cost *cost, u64 steps, u64 hot)
{
	if (cost->better == CSD_DEVICE)
		return steps * cost->device.ns;
	return hot * cost->hot.ns + (steps - hot) * cost->cold.ns;
}

/* Accounts for the time of a batch, or for the loss of a try. Under the schedule's lock. */
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

/* Adds a measured batch to the times of its place. Under the schedule's lock. */
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
		/* The mean over hot and cold blocks is not less than that of a hot one. */
		csd_mean_add(&cost->hot, div64_u64(ns, steps));
}

static void csd_count_error(struct csd_schedule *schedule, u64 predicted, u64 actual)
{
	atomic64_add(predicted, &schedule->predicted_ns);
	atomic64_add(actual, &schedule->actual_ns);
	atomic64_add(abs_diff(predicted, actual), &schedule->error_ns);
}

/**
 * csd_learn - end the measurement that csd_choose() began, if it began one
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
	/* If some blocks went to another place, the time of each place is not known. */
	if (steps && !others) {
		if (choice->predicted_ns)
			csd_count_error(&device->schedule,
					div_u64(choice->predicted_ns * steps, choice->blocks), ns);
		/* Waiting for a core is not a cost of the function. */
		ns -= min(ns, run->command.waited_ns);
		spin_lock(&device->schedule.lock);
		csd_cost_learn(csd_cost_of(&device->schedule, run), choice, steps, ns);
		spin_unlock(&device->schedule.lock);
	}
	choice->device = NULL;
}
