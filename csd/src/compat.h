/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that csd.ko is built for, Linux 6.12 and 7.3. CSD_HAS_<NAME> is
 * defined if probes/<name>.c compiles: see Kbuild.
 */
#ifndef _CSD_COMPAT_H
#define _CSD_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/btf.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>

/* Linux 7.3 has no such flag: the arguments of all kfuncs must be trusted there. */
#ifndef KF_TRUSTED_ARGS
#define KF_TRUSTED_ARGS	0
#endif

/* Linux 7.3 passes the batch of completions to the end of a request, 6.12 does not. */
#ifdef CSD_HAS_END_IO_BATCH
#define CSD_END_IO(name)								\
	enum rq_end_io_ret name(struct request *rq, blk_status_t status,		\
				const struct io_comp_batch *batch)
#else
#define CSD_END_IO(name)								\
	enum rq_end_io_ret name(struct request *rq, blk_status_t status)
#endif

/* The type of a NUMA node where a request's memory is initialized: signed in Linux 7.3. */
#ifdef CSD_HAS_SIGNED_NODE
#define CSD_NODE	int
#else
#define CSD_NODE	unsigned int
#endif

/* Linux 6.12 merges requests only with this flag; 7.3 has no flag. */
#ifdef CSD_HAS_SHOULD_MERGE
#define CSD_MERGE	BLK_MQ_F_SHOULD_MERGE
#else
#define CSD_MERGE	0
#endif

/* Linux 7.3 leaves it to a lease's manager to check whether the file is open for writing. */
#ifdef CSD_HAS_OPEN_CONFLICT
static inline int csd_open_conflict(struct file *file, int type)
{
	return inode_is_open_for_write(file_inode(file)) ? -EAGAIN : 0;
}

#define CSD_OPEN_CONFLICT	.lm_open_conflict = csd_open_conflict,
#else
#define CSD_OPEN_CONFLICT
#endif

/* Linux 7.3 has no hrtimer_init(), and 6.12 has no hrtimer_setup(). */
static inline void csd_timer_setup(struct hrtimer *timer,
				   enum hrtimer_restart (*due)(struct hrtimer *timer))
{
#ifdef CSD_HAS_HRTIMER_SETUP
	hrtimer_setup(timer, due, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	timer->function = due;
#endif
}

#endif /* _CSD_COMPAT_H */
