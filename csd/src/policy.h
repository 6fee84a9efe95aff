/* SPDX-License-Identifier: GPL-2.0 */
/* struct csd_policy: what a BPF program implements to say where functions run. The manual. */
#ifndef _CSD_POLICY_H
#define _CSD_POLICY_H

#include <linux/csd.h>

/**
 * struct csd_policy - where functions run whose callers leave that open
 *
 * One policy at a time is registered, through a struct_ops link, for all devices; a link update
 * puts another one in its place. Without one, and where it does not care, schedule.c decides.
 *
 * @choose: called for each batch of blocks that lies on a device, under rcu_read_lock(); may not
 *	sleep. What it is given it may only read. Returns CSD_DEVICE, CSD_KERNEL, or CSD_AUTO for
 *	what its argument's ``place`` says; anything else counts as CSD_AUTO. Required.
 *
 * @name: for those who look which one it is. Letters, digits and ``_.-``. Required.
 */
struct csd_policy {
	int (*choose)(struct csd_batch *batch);

	char name[CSD_NAME_LEN];
};

#endif /* _CSD_POLICY_H */
