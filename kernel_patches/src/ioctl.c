// SPDX-License-Identifier: GPL-2.0
/* The ioctls of /dev/efuse that are eFuse's. */
#include "efuse_i.h"

#include <linux/fs.h>

/**
 * efuse_dev_ioctl - the daemon's ioctls that are eFuse's
 * @file: an open /dev/efuse
 * @cmd: EFUSE_IOC_*
 * @argp: its argument
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -ENOTTY for what is not eFuse's.
 */
long efuse_dev_ioctl(struct file *file, unsigned int cmd, void __user *argp)
{
	struct fuse_dev *fud = efuse_file_dev(file);
	struct efuse_conn *ec = fud ? efuse_conn_get(efuse_dev_conn(fud)) : NULL;

	switch (cmd) {
	case EFUSE_IOC_MAP:
	case EFUSE_IOC_UNMAP:
		return ec ? efuse_extents_ioctl(ec, cmd, argp) : -ENOTCONN;
	case EFUSE_IOC_CHANNEL:
		return ec ? efuse_channel_make(ec, fud, argp) : -ENOTCONN;
	case EFUSE_IOC_NEXT:
		return ec ? efuse_channel_next(fud, file, argp) : -ENOTCONN;
	default:
		return -ENOTTY;
	}
}
