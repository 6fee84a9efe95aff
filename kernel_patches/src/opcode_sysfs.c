// SPDX-License-Identifier: GPL-2.0
/* stats/ of a connection in sysfs: a file for each opcode, with a line for each counter. */
#include "efuse_i.h"

#include <linux/sysfs.h>

static const char * const efuse_counter_names[EFUSE_NR_COUNTERS] = {
	[EFUSE_REQUESTS] = "requests",
	[EFUSE_HITS] = "hits",
	[EFUSE_REFUSED] = "refused",
	[EFUSE_DAEMON] = "daemon",
	[EFUSE_ERRORS] = "errors",
	[EFUSE_MISS] = "miss",
	[EFUSE_STALE] = "stale",
	[EFUSE_EXPIRED] = "expired",
	[EFUSE_OTHER_UID] = "other_uid",
	[EFUSE_NOT_ALIVE] = "not_alive",
	[EFUSE_NO_HANDLER] = "no_handler",
	[EFUSE_DECLINED] = "declined",
	[EFUSE_INVALID_VERDICT] = "invalid_verdict",
	[EFUSE_UNMAPPED] = "unmapped",
	[EFUSE_FAILED] = "failed",
};

struct efuse_opcode_attr {
	struct kobj_attribute attr;
	u8 opcode;
};

static ssize_t efuse_opcode_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u8 opcode = container_of(attr, struct efuse_opcode_attr, attr)->opcode;
	struct efuse_conn *ec = efuse_conn_of(kobj);
	int i, len = 0;

	for (i = 0; i < EFUSE_NR_COUNTERS; i++)
		len += sysfs_emit_at(buf, len, "%s %llu\n", efuse_counter_names[i],
				     efuse_stats_sum(ec, offsetof(struct efuse_stats,
								  op[opcode][i])));
	return len + sysfs_emit_at(buf, len, "hit_ns %llu\nhit_timed %llu\n"
				   "daemon_ns %llu\ndaemon_timed %llu\n",
				   EFUSE_TIMES_SUM(ec, hit[opcode].ns),
				   EFUSE_TIMES_SUM(ec, hit[opcode].timed),
				   EFUSE_TIMES_SUM(ec, daemon[opcode].ns),
				   EFUSE_TIMES_SUM(ec, daemon[opcode].timed));
}

#define EFUSE_OPCODE(name, number) { __ATTR(name, 0444, efuse_opcode_show, NULL), number }

/* The opcodes of <linux/fuse.h> that are answered. */
static struct efuse_opcode_attr efuse_opcode_attrs[] = {
	EFUSE_OPCODE(lookup, FUSE_LOOKUP),
	EFUSE_OPCODE(getattr, FUSE_GETATTR),
	EFUSE_OPCODE(setattr, FUSE_SETATTR),
	EFUSE_OPCODE(readlink, FUSE_READLINK),
	EFUSE_OPCODE(symlink, FUSE_SYMLINK),
	EFUSE_OPCODE(mknod, FUSE_MKNOD),
	EFUSE_OPCODE(mkdir, FUSE_MKDIR),
	EFUSE_OPCODE(unlink, FUSE_UNLINK),
	EFUSE_OPCODE(rmdir, FUSE_RMDIR),
	EFUSE_OPCODE(rename, FUSE_RENAME),
	EFUSE_OPCODE(link, FUSE_LINK),
	EFUSE_OPCODE(open, FUSE_OPEN),
	EFUSE_OPCODE(read, FUSE_READ),
	EFUSE_OPCODE(write, FUSE_WRITE),
	EFUSE_OPCODE(statfs, FUSE_STATFS),
	EFUSE_OPCODE(release, FUSE_RELEASE),
	EFUSE_OPCODE(fsync, FUSE_FSYNC),
	EFUSE_OPCODE(setxattr, FUSE_SETXATTR),
	EFUSE_OPCODE(getxattr, FUSE_GETXATTR),
	EFUSE_OPCODE(listxattr, FUSE_LISTXATTR),
	EFUSE_OPCODE(removexattr, FUSE_REMOVEXATTR),
	EFUSE_OPCODE(flush, FUSE_FLUSH),
	EFUSE_OPCODE(init, FUSE_INIT),
	EFUSE_OPCODE(opendir, FUSE_OPENDIR),
	EFUSE_OPCODE(readdir, FUSE_READDIR),
	EFUSE_OPCODE(releasedir, FUSE_RELEASEDIR),
	EFUSE_OPCODE(fsyncdir, FUSE_FSYNCDIR),
	EFUSE_OPCODE(getlk, FUSE_GETLK),
	EFUSE_OPCODE(setlk, FUSE_SETLK),
	EFUSE_OPCODE(setlkw, FUSE_SETLKW),
	EFUSE_OPCODE(access, FUSE_ACCESS),
	EFUSE_OPCODE(create, FUSE_CREATE),
	EFUSE_OPCODE(bmap, FUSE_BMAP),
	EFUSE_OPCODE(destroy, FUSE_DESTROY),
	EFUSE_OPCODE(ioctl, FUSE_IOCTL),
	EFUSE_OPCODE(poll, FUSE_POLL),
	EFUSE_OPCODE(fallocate, FUSE_FALLOCATE),
	EFUSE_OPCODE(readdirplus, FUSE_READDIRPLUS),
	EFUSE_OPCODE(rename2, FUSE_RENAME2),
	EFUSE_OPCODE(lseek, FUSE_LSEEK),
	EFUSE_OPCODE(copy_file_range, FUSE_COPY_FILE_RANGE),
	EFUSE_OPCODE(setupmapping, FUSE_SETUPMAPPING),
	EFUSE_OPCODE(removemapping, FUSE_REMOVEMAPPING),
	EFUSE_OPCODE(syncfs, FUSE_SYNCFS),
	EFUSE_OPCODE(tmpfile, FUSE_TMPFILE),
	EFUSE_OPCODE(statx, FUSE_STATX),
	EFUSE_OPCODE(copy_file_range_64, EFUSE_COPY_FILE_RANGE_64),
};

/* Filled in by efuse_opcode_sysfs_init(). */
static struct attribute *efuse_opcode_list[ARRAY_SIZE(efuse_opcode_attrs) + 1];

const struct attribute_group efuse_opcode_group = {
	.name = "stats",
	.attrs = efuse_opcode_list,
};

void efuse_opcode_sysfs_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(efuse_opcode_attrs); i++)
		efuse_opcode_list[i] = &efuse_opcode_attrs[i].attr.attr;
}
