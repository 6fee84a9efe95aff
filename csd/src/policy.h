/* SPDX-License-Identifier: GPL-2.0 */
/*
 * struct csd_policy: what a BPF program implements to choose where functions run. This is the
 * manual.
 */
#ifndef _CSD_POLICY_H
#define _CSD_POLICY_H

#include <linux/csd.h>

/**
 * struct csd_policy - where functions run if their callers leave it open
 *
 * One policy at a time is registered for all devices, through a struct_ops link. A link update
 * replaces it. Without a policy, or if it returns CSD_AUTO, schedule.c decides.
 *
 * @choose: called under rcu_read_lock() for each batch of blocks that lies on a device. May not
 *         sleep. Its argument is read-only. Returns CSD_DEVICE, CSD_KERNEL, or CSD_AUTO for the
 *         ``place`` of its argument. Anything else counts as CSD_AUTO. Required.
 *
 * @name: name of the policy, for display only. Letters, digits and ``_.-``. Required.
 */
struct csd_policy {
	int (*choose)(struct csd_batch *batch);

	char name[CSD_NAME_LEN];
};

#endif /* _CSD_POLICY_H */
