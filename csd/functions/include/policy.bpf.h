/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a policy may use. csd/src/policy.h is the manual. The source of a policy defines choose():
 *
 *	int choose(struct csd_batch *batch)
 *	{
 *		return batch->resident == batch->blocks ? CSD_KERNEL : CSD_AUTO;
 *	}
 */
#ifndef _POLICY_BPF_H
#define _POLICY_BPF_H

#include <linux/csd.h>

#endif /* _POLICY_BPF_H */
