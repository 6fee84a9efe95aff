// SPDX-License-Identifier: GPL-2.0
#include <linux/filelock.h>

static int (*probe(const struct lease_manager_operations *ops))(struct file *, int)
{
	return ops->lm_open_conflict;
}
