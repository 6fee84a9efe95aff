// SPDX-License-Identifier: GPL-2.0
/*
 * A module that commits a fault when the fault's name is written to its parameter. Each is a fault
 * that a debugging kernel finds: the test run shows that the kernel reports it, and that the report
 * is noticed.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

/* How long a task hangs, in ms. */
#define HUNG_MS	30000

/* How long two tasks race with each other, in ms. */
#define RACE_MS	10000

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

static void fault_kasan(void)
{
	char *bytes = kmalloc(40, GFP_KERNEL);

	if (!bytes)
		return;
	OPTIMIZER_HIDE_VAR(bytes);
	bytes[40] = 'x';
	kfree(bytes);
}

static void fault_lockdep(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);

	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
}

static void fault_list(void)
{
	LIST_HEAD(head);
	struct list_head entry, other;

	INIT_LIST_HEAD(&other);
	list_add(&entry, &head);
	entry.prev = &other;
	list_del(&entry);
}

static void fault_leak(void)
{
	void *forgotten = kmalloc(200, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(forgotten);
}

static int hang(void *unused)
{
	set_current_state(TASK_UNINTERRUPTIBLE);
	schedule_timeout(msecs_to_jiffies(HUNG_MS));
	return 0;
}

static void fault_hung(void)
{
	kthread_run(hang, NULL, "efuse-hung");
}

static unsigned long counter;

/* Count without a lock, and without the annotation that concurrent accesses need. */
static noinline void count_unlocked(void)
{
	unsigned long end = jiffies + msecs_to_jiffies(RACE_MS);

	while (time_before(jiffies, end)) {
		counter++;
		barrier();
		cond_resched();
	}
}

static int race(void *unused)
{
	count_unlocked();
	return 0;
}

static void fault_race(void)
{
	if (!IS_ERR(kthread_run(race, NULL, "efuse-race")))
		count_unlocked();
}

static const struct {
	const char *name;
	void (*commit)(void);
} faults[] = {
	{ "kasan", fault_kasan },
	{ "lockdep", fault_lockdep },
	{ "list", fault_list },
	{ "leak", fault_leak },
	{ "hung", fault_hung },
	{ "race", fault_race },
};

static int fault_set(const char *word, const struct kernel_param *kp)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		if (!sysfs_streq(word, faults[i].name))
			continue;
		faults[i].commit();
		return 0;
	}
	return -EINVAL;
}

static const struct kernel_param_ops fault_ops = { .set = fault_set };

module_param_cb(fault, &fault_ops, NULL, 0200);
MODULE_PARM_DESC(fault, "the fault to commit: kasan, lockdep, list, leak, hung, race");
MODULE_DESCRIPTION("Commits faults that a kernel for debugging finds");
MODULE_LICENSE("GPL");
