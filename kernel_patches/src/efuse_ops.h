/* SPDX-License-Identifier: GPL-2.0 */
/*
 * struct efuse_ops: what a BPF program set may implement. This is the manual.
 */
#ifndef _FS_FUSE_EFUSE_OPS_H
#define _FS_FUSE_EFUSE_OPS_H

#include <linux/types.h>

struct efuse_req;
struct efuse_notify;
struct efuse_exit_info;
struct efuse_placement;

#define EFUSE_OPS_NAME_LEN	32

/**
 * struct efuse_ops - handlers of one connection's requests
 *
 * A set is registered through a struct_ops link and belongs to the one
 * connection that @connection names. All members may be absent. All but @select_channel are
 * called in process context, all under rcu_read_lock(), and may not sleep. Several CPUs call
 * the same member at once.
 *
 * **Request members** (@lookup to @request) are called before a request is
 * queued to the daemon, for requests that a task makes and waits for. They
 * may call the efuse_req_*() kfuncs and the efuse_reply_*() of their own kind.
 * They return
 *
 * * ``0`` - the daemon is asked, as plain FUSE would ask it;
 * * ``EFUSE_REPLIED`` - the request is answered. Counts only if the member called
 *   efuse_reply_*() and that returned EFUSE_REPLIED; it is garbage otherwise;
 * * ``-1`` to ``-511``, but not ``-ENOSYS`` (which would switch the opcode off for
 *   the whole mount) - the request fails with that errno;
 * * anything else is counted as garbage and the daemon is asked.
 *
 * An absent member is the same as one that returns 0. Whatever they return,
 * what the daemon has to be told (FORGET; RELEASE, RELEASEDIR of a file that it
 * opened; anything sent in the background) is told to it.
 *
 * @lookup: LOOKUP. May call efuse_reply_entry(), efuse_reply_negative().
 * @getattr: GETATTR. May call efuse_reply_attrs().
 * @setattr: SETATTR. This and all without a mention below can refuse, not answer.
 * @access: ACCESS. May call efuse_reply_grant().
 * @readlink: READLINK. May call efuse_reply_blob().
 * @getxattr: GETXATTR. May call efuse_reply_blob().
 * @setxattr: SETXATTR.
 * @listxattr: LISTXATTR. May call efuse_reply_blob().
 * @removexattr: REMOVEXATTR.
 * @open: OPEN. May call efuse_reply_grant(). A file so opened has its nodeid as
 *	its handle, and the daemon sees no RELEASE of it.
 * @release: RELEASE that the daemon will see. The verdict is ignored.
 * @opendir: OPENDIR. As @open.
 * @releasedir: RELEASEDIR. As @release.
 * @readdir: READDIR.
 * @readdirplus: READDIRPLUS.
 * @read: READ that a task waits for.
 * @write: WRITE that a task waits for.
 * @flush: FLUSH. May call efuse_reply_flush().
 * @fsync: FSYNC.
 * @lseek: LSEEK.
 * @fallocate: FALLOCATE.
 * @copy_file_range: COPY_FILE_RANGE.
 * @statfs: STATFS. May call efuse_reply_volume().
 * @create: CREATE.
 * @mknod: MKNOD.
 * @mkdir: MKDIR.
 * @symlink: SYMLINK.
 * @link: LINK.
 * @unlink: UNLINK.
 * @rmdir: RMDIR.
 * @rename: RENAME and RENAME2.
 * @ioctl: IOCTL.
 * @request: every opcode that has no member of its own.
 *
 * @reply: the daemon has answered a request and the caller has not seen it yet;
 *	@error is 0 or a negative errno. Also called for requests sent in the
 *	background. May call efuse_req_*(), and efuse_req_ended(), efuse_req_epoch(). What
 *	it returns is ignored.
 * @learn: the daemon's answer brings a value that is worth keeping; called once
 *	for each (READDIRPLUS brings two per entry), behind @reply. It
 *	may call efuse_req_*() and efuse_learn_*(), and should store
 *	efuse_learn_value() under efuse_learn_key() in the map that
 *	efuse_learn_map() names. For EFUSE_MAP_BLOCKS it should choose a slot for the
 *	block efuse_req_block() and call efuse_learn_block() instead, behind which
 *	efuse_learn_evicted() tells what made room. Returns 0, or a
 *	negative errno when the map took no more, which is counted in sysfs as map_full.
 * @select_path: a READ or WRITE that its handler passed is about to be carried out. Also
 *	called for those in the background, if their sender may sleep. May call
 *	efuse_req_*(), efuse_path_info(), efuse_path_predict() and
 *	efuse_path_resident(). Returns an enum
 *	efuse_path; EFUSE_PATH_AUTO is the direct path
 *	where the daemon mapped extents of the file, else the cache for a READ if
 *	there is a @block, else the daemon. EFUSE_PATH_MEASURE and EFUSE_PATH_PROBE
 *	may be added. Anything else is
 *	counted as garbage and treated as EFUSE_PATH_AUTO. A path that cannot take the
 *	request leaves it to the daemon; but EFUSE_PATH_DEVICE, which takes READs of a
 *	range that is mapped to a device of csd.ko, past the page cache, leaves it to the
 *	direct path. What a READ brings from EFUSE_PATH_DAEMON is not learned.
 * @path_done: a request that @select_path wanted to be measured is answered. May call
 *	efuse_req_*() and efuse_path_info(). What it returns is ignored.
 * @written: the kernel has carried out a WRITE, or some of it, on backing files, and its
 *	caller does not know yet. May call efuse_req_*(), and efuse_req_ended(),
 *	efuse_req_epoch(). What it returns is ignored.
 * @block: a READ on EFUSE_PATH_CACHE wants the block efuse_req_block() of its file; called
 *	for one block after the other. May call efuse_req_*() and
 *	efuse_reply_block(). Returns what that returned, or 0 if it has no such block.
 * @select_channel: a request is about to be sent to the daemon, which has channels. Called in
 *	any context, also for requests of the background. May call efuse_placement_info()
 *	and efuse_channel_load(). Returns the CPU whose channel it shall go to, or a negative
 *	number: then it goes where it would have without the member. A CPU
 *	without a channel is counted as garbage and treated likewise.
 * @notify: the daemon invalidates or stores something of its own accord. What it
 *	voids is void before the member is called. May call efuse_notify_*().
 *	What it returns is ignored.
 * @exit: the set is detached; requests do not reach it any more. May call
 *	efuse_exit_kind(), efuse_exit_code(). What it returns is ignored.
 *
 * @connection: which connection: the decimal name of its directory in sysfs.
 *	Required; registration fails with ENOENT where there is none, with EBUSY
 *	where it has a set already.
 * @flags: 0.
 * @name: what sysfs shows as the connection's ``ops``. Required.
 */
struct efuse_ops {
	int (*lookup)(struct efuse_req *req);
	int (*getattr)(struct efuse_req *req);
	int (*setattr)(struct efuse_req *req);
	int (*access)(struct efuse_req *req);
	int (*readlink)(struct efuse_req *req);
	int (*getxattr)(struct efuse_req *req);
	int (*setxattr)(struct efuse_req *req);
	int (*listxattr)(struct efuse_req *req);
	int (*removexattr)(struct efuse_req *req);
	int (*open)(struct efuse_req *req);
	int (*release)(struct efuse_req *req);
	int (*opendir)(struct efuse_req *req);
	int (*releasedir)(struct efuse_req *req);
	int (*readdir)(struct efuse_req *req);
	int (*readdirplus)(struct efuse_req *req);
	int (*read)(struct efuse_req *req);
	int (*write)(struct efuse_req *req);
	int (*flush)(struct efuse_req *req);
	int (*fsync)(struct efuse_req *req);
	int (*lseek)(struct efuse_req *req);
	int (*fallocate)(struct efuse_req *req);
	int (*copy_file_range)(struct efuse_req *req);
	int (*statfs)(struct efuse_req *req);
	int (*create)(struct efuse_req *req);
	int (*mknod)(struct efuse_req *req);
	int (*mkdir)(struct efuse_req *req);
	int (*symlink)(struct efuse_req *req);
	int (*link)(struct efuse_req *req);
	int (*unlink)(struct efuse_req *req);
	int (*rmdir)(struct efuse_req *req);
	int (*rename)(struct efuse_req *req);
	int (*ioctl)(struct efuse_req *req);
	int (*request)(struct efuse_req *req);

	int (*reply)(struct efuse_req *req, int error);
	int (*learn)(struct efuse_req *req);
	int (*select_path)(struct efuse_req *req);
	int (*path_done)(struct efuse_req *req);
	int (*written)(struct efuse_req *req);
	int (*block)(struct efuse_req *req);
	int (*select_channel)(struct efuse_placement *placement);
	int (*notify)(struct efuse_notify *n);
	int (*exit)(struct efuse_exit_info *info);

	u32 connection;
	u32 flags;
	char name[EFUSE_OPS_NAME_LEN];
};

#endif /* _FS_FUSE_EFUSE_OPS_H */
