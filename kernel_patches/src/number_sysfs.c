// SPDX-License-Identifier: GPL-2.0
/* Files in sysfs for the numbers of a connection that root can set, in its subdirectories. */
#include "efuse_i.h"

#include <linux/sysfs.h>

static u32 *efuse_number_of(struct kobject *kobj, const struct efuse_number *number)
{
	return (void *)efuse_conn_of(kobj) + number->offset;
}

ssize_t efuse_number_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct efuse_number *number = container_of(attr, struct efuse_number, attr);

	return sysfs_emit(buf, "%u\n", READ_ONCE(*efuse_number_of(kobj, number)));
}

ssize_t efuse_number_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			   size_t count)
{
	struct efuse_number *number = container_of(attr, struct efuse_number, attr);
	u32 value;
	int err = kstrtou32(buf, 10, &value);

	if (err)
		return err;
	if (value < number->least || value > number->most || value % number->step)
		return -EINVAL;
	WRITE_ONCE(*efuse_number_of(kobj, number), value);
	return count;
}
