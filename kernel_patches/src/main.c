// SPDX-License-Identifier: GPL-2.0
/* Initialization and exit of eFuse within the FUSE module. */
#include "efuse_i.h"

int efuse_init(void)
{
	int err;

	err = efuse_extents_init();
	if (err)
		return err;
	err = efuse_sysfs_init();
	if (err)
		goto out_extents;

	/* These two cannot be unregistered: they end with the BTF of the module. */
	err = efuse_kfuncs_init();
	if (!err)
		err = efuse_ops_init();
	if (!err)
		return 0;
	efuse_sysfs_exit();
out_extents:
	efuse_extents_exit();
	return err;
}

void efuse_exit(void)
{
	efuse_sysfs_exit();
	efuse_extents_exit();
}
