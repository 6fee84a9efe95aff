/* SPDX-License-Identifier: GPL-2.0 */
/* The paths of a READ or WRITE, and backing files. */
#ifndef _FS_FUSE_EFUSE_IO_I_H
#define _FS_FUSE_EFUSE_IO_I_H

#include <linux/efuse_lower.h>

#include "../transport/transport_i.h"

/* Initial values of a connection's round and probes, and the largest that sysfs accepts. */
#define EFUSE_ROUND		5000
#define EFUSE_PROBES		4
#define EFUSE_MAX_ROUND		1000000000
#define EFUSE_MAX_PROBES	1000

/* extents.c */

/**
 * struct efuse_use_count - holders of an extent, counted on one CPU
 * @begun: number of holders that have taken the extent on this CPU
 * @ended: number of holders that have released the extent on this CPU
 */
struct efuse_use_count {
	u64 begun;
	u64 ended;
};

/**
 * struct efuse_use - the holders of an extent between two changes of its ranges
 * @extent: the extent
 * @number: number of uses that the extent has had before
 * @counts: numbers of holders, per CPU
 * @over: no new holder may use it; a holder that ends wakes extents_wait
 * @next: next in a list of uses that are over, or of spare ones
 * @reap: work item that releases the use once all of its holders have ended
 * @rcu: for freeing
 *
 * An extent gets its first use when it is mapped, and a new one when it loses a range but still has
 * another. See extents.c.
 */
struct efuse_use {
	struct efuse_backing *extent;
	unsigned int number;
	struct efuse_use_count __percpu *counts;
	bool over;
	struct efuse_use *next;
	struct work_struct reap;
	struct rcu_head rcu;
};

/**
 * struct efuse_content - a snapshot that identifies the content of a backing file
 * @ctime: change time of the file
 * @size: size of the file in bytes
 * @racy: a change around the time of the snapshot may have left @ctime and @size as they were
 */
struct efuse_content {
	struct timespec64 ctime;
	loff_t size;
	bool racy;
};

/**
 * struct efuse_backing - an extent: a range of a file whose bytes are in a backing file
 * @ec: connection
 * @use: the use that new holders take; see extents.c
 * @uses: number of uses of the extent, including those that are over; the last one to end releases
 *	  the extent
 * @ended: number of the first use that has not ended
 * @file: the backing file
 * @resident: function of csd.ko that counts the blocks of @file in its page cache; NULL if @file
 *	      is not on a device of csd.ko
 * @cred: credentials of the task that mapped the extent
 * @offset: offset of the extent's original first byte in the file
 * @backing_offset: offset of the same byte in the backing file
 * @seal: i_version of the backing file when a sealed extent was mapped
 * @flags: EFUSE_EXTENT_*
 * @ends: the backing file tells where the file ends: the extent was mapped to the end of the file,
 *	  and has not lost a part to another range
 * @content: snapshot of the backing file's content, taken by the last READ
 * @content_lock: protects writes of @content; a reader without the lock finds an outdated snapshot
 *		  at worst, or one that is marked racy
 * @ranges: number of ranges in the file's tree that are of this extent; under extents_mutex
 * @touched: the current change of the tree takes ranges from it; under extents_mutex
 * @next_touched: next in the list of touched extents; under extents_mutex
 * @rcu: for freeing
 */
struct efuse_backing {
	struct efuse_conn *ec;
	struct efuse_use *use;
	refcount_t uses;
	unsigned int ended;
	struct file *file;
	csd_resident_t resident;
	const struct cred *cred;
	u64 offset;
	u64 backing_offset;
	u64 seal;
	u32 flags;
	bool ends;
	struct efuse_content content;
	spinlock_t content_lock;	/* changes of content */
	u32 ranges;
	bool touched;
	struct efuse_backing *next_touched;
	struct rcu_head rcu;
};

int efuse_extents_init(void);
void efuse_extents_exit(void);
long efuse_extents_ioctl(struct efuse_conn *ec, unsigned int cmd, void __user *argp);
void efuse_extents_settle(struct efuse_conn *ec);
void efuse_extents_add(struct efuse_conn *ec);
void efuse_extents_clear(struct efuse_conn *ec);
void efuse_extents_free(struct efuse_conn *ec);
void efuse_extents_forget(struct efuse_conn *ec, u64 nodeid);
int efuse_extents_size(struct efuse_conn *ec, struct file *file, u64 end, bool *asked);
struct efuse_use *efuse_extent_begin(struct efuse_req *req, u64 pos, u64 *length);
void efuse_extent_end(struct efuse_conn *ec, struct efuse_use *use);
bool efuse_seal_holds(const struct efuse_backing *eb);

/* Does the end of the extent's backing file tell where the file ends? */
static inline bool efuse_extent_ends(const struct efuse_backing *eb)
{
	return READ_ONCE(eb->ends);
}

/* Is the extent not sealed, or its backing file unchanged since the extent was mapped? */
static inline bool efuse_sealed(const struct efuse_backing *eb)
{
	return !(eb->flags & EFUSE_EXTENT_SEALED) || efuse_seal_holds(eb);
}

/* content.c */
struct inode *efuse_content_inode(const struct file *file);
void efuse_content_look(struct efuse_content *content, const struct file *file);
bool efuse_content_seen(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb,
			const struct efuse_content *before);
void efuse_content_shown(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb);

/* direct.c */
const struct cred *efuse_act_as(const struct cred *cred);
void efuse_backing_accessed(struct efuse_conn *ec, u64 nodeid, const struct inode *inode,
			    struct timespec64 before);
void efuse_direct_shown(const struct efuse_req *req);
bool efuse_path_direct(struct efuse_req *req);

/* device.c */
int efuse_device_resident(struct efuse_req *req);

/* split.c */
size_t efuse_daemon_limit(const struct efuse_req *req);
bool efuse_split_needed(const struct efuse_req *req);
void efuse_split_all(struct efuse_req *req);
bool efuse_split_background(struct efuse_req *req);
ssize_t efuse_split_fill(struct efuse_req *req, size_t at, size_t len);

/* paths.c */
bool efuse_path_take(struct efuse_req *req);
const struct efuse_path_info *efuse_path_describe(struct efuse_req *req);

/* measure.c */
void efuse_path_done(struct efuse_req *req, enum efuse_path path);

/* Does the forced path, if there is one, allow the use of backing files? */
static inline bool efuse_path_backed(const struct efuse_conn *ec)
{
	u8 forced = READ_ONCE(ec->forced_path);

	return forced != EFUSE_PATH_DAEMON && forced != EFUSE_PATH_CACHE;
}

/* deferred.c */
int efuse_deferred_prepare(struct efuse_conn *ec);
void efuse_deferred_settle(struct efuse_conn *ec);
void efuse_deferred_free(struct efuse_conn *ec);

#endif /* _FS_FUSE_EFUSE_IO_I_H */
