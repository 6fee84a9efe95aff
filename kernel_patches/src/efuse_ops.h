/* SPDX-License-Identifier: GPL-2.0 */
/*
 * struct efuse_ops: the members that a BPF program set can implement. This header is their manual.
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
 * struct efuse_ops - handlers for the requests of one connection
 *
 * A program set is registered through a struct_ops link and belongs to the one connection that
 * @connection names. Every member is optional. All members are called under rcu_read_lock() and
 * may not sleep. All but @select_channel are called in process context. Several CPUs may call the
 * same member at the same time.
 *
 * **Request members** (@lookup to @request) are called before a request is queued to the daemon,
 * but only for requests whose sender waits for the answer. They may call the efuse_req_*() kfuncs
 * and the efuse_reply_*() kfuncs of their own opcode. They return
 *
 * * ``0`` - the request goes to the daemon as in plain FUSE;
 * * ``EFUSE_REPLIED`` - the request is answered. This is valid only if the member called an
 *   efuse_reply_*() kfunc that returned EFUSE_REPLIED; otherwise it is an invalid verdict;
 * * ``-1`` to ``-511``, but not ``-ENOSYS`` (which would switch the opcode off for the whole
 *   mount) - the request fails with that errno;
 * * any other value is counted as an invalid verdict, and the request goes to the daemon.
 *
 * An absent member is the same as one that returns 0. Requests that the daemon must see are sent
 * to it whatever a member returns: FORGET, RELEASE and RELEASEDIR of a file that the daemon
 * opened, and all requests that are sent in the background.
 *
 * @lookup: LOOKUP. May call efuse_reply_entry(), efuse_reply_negative().
 * @getattr: GETATTR. May call efuse_reply_attrs().
 * @setattr: SETATTR. This member, like all for which no efuse_reply_*() is named, can let a
 *	request pass or refuse it, but cannot answer it.
 * @access: ACCESS. May call efuse_reply_grant().
 * @readlink: READLINK. May call efuse_reply_blob().
 * @getxattr: GETXATTR. May call efuse_reply_blob().
 * @setxattr: SETXATTR.
 * @listxattr: LISTXATTR. May call efuse_reply_blob().
 * @removexattr: REMOVEXATTR.
 * @open: OPEN. May call efuse_reply_grant(). A file that is opened by that kfunc has its nodeid
 *	as its handle, and the daemon sees no RELEASE of it.
 * @release: RELEASE that its sender waits for. FUSE sends almost all of them in the background
 *	instead: for those only @reply is called. The return value is ignored.
 * @opendir: OPENDIR. May call efuse_reply_grant(). A directory that is opened by that kfunc has
 *	its nodeid as its handle, and the daemon sees no RELEASEDIR of it.
 * @releasedir: RELEASEDIR that its sender waits for. FUSE sends almost all of them in the
 *	background instead: for those only @reply is called. The return value is ignored.
 * @readdir: READDIR.
 * @readdirplus: READDIRPLUS.
 * @read: READ that its sender waits for.
 * @write: WRITE that its sender waits for.
 * @flush: FLUSH. May call efuse_reply_flush().
 * @fsync: FSYNC.
 * @lseek: LSEEK.
 * @fallocate: FALLOCATE.
 * @copy_file_range: COPY_FILE_RANGE and COPY_FILE_RANGE_64.
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
 * @reply: The daemon has answered a request, and the sender has not seen the answer yet. @error
 *	is 0 or a negative errno. Also called for requests that were sent in the background. May
 *	call efuse_req_*(), including efuse_req_ended() and efuse_req_epoch(). The return value
 *	is ignored.
 * @learn: The daemon's answer contains a value that is worth caching. Called after @reply, once
 *	for each value (READDIRPLUS brings up to two per entry). May call efuse_req_*() and
 *	efuse_learn_*(). It should store efuse_learn_value() under the key efuse_learn_key() in
 *	the map that efuse_learn_map() names. If the epoch of its stamp is 0, the value is void:
 *	it should remove the one under that key. For EFUSE_MAP_BLOCKS, it should instead choose
 *	a slot for the block efuse_req_block() and call efuse_learn_block(); after that,
 *	efuse_learn_evicted() returns the tag of the evicted block. Returns 0, or a negative
 *	errno if the value could not be stored, which sysfs counts as map_full. A program that
 *	returns 0 and keeps an older value shows it until it ends by itself.
 * @select_path: A READ or WRITE that its own member did not answer is about to be carried out.
 *	Also called for requests in the background, if their sender may sleep. May call
 *	efuse_req_*(), efuse_path_info(), efuse_path_predict() and efuse_path_resident().
 *	Returns an enum efuse_path, to which EFUSE_PATH_MEASURE and EFUSE_PATH_PROBE may be
 *	added. Any other value is counted as an invalid verdict and treated as EFUSE_PATH_AUTO.
 *	EFUSE_PATH_AUTO selects the direct path if the daemon has mapped extents of the file,
 *	else the cache if the request is a READ and the set has a @block, else the daemon. A
 *	path that cannot take the request leaves it to the daemon, with one exception:
 *	EFUSE_PATH_DEVICE, which reads a range that is mapped to a device of csd.ko past the
 *	page cache of the backing file, leaves it to the direct path. Data that a READ brings
 *	by EFUSE_PATH_DAEMON is not learned.
 * @path_done: A request for which @select_path added EFUSE_PATH_MEASURE is answered. May call
 *	efuse_req_*() and efuse_path_info(). The return value is ignored.
 * @written: The kernel has carried out all or some of a WRITE on backing files, and the sender
 *	has not seen that yet. May call efuse_req_*(), including efuse_req_ended() and
 *	efuse_req_epoch(). The return value is ignored.
 * @block: A READ on EFUSE_PATH_CACHE needs the block efuse_req_block() of its file. Called for
 *	one block after another. May call efuse_req_*() and efuse_reply_block(). Returns the
 *	result of efuse_reply_block(), or 0 if the cache does not have the block.
 * @select_channel: A request is about to be sent to a daemon that has channels. Called in any
 *	context, also for requests in the background. May call efuse_placement_info() and
 *	efuse_channel_load(). Returns the CPU whose channel gets the request, or a negative
 *	number to use the kernel's own choice. A CPU without a channel is counted as an
 *	invalid verdict, and the kernel's own choice is used.
 * @notify: The daemon has sent a notification that invalidates or stores something. Values that
 *	it makes void are void before the member is called. May call efuse_notify_*(). The
 *	return value is ignored.
 * @exit: The set is detached: no new request reaches it. Calls that began before may still be
 *	running. May call efuse_exit_kind(), efuse_exit_code(). The return value is ignored.
 *
 * @connection: The connection that the set is for: the decimal name of its directory in sysfs.
 *	Required. Registration fails with ENOENT if there is no such connection, and with EBUSY
 *	if it has a set already.
 * @flags: 0.
 * @name: The set's name, which sysfs shows as the connection's ``ops``. Required: 1 to 31
 *	letters, digits, ``_``, ``.`` and ``-``.
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
