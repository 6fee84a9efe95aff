/* SPDX-License-Identifier: GPL-2.0 */
/*
 * eFuse's insides: one section for each .c file beside this header.
 */
#ifndef _FS_FUSE_EFUSE_I_H
#define _FS_FUSE_EFUSE_I_H

#include <linux/crc32.h>
#include <linux/efuse.h>
#include <linux/kobject.h>
#include <linux/percpu.h>

#include "../fuse_i.h"
#include "efuse.h"
#include "efuse_ops.h"

#define EFUSE_VERSION		"0.1.0"
#define EFUSE_NR_OPCODES	64	/* those below are counted */
#define EFUSE_NR_BUCKETS	65536	/* of epochs, per connection */
#define EFUSE_MAX_ERRNO		511	/* what the daemon itself may reply */

/* In the FUSE protocol: the daemon does not know the request, and wants no more of it. */
#define EFUSE_NOT_IMPLEMENTED	(-ENOSYS)

/* A file opened in the kernel; a bit of fuse_file.open_flags no daemon can set. */
#define EFUSE_FOPEN_LOCAL	BIT(31)
/* An answer that no lookup count stands for; a bit of fuse_attr.flags likewise. */
#define EFUSE_ATTR_UNCOUNTED	BIT(31)

enum efuse_consistency {
	EFUSE_STRICT,
	EFUSE_TTL,
	EFUSE_CTO,
	EFUSE_EXCLUSIVE,
	EFUSE_NR_CONSISTENCIES,
};

/* Counters per opcode; their names in sysfs are in stats.c, in this order. */
enum efuse_counter {
	EFUSE_REQUESTS,
	EFUSE_HITS,
	EFUSE_REFUSED,
	EFUSE_DAEMON,
	EFUSE_ERRORS,
	/* Why a request went to the daemon. */
	EFUSE_MISS,
	EFUSE_STALE,
	EFUSE_EXPIRED,
	EFUSE_OTHER_UID,
	EFUSE_NOT_ALIVE,
	EFUSE_NO_HANDLER,
	EFUSE_DECLINED,
	EFUSE_GARBAGE,
	/* Times. */
	EFUSE_HIT_NS,
	EFUSE_HIT_TIMED,
	EFUSE_DAEMON_NS,
	EFUSE_DAEMON_TIMED,
	EFUSE_NR_COUNTERS,
};

struct efuse_stats {
	u64 op[EFUSE_NR_OPCODES][EFUSE_NR_COUNTERS];
	u64 learned;
	u64 map_full;
	u64 garbage;
};

/**
 * struct efuse_conn - eFuse's half of a struct fuse_conn
 * @kobj: its directory in sysfs
 * @stats_kobj: the directory stats in it
 * @fc: the connection, valid until the last reference to it is gone
 * @id: its name: the minor of the mount's device number
 * @ops: the attached program set; written under efuse_conn_mutex
 * @list: in the list of all connections, under efuse_conn_mutex
 * @epoch: counts changes, from a random start
 * @floor: values of an earlier epoch than this are void
 * @buckets: see epochs.c
 * @stats: counters
 * @timed_until: jiffies64 until which requests are timed
 * @enable_seq: number of attaches
 * @exit_kind: of the last detach
 * @exit_code: of the last detach
 * @consistency: enum efuse_consistency
 * @stable_nodeids: a nodeid means the same inode for ever
 * @caller_independent: answers do not depend on who asks
 * @handleless: file handles mean nothing to the daemon
 * @flush_free: FLUSH means nothing to it for a file that was not written
 * @lazy_atime: reading need not show in the atime that is reported
 */
struct efuse_conn {
	struct kobject kobj;
	struct kobject *stats_kobj;
	struct fuse_conn *fc;
	u32 id;
	struct efuse_ops __rcu *ops;
	struct list_head list;

	atomic64_t epoch;
	atomic64_t floor;
	atomic64_t *buckets;

	struct efuse_stats __percpu *stats;
	u64 timed_until;

	u32 enable_seq;
	u32 exit_kind;
	s64 exit_code;

	u8 consistency;
	bool stable_nodeids;
	bool caller_independent;
	bool handleless;
	bool flush_free;
	bool lazy_atime;
};

/* The values that a reply brings; built by learn.c. */
struct efuse_lesson {
	u32 map;
	union {
		u64 nodeid;
		struct efuse_entry_key entry;
		struct efuse_blob_key blob;
		struct efuse_grant_key grant;
	} key;
	union {
		struct efuse_stamp stamp;
		struct efuse_entry entry;
		struct efuse_attrs attrs;
		struct efuse_blob blob;
		struct efuse_grant grant;
		struct efuse_volume volume;
	} value;
};

#define EFUSE_MAX_CHANGES	12

/**
 * struct efuse_changes - the buckets that a request changes
 * @nr: how many
 * @bucket: which, each once
 * @own: at the end, whether no other change touched it meanwhile
 * @epoch: at the end, the epoch the change advanced the connection to
 */
struct efuse_changes {
	u8 nr;
	u16 bucket[EFUSE_MAX_CHANGES];
	bool own[EFUSE_MAX_CHANGES];
	u64 epoch;
};

/**
 * struct efuse_req - a request as handlers see it: opaque to them
 * @ec: connection
 * @fm: mount
 * @args: the request's arguments
 * @uid: fsuid of the caller in the daemon's user namespace
 * @gid: fsgid likewise
 * @pid: process id in the daemon's pid namespace
 * @error: the daemon's answer: 0 or negative; for reply() and learn()
 * @ret: what the caller gets when @replied
 * @reason: why an offered answer was not taken: enum efuse_counter, or 0
 * @replied: an efuse_reply_*() took effect
 * @lesson: what learn() is called for
 * @key: room for efuse_req_key(); handlers may write it, so nothing here trusts it
 */
struct efuse_req {
	struct efuse_conn *ec;
	struct fuse_mount *fm;
	struct fuse_args *args;
	u32 uid;
	u32 gid;
	u32 pid;
	int error;
	ssize_t ret;
	u8 reason;
	bool replied;
	struct efuse_lesson *lesson;
	union {
		u64 nodeid;
		struct efuse_entry_key entry;
		struct efuse_blob_key blob;
		struct efuse_grant_key grant;
	} key;
};

struct efuse_notify {
	u32 code;
	u64 nodeid;
	const char *name;
	u32 len;
};

struct efuse_exit_info {
	u32 kind;
	s64 code;
};

/* conn.c */

/* eFuse's half of a connection, or NULL before it is mounted. */
static inline struct efuse_conn *efuse_conn_get(const struct fuse_conn *fc)
{
	/* Pairs with efuse_conn_add(): who sees it sees it whole. */
	return smp_load_acquire(&fc->efuse);
}

extern struct mutex efuse_conn_mutex;
struct efuse_conn *efuse_conn_find(u32 id);
struct efuse_conn *efuse_conn_of_ops(const struct efuse_ops *ops);
bool efuse_conn_caller_free(const struct efuse_conn *ec);

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
extern const char * const efuse_consistency_names[EFUSE_NR_CONSISTENCIES];

/* stats.c */
int efuse_stats_add(struct efuse_conn *ec);
void efuse_stats_remove(struct efuse_conn *ec);
u64 efuse_stats_sum(const struct efuse_conn *ec, size_t offset);

static inline void efuse_count_n(struct efuse_conn *ec, u32 opcode,
				 enum efuse_counter counter, u64 n)
{
	if (opcode < EFUSE_NR_OPCODES)
		this_cpu_add(ec->stats->op[opcode][counter], n);
}

static inline void efuse_count(struct efuse_conn *ec, u32 opcode,
			       enum efuse_counter counter)
{
	efuse_count_n(ec, opcode, counter, 1);
}

static inline bool efuse_timed(const struct efuse_conn *ec)
{
	return time_before64(get_jiffies_64(), READ_ONCE(ec->timed_until));
}

/* request.c: what a request's arguments say, by their meaning */
const void *efuse_req_in(const struct fuse_args *args, size_t size);
const char *efuse_req_name_at(const struct fuse_args *args, u32 index, u32 *len);
u32 efuse_arg_flags(const struct fuse_args *args);
u64 efuse_arg_fh(const struct fuse_args *args);
u64 efuse_arg_offset(const struct fuse_args *args);
u64 efuse_arg_size(const struct fuse_args *args);
u64 efuse_arg_newdir(const struct fuse_args *args);
struct page *efuse_out_page(struct fuse_args *args);
struct fuse_entry_out *efuse_out_entry(const struct fuse_args *args);
struct fuse_attr_out *efuse_out_attr(const struct fuse_args *args);
struct fuse_open_out *efuse_out_open(const struct fuse_args *args);

/* stamp.c: keys and checks of values */
void efuse_entry_key(struct efuse_entry_key *key, u64 parent, const char *name, u32 len);
void efuse_blob_key(struct efuse_blob_key *key, u64 nodeid, u32 opcode,
		    const char *name, u32 len);
void efuse_grant_key(struct efuse_grant_key *key, const struct efuse_req *req);
u32 efuse_seed_entry(u64 parent, const char *name, u32 len);
u32 efuse_seed_nodeid(u64 nodeid);
u32 efuse_seed_blob(u64 nodeid, u32 opcode, const char *name, u32 len);
u32 efuse_seed_grant(const struct efuse_grant_key *key);
u32 efuse_check(u32 seed, const void *value, size_t size);

/* epochs.c */
enum efuse_kind {
	EFUSE_KIND_ATTR,	/* attributes but the atime */
	EFUSE_KIND_ATIME,
	EFUSE_KIND_XATTR,
	EFUSE_KIND_DATA,
	EFUSE_KIND_LIFE,	/* what inode the nodeid stands for */
	EFUSE_KIND_VOLUME,	/* with nodeid 0: free space */
	EFUSE_KIND_RIGHTS,	/* who may open it or look into it */
};

u16 efuse_bucket_inode(u64 nodeid, enum efuse_kind kind);
u16 efuse_bucket_entry(u64 parent, const char *name, u32 len);
bool efuse_epoch_quiet(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_valid(const struct efuse_conn *ec, u16 bucket, u64 epoch);
u64 efuse_epoch_now(const struct efuse_conn *ec);
void efuse_epoch_begin(struct efuse_conn *ec, const struct efuse_changes *ch);
void efuse_epoch_end(struct efuse_conn *ec, struct efuse_changes *ch, u64 issued);
void efuse_epoch_cancel(struct efuse_conn *ec, const struct efuse_changes *ch);
bool efuse_epoch_holds(const struct efuse_conn *ec, const struct efuse_changes *ch, u16 bucket,
		       u64 issued, bool *own);
void efuse_epoch_bump(struct efuse_conn *ec, u16 bucket);
void efuse_epoch_void(struct efuse_conn *ec);

/* changes.c */
void efuse_changes_add(struct efuse_changes *ch, u16 bucket);
void efuse_changes_of(struct efuse_changes *ch, const struct fuse_args *args);
bool efuse_changes_cancelled(const struct fuse_args *args, int error);

/* lookup.c */
struct inode *efuse_inode_rcu(struct fuse_mount *fm, u64 nodeid);
enum efuse_taken {
	EFUSE_TAKEN,		/* the caller has a count */
	EFUSE_TAKEN_NONE,	/* the inode fits, but has no count to give */
	EFUSE_TAKEN_ABSENT,	/* it is not alive */
	EFUSE_TAKEN_UNFIT,	/* it is dying, or another than the answer says */
};

enum efuse_taken efuse_take_lookup(struct fuse_mount *fm, u64 nodeid, u64 generation, u32 mode,
				   u64 epoch);
u64 efuse_inode_valid_ns(struct fuse_mount *fm, u64 nodeid);

/* answer.c */
int efuse_answer_entry(struct efuse_req *req, const void *entry, u32 entry_size,
		       const void *attrs, u32 attrs_size);
int efuse_answer_negative(struct efuse_req *req, const void *entry, u32 size);
int efuse_answer_attrs(struct efuse_req *req, const void *attrs, u32 size);
int efuse_answer_blob(struct efuse_req *req, const void *blob, u32 size);
int efuse_answer_grant(struct efuse_req *req, const void *grant, u32 size);
int efuse_answer_volume(struct efuse_req *req, const void *volume, u32 size);
int efuse_answer_flush(struct efuse_req *req);

/* learn.c */
void efuse_learn(struct efuse_req *req, struct efuse_ops *ops,
		 const struct efuse_changes *ch);

/* raise.c */
#define EFUSE_RAISED_SECS	(10ULL * 365 * 24 * 3600)
void efuse_raise(struct efuse_req *req, const struct efuse_changes *ch);
void efuse_lower_attrs(struct fuse_mount *fm, u64 nodeid);
void efuse_lower(struct fuse_conn *fc);
void efuse_strip(struct fuse_args *args);

#endif /* _FS_FUSE_EFUSE_I_H */
