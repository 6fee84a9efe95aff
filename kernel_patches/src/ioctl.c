// SPDX-License-Identifier: GPL-2.0
/* eFuse's own ioctls of /dev/efuse. */
#include "efuse_i.h"

#include <linux/fs.h>

/**
 * efuse_dev_ioctl - handle eFuse's own ioctls of the daemon
 * @file: an open /dev/efuse
 * @cmd: EFUSE_IOC_*
 * @argp: the ioctl's argument, a structure of the daemon
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -ENOTTY for a command that is not eFuse's, -ENOTCONN before the
 *         descriptor belongs to a mount and while a successor has not answered INIT, -ENODEV if it
 *         is a refused successor's
 */
long efuse_dev_ioctl(struct file *file, unsigned int cmd, void __user *argp)
{
	struct fuse_dev *fud = efuse_file_dev(file);
	struct efuse_conn *ec = fud ? efuse_conn_get(efuse_dev_conn(fud)) : NULL;

	if (ec && efuse_dev_detached(fud))
		return -ENODEV;
	if (ec && efuse_daemon_absent(ec))
		ec = NULL;

	switch (cmd) {
	case EFUSE_IOC_TAKEOVER:
		return fud ? -EINVAL : efuse_takeover(file, argp);
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
