// SPDX-License-Identifier: GPL-2.0
/* Start and end of csd.ko. */
#include "csd_i.h"

#include <linux/module.h>

static int __init csd_init(void)
{
	int err = csd_devices_init();

	if (err)
		return err;
	err = csd_config_init();
	if (err)
		goto out_devices;
	err = csd_control_init();
	if (err)
		goto out_config;

	/* These need no cleanup: they go with the module's BTF. */
	err = csd_kfuncs_init();
	if (!err)
		err = csd_functions_init();
	if (!err)
		err = csd_policies_init();
	if (!err)
		return 0;
	csd_control_exit();
out_config:
	csd_config_exit();
out_devices:
	csd_devices_exit();
	return err;
}

static void __exit csd_exit(void)
{
	csd_control_exit();
	csd_config_exit();
	csd_devices_exit();
}

module_init(csd_init);
module_exit(csd_exit);

MODULE_DESCRIPTION("Emulated computational storage device");
MODULE_AUTHOR("eFuse developers");
MODULE_LICENSE("GPL");
MODULE_VERSION(CSD_VERSION);
