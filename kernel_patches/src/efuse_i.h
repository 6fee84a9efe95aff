/* SPDX-License-Identifier: GPL-2.0 */
/*
 * eFuse's internal interface. The files are in rooms, each with one header, which has one section
 * for each .c file. A file calls only its own room and those below it:
 *
 *   efuse_i.h		(top) the module, sysfs, BPF, the dispatch of requests
 *   io/io_i.h		paths of READs and WRITEs, backing files
 *   transport/transport_i.h	queues, channels, sending
 *   cache/cache_i.h	answers from the kernel, and what makes them void
 *   core/core_i.h	connections, requests, callers, counters
 *
 * Locks, from the outermost inwards:
 *
 *   fuse_mutex				mount, unmount: efuse_conn_add(), efuse_conn_remove()
 *     efuse_conn_mutex			the list of connections; attaching, detaching of ops
 *     efuse_conn.extents_mutex		the extents of all files
 *   fuse_conn.killsb			the superblocks of a connection
 *     efuse_conn.extents_mutex		only with memalloc_nofs_save(): reclaim that evicts an
 *					inode takes this mutex to end its extents
 *   efuse_conn.channels_mutex		the channels; never waits for a request
 *   inode.i_lock
 *     fuse_inode.lock			the lookup count, attr_version
 *   the lock of the connection's list of descriptors (fuse_conn.lock or fuse_chan.lock)
 *     fuse_iqueue.lock			one queue of requests
 *     fuse_pqueue.lock			the requests that one descriptor has read
 *
 * A holder of killsb may be waiting for the daemon. The daemon's own ioctls and reads therefore
 * only try to take it. Handlers of sysfs files must not take fuse_mutex: efuse_sysfs_remove()
 * waits for them while that mutex is held. They may take killsb.
 *
 * Lifetimes:
 *
 * A struct efuse_conn lives from efuse_conn_add() until the last reference to its kobject is gone,
 * and then until the end of an RCU grace period: path walks without locks read it. FUSE owns a
 * reference from mount to efuse_conn_free().
 *
 * The attached struct efuse_ops is read under rcu_read_lock(), and its members are called within
 * that section. A detached set may still be running; the BPF core frees it after a grace period.
 *
 * A struct efuse_channel is found through efuse_queue.channel under rcu_read_lock(), and freed a
 * grace period after efuse_channel_close() has removed it there.
 *
 * A struct efuse_backing and its uses: see extents.c.
 */
#ifndef _FS_FUSE_EFUSE_I_H
#define _FS_FUSE_EFUSE_I_H

#include "io/io_i.h"

#define EFUSE_VERSION		"0.1.0"

struct efuse_exit_info {
	u32 kind;
	s64 code;
};

/* ops.c */
extern const struct btf *efuse_ops_btf;
int efuse_ops_init(void);
void efuse_ops_detach(struct efuse_conn *ec, enum efuse_exit_kind kind, s64 code);

/* kfuncs.c */
int efuse_kfuncs_init(void);

/* sysfs.c */
int efuse_sysfs_init(void);
void efuse_sysfs_exit(void);
int efuse_sysfs_add(struct efuse_conn *ec);
void efuse_sysfs_remove(struct efuse_conn *ec);

/* dispatch.c */
bool efuse_answer_now(struct efuse_req *req, struct efuse_conn *ec, struct fuse_mount *fm,
		      struct fuse_args *args);
bool efuse_passed(struct efuse_req *req, enum efuse_counter reason);
bool efuse_local_release(struct efuse_conn *ec, const struct fuse_args *args);
void efuse_released(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args);

/* forget.c */
void efuse_forget_request(struct efuse_conn *ec, u64 nodeid);

/* The connection whose file in sysfs is used; also a file in a subdirectory. */
static inline struct efuse_conn *efuse_conn_of(struct kobject *kobj)
{
	return container_of(kobj, struct efuse_conn, kobj);
}

/* The sum over all CPUs of a member of struct efuse_times. */
#define EFUSE_TIMES_SUM(ec, member) efuse_times_sum(ec, offsetof(struct efuse_times, member))

/* opcode_sysfs.c */
extern const struct attribute_group efuse_opcode_group;
void efuse_opcode_sysfs_init(void);

/* path_sysfs.c */
extern const struct attribute_group efuse_path_group;

/* number_sysfs.c */

/**
 * struct efuse_number - a u32 member of struct efuse_conn that root can set in sysfs
 * @attr: the file in sysfs
 * @offset: offset of the member in struct efuse_conn
 * @least: smallest value allowed
 * @most: largest value allowed
 * @step: the value must be a multiple of this
 */
struct efuse_number {
	struct kobj_attribute attr;
	size_t offset;
	u32 least;
	u32 most;
	u32 step;
};

ssize_t efuse_number_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf);
ssize_t efuse_number_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			   size_t count);

/* recovery_sysfs.c */
extern const struct attribute_group efuse_recovery_group;

/* channel_sysfs.c */
extern struct attribute_group efuse_channel_group;
int efuse_channel_sysfs_init(void);
void efuse_channel_sysfs_exit(void);

#endif /* _FS_FUSE_EFUSE_I_H */
