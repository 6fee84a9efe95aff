/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that csd.ko is built for. CSD_HAS_* is defined where
 * probes/ of that name compiles: see Kbuild.
 */
#ifndef _CSD_COMPAT_H
#define _CSD_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/btf.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>

/* Arguments of kfuncs were to be trusted only where that was said; now they always are. */
#ifndef KF_TRUSTED_ARGS
#define KF_TRUSTED_ARGS	0
#endif

/* The end of a request is told of the batch that it ends with; formerly not. */
#ifdef CSD_HAS_END_IO_BATCH
#define CSD_END_IO(name)								\
	enum rq_end_io_ret name(struct request *rq, blk_status_t status,		\
				const struct io_comp_batch *batch)
#else
#define CSD_END_IO(name)								\
	enum rq_end_io_ret name(struct request *rq, blk_status_t status)
#endif

/* How the node of a request's memory is told. */
#ifdef CSD_HAS_SIGNED_NODE
#define CSD_NODE	int
#else
#define CSD_NODE	unsigned int
#endif

/* Merging had to be asked for formerly. */
#ifdef CSD_HAS_SHOULD_MERGE
#define CSD_MERGE	BLK_MQ_F_SHOULD_MERGE
#else
#define CSD_MERGE	0
#endif

/* Whether somebody has the file open for writing, is now for a lease's manager to say. */
#ifdef CSD_HAS_OPEN_CONFLICT
static inline int csd_open_conflict(struct file *file, int type)
{
	return inode_is_open_for_write(file_inode(file)) ? -EAGAIN : 0;
}

#define CSD_OPEN_CONFLICT	.lm_open_conflict = csd_open_conflict,
#else
#define CSD_OPEN_CONFLICT
#endif

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
