// SPDX-License-Identifier: GPL-2.0
/* /dev/csd, on which runs are made. */
#include "csd_i.h"

#include <linux/fs.h>
#include <linux/miscdevice.h>

static long csd_control_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return cmd == CSD_IOC_RUN ? csd_run_make((void __user *)arg) : -ENOTTY;
}

static const struct file_operations csd_control_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = csd_control_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/*
 * Open to all users: a function runs over a file that its caller has opened for reading, sees no
 * other block, and returns no more than read(2) could. An administrator may restrict it by the mode
 * of the device node.
 */
static struct miscdevice csd_control = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "csd",
	.mode = 0666,
	.fops = &csd_control_fops,
};

int csd_control_init(void)
{
	return misc_register(&csd_control);
}

void csd_control_exit(void)
{
	misc_deregister(&csd_control);
}
