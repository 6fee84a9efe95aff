/* SPDX-License-Identifier: GPL-2.0 */
/*
 * eFuse's insides: one section for each .c file beside this header.
 */
#ifndef _FS_FUSE_EFUSE_I_H
#define _FS_FUSE_EFUSE_I_H

#include <linux/crc32.h>
#include <linux/efuse.h>
#include <linux/efuse_lower.h>
#include <linux/kobject.h>
#include <linux/percpu.h>
#include <linux/siphash.h>
#include <linux/sizes.h>
#include <linux/srcu.h>
#include <linux/uio.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "../fuse_i.h"
#include "compat.h"
#include "efuse.h"
#include "efuse_ops.h"

#define EFUSE_VERSION		"0.1.0"
#define EFUSE_NR_OPCODES	64	/* those below are counted */
#define EFUSE_NR_BUCKETS	65536	/* of epochs, per connection */
#define EFUSE_EPOCH_BITS	46	/* of an epoch, wherever it shares a word */
#define EFUSE_VOLUME_NS		(10ULL * NSEC_PER_SEC)	/* a daemon may free space at any time */
#define EFUSE_BUCKETS_CHUNK	512	/* that are allocated at once */
#define EFUSE_MAX_ERRNO		511	/* what the daemon itself may reply */

/* In the FUSE protocol: the daemon does not know the request, and wants no more of it. */
#define EFUSE_NOT_IMPLEMENTED	(-ENOSYS)

/* Of a new connection: see struct efuse_conn. */
#define EFUSE_ROUND		5000
#define EFUSE_PROBES		4
#define EFUSE_MAX_ROUND		1000000000
#define EFUSE_MAX_PROBES	1000

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
	EFUSE_UNMAPPED,
	EFUSE_FAILED,
	/* Times. */
	EFUSE_HIT_NS,
	EFUSE_HIT_TIMED,
	EFUSE_DAEMON_NS,
	EFUSE_DAEMON_TIMED,
	EFUSE_NR_COUNTERS,
};

/* Who answers a request, beside the paths of a READ or WRITE. */
enum efuse_by {
	EFUSE_BY_HANDLER = EFUSE_NR_PATHS,
	EFUSE_BY_REFUSAL,	/* of a handler */
	EFUSE_BY_KERNEL,	/* there is nothing to ask anybody */
};

/* Counters per path; their names in sysfs are in path_sysfs.c, in this order. */
enum efuse_path_counter {
	EFUSE_PATH_CHOSEN,
	EFUSE_PATH_REQUESTS,
	EFUSE_PATH_PARTIAL,
	EFUSE_PATH_BYTES,
	EFUSE_PATH_NS,
	EFUSE_PATH_TIMED,
	EFUSE_PATH_PROBES,
	EFUSE_PATH_PREDICTED,
	EFUSE_PATH_PREDICTED_NS,
	EFUSE_PATH_ACTUAL_NS,
	EFUSE_PATH_ERROR_NS,
	EFUSE_NR_PATH_COUNTERS,
};

/* Counters per CPU of what channels do there; their names are in channel_sysfs.c. */
enum efuse_channel_counter {
	EFUSE_POLL_HITS,	/* a worker's look found a request */
	EFUSE_POLL_MISSES,	/* and this one did not: it went to sleep */
	EFUSE_SPIN_HITS,	/* a caller's look found its answer */
	EFUSE_SPIN_MISSES,
	EFUSE_ELSEWHERE,	/* sent to another channel than the CPU's home */
	EFUSE_OTHERS_WOKEN,	/* sent to a channel without a free worker; another's was woken */
	EFUSE_BROUGHT,		/* requests that EFUSE_IOC_NEXT brought */
	EFUSE_REPLY_REFUSED,	/* replies in slots that were none, slots that were not given */
	EFUSE_NR_CHANNEL_COUNTERS,
};

/*
 * Times of requests are counted in classes: four to each power of two from 2^8 to
 * 2^34 ns, one for what is shorter, one for what is longer.
 */
#define EFUSE_LATENCY_MIN_LOG	8
#define EFUSE_LATENCY_MAX_LOG	34
#define EFUSE_NR_LATENCIES	((EFUSE_LATENCY_MAX_LOG - EFUSE_LATENCY_MIN_LOG) * 4 + 2)

struct efuse_stats {
	u64 path[EFUSE_NR_PATHS][EFUSE_NR_PATH_COUNTERS];
	u64 latency[EFUSE_NR_PATHS][EFUSE_NR_LATENCIES];
	u64 op[EFUSE_NR_OPCODES][EFUSE_NR_COUNTERS];
	u64 channel[EFUSE_NR_CHANNEL_COUNTERS];
	u64 learned;
	u64 map_full;
	u64 garbage;
	u64 evicted;
	atomic_t depth;		/* see struct efuse_path_info; only ever changed by the kernel */
};

#define EFUSE_UNIQUE_STEP	2	/* of FUSE's request numbers: bit 0 is an interrupt's */

/**
 * struct efuse_luck - has looking instead of sleeping paid?
 * @credit: grows with each time that it did, up to EFUSE_LUCK
 * @skipped: times it was not tried since there is none left
 *
 * Races only make it less exact.
 */
struct efuse_luck {
	u8 credit;
	u8 skipped;
};

#define EFUSE_LUCK	8

/**
 * struct efuse_queue - the requests that were sent from one CPU
 * @iq: the queue as FUSE knows it; nobody sleeps on it
 * @fc: connection
 * @kobj: its directory in sysfs
 * @cpu: which
 * @node: of it
 * @channel: of this CPU, if the daemon made one
 * @home: the queue of the nearest channel, this one if there is none
 * @luck: of callers whose requests were sent to it
 * @looks: how often a reader on this CPU looked for something; races are harmless
 * @depth: requests in it; under the queue's lock
 * @sent: requests that were sent to it; under the queue's lock
 * @stolen: requests that a reader on another CPU took; likewise
 */
struct efuse_queue {
	struct fuse_iqueue iq;
	struct fuse_conn *fc;
	struct kobject *kobj;
	struct efuse_channel __rcu *channel;
	struct efuse_queue *home;
	struct efuse_luck luck;
	int cpu;
	int node;
	u32 looks;
	u32 depth;
	u64 sent;
	u64 stolen;
};

/**
 * struct efuse_node - the workers of a NUMA node's channels
 * @waiting: those that look for work or sleep
 * @looking: those that look and that nobody has claimed
 */
struct efuse_node {
	atomic_t waiting;
	atomic_t looking;
} ____cacheline_aligned_in_smp;

enum efuse_policy {
	EFUSE_POLICY_LEAST,
	EFUSE_POLICY_OWN,
	EFUSE_NR_POLICIES,
};

/* Of a new connection: see struct efuse_conn. */
#define EFUSE_SPIN_NS		50000
#define EFUSE_THRESHOLD		1
#define EFUSE_MAX_SPIN_NS	1000000
#define EFUSE_MAX_THRESHOLD	65536

/**
 * struct efuse_channel - memory shared with the daemon, see channel.c
 * @ec: connection
 * @fud: its descriptor
 * @queue: of its CPU
 * @slots: how many
 * @slot_size: bytes of a request, and of a reply
 * @nr_pages: of all slots
 * @pages: those
 * @bvec: the same
 * @lock: of the slots' states
 * @state: enum efuse_slot_state of each
 * @begun: when the daemon got what is in it
 * @held: slots that the daemon has
 * @service_ns: the mean time that it had one lately, 0: it had none
 * @full: a worker has found no free slot since one was freed
 * @waitq: where its workers sleep
 * @coming: its workers that deliver a reply and then look for a request
 * @polls: its workers that do not sleep yet, see polling.c
 * @luck: of those
 */
struct efuse_channel {
	struct efuse_conn *ec;
	struct fuse_dev *fud;
	struct efuse_queue *queue;
	u32 slots;
	u32 slot_size;
	u32 nr_pages;
	struct page **pages;
	struct bio_vec *bvec;
	spinlock_t lock;		/* of the states */
	u8 state[EFUSE_MAX_SLOTS];
	u64 begun[EFUSE_MAX_SLOTS];
	u32 held;
	u32 service_ns;
	bool full;
	wait_queue_head_t waitq;
	atomic_t coming;
	atomic_t polls;
	struct efuse_luck luck;
};

/**
 * struct efuse_buckets - a table of epochs, see epochs.c
 * @chunk: NULL where nothing has changed
 */
struct efuse_buckets {
	atomic64_t *chunk[EFUSE_NR_BUCKETS / EFUSE_BUCKETS_CHUNK];
};

/**
 * struct efuse_conn - eFuse's half of a struct fuse_conn
 * @rcu: for freeing
 * @kobj: its directory in sysfs
 * @stats_kobj: the directory stats in it
 * @paths_kobj: the directory paths in it
 * @channels_kobj: the directory channels in it
 * @fc: the connection, valid until the last reference to it is gone
 * @id: its name: the minor of the mount's device number
 * @ops: the attached program set; written under efuse_conn_mutex
 * @list: in the list of all connections, under efuse_conn_mutex
 * @caller_key: a secret, see caller.c
 * @epoch: counts changes, from a random start
 * @floor: values of an earlier epoch than this are void
 * @buckets: see epochs.c
 * @block_buckets: likewise, for the blocks of files
 * @queues: of each possible CPU, see queues.c
 * @channels_mutex: for making and closing channels
 * @nodes: of each possible NUMA node
 * @policy: enum efuse_policy, see balance.c
 * @threshold: with so many requests a channel is loaded
 * @spread: whether one is enough for requests in the background
 * @spin_ns: how long workers and callers look before they sleep
 * @stats: counters
 * @timed_until: jiffies64 until which requests are timed
 * @backed: files with extents by nodeid, see extents.c
 * @extents_mutex: taken to change them
 * @extents_wait: for extents that nobody holds any more
 * @extents_open: extents whose files are not closed yet
 * @extents_ended: nothing can be mapped any more: the connection is unmounted
 * @on_device: whether there have been extents of files on devices of csd.ko
 * @forced_path: the path of every READ and WRITE, or EFUSE_PATH_AUTO
 * @round: after so many READs of a kind the paths are probed again
 * @probes: so often each
 * @later_queue: workers for WRITEs of write-back, NULL until needed; see later.c
 * @daemon_read: the most bytes of a READ that the daemon takes
 * @daemon_write: likewise of a WRITE
 * @max_request: the most bytes of a READ or WRITE that FUSE makes, 0: as many
 * @max_readdir: the most bytes of a READDIR or READDIRPLUS
 * @enable_seq: number of attaches
 * @exit_kind: of the last detach
 * @exit_code: of the last detach
 * @consistency: enum efuse_consistency
 * @stable_nodeids: a nodeid means the same inode for ever
 * @nodeid_per_file: a file has one nodeid, however many names it has
 * @caller_independent: answers do not depend on who asks
 * @handleless: file handles mean nothing to the daemon
 * @flush_free: FLUSH means nothing to it for a file that was not written
 * @lazy_atime: reading need not show in the atime that is reported
 */
struct efuse_conn {
	struct rcu_head rcu;
	struct kobject kobj;
	struct kobject *stats_kobj;
	struct kobject *paths_kobj;
	struct kobject *channels_kobj;
	struct fuse_conn *fc;
	u32 id;
	struct efuse_ops __rcu *ops;
	struct list_head list;

	siphash_key_t caller_key;
	atomic64_t epoch;
	atomic64_t floor;
	struct efuse_buckets buckets;
	struct efuse_buckets block_buckets;

	struct efuse_queue **queues;
	struct mutex channels_mutex;	/* for making and closing channels */
	struct efuse_node **nodes;
	u32 spin_ns;
	u32 threshold;
	u32 spread;
	u8 policy;
	struct efuse_stats __percpu *stats;
	u64 timed_until;

	struct xarray backed;
	struct mutex extents_mutex;	/* for changing extents */
	wait_queue_head_t extents_wait;
	atomic_t extents_open;
	bool extents_ended;
	bool on_device;
	u8 forced_path;
	u32 round;
	u32 probes;
	struct workqueue_struct *later_queue;
	u32 daemon_read;
	u32 daemon_write;
	u32 max_request;
	u32 max_readdir;

	u32 enable_seq;
	u32 exit_kind;
	s64 exit_code;

	u8 consistency;
	bool stable_nodeids;
	bool nodeid_per_file;
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
#define EFUSE_MAX_PAGES		2048	/* of a READ or WRITE: 8 MiB */
#define EFUSE_MAX_BLOCKS	(EFUSE_MAX_PAGES + 1)

/**
 * struct efuse_changes - the buckets that a request changes
 * @nr: how many
 * @nr_blocks: how many blocks of a file it changes
 * @bucket: which, each once
 * @own: at the end, whether no other change touched it meanwhile
 * @own_blocks: likewise for the blocks
 * @nodeid: of the file whose blocks are changed
 * @block: the first of them
 * @epoch: at the end, the epoch the change advanced the connection to
 * @content: the file whose content it changes, 0: none
 */
struct efuse_changes {
	u16 nr;
	u16 nr_blocks;
	u16 bucket[EFUSE_MAX_CHANGES];
	bool own[EFUSE_MAX_CHANGES];
	DECLARE_BITMAP(own_blocks, EFUSE_MAX_BLOCKS);
	u64 nodeid;
	u64 block;
	u64 epoch;
	u64 content;
};

/* Why moving the bytes of a READ or WRITE stopped. Only an end of file may set an end. */
enum efuse_stop {
	EFUSE_STOP_ALL,		/* all were moved */
	EFUSE_STOP_EOF,		/* the file ends there */
	EFUSE_STOP_SIGNAL,	/* the caller is being killed */
	EFUSE_STOP_FAULT,	/* a page of the caller's buffer is not in memory */
	EFUSE_STOP_ERROR,	/* the file system below failed */
	EFUSE_STOP_UNMAPPED,	/* the rest lies in no extent */
	EFUSE_STOP_REFUSED,	/* the extent must not be used for it */
};

/**
 * struct efuse_req - a request as handlers see it: opaque to them
 * @ec: connection
 * @fm: mount
 * @args: the request's arguments
 * @sent: what the daemon was told of who asks, where that is not the current task
 * @caller: efuse_caller(), once somebody wanted to know
 * @error: the daemon's answer: 0 or negative; for reply() and learn()
 * @ret: what the caller gets when @replied
 * @reason: why an offered answer was not taken: enum efuse_counter, or 0
 * @replied: an efuse_reply_*() took effect
 * @at_device: backing files are read past their page cache
 * @stop: READ, WRITE that a path tried: enum efuse_stop
 * @appended: append by the direct path: where the file ended behind it, 0: nothing was appended
 * @racy: what the direct path has read may be newer than FUSE's pages of it
 * @lesson: what learn() is called for, but for blocks
 * @block: what block() or learn() is called for
 * @path: for select_path() and path_done()
 * @ended: the file whose data as it was is void by now, 0: none; for reply(), written()
 * @ended_epoch: the epoch at which it ended
 * @key: room for efuse_req_key(); handlers may write it, so nothing here trusts it
 */
struct efuse_req {
	struct efuse_conn *ec;
	struct fuse_mount *fm;
	struct fuse_args *args;
	const struct fuse_in_header *sent;
	u64 caller;
	int error;
	ssize_t ret;
	u8 reason;
	bool replied;
	bool at_device;
	u8 stop;
	u64 appended;
	bool racy;
	struct efuse_lesson *lesson;
	struct efuse_block *block;
	struct efuse_path_info path;
	u64 ended;
	u64 ended_epoch;
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
	u64 epoch;
};

/**
 * struct efuse_placement - a request whose channel is looked for: opaque to handlers
 * @ec: connection
 * @info: what select_channel() may know of it
 * @load: of the channel it asked for last
 */
struct efuse_placement {
	struct efuse_conn *ec;
	struct efuse_placement_info info;
	struct efuse_channel_load load;
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

static inline void efuse_count_channel(struct efuse_conn *ec, enum efuse_channel_counter counter)
{
	this_cpu_inc(ec->stats->channel[counter]);
}

static inline bool efuse_timed(const struct efuse_conn *ec)
{
	return time_before64(get_jiffies_64(), READ_ONCE(ec->timed_until));
}

/* Somebody looks at times: they are taken for a while. */
static inline void efuse_watch_times(struct efuse_conn *ec)
{
	WRITE_ONCE(ec->timed_until, get_jiffies_64() + 10 * HZ);
}

/* request.c: what a request's arguments say, by their meaning */

/**
 * struct efuse_io - a READ or WRITE of eFuse's own
 * @ap: its arguments
 * @read: the first of them, of a READ
 * @write: likewise, of a WRITE
 * @written: the answer of a WRITE
 */
struct efuse_io {
	struct fuse_args_pages ap;
	union {
		struct fuse_read_in read;
		struct fuse_write_in write;
	};
	struct fuse_write_out written;
};

void efuse_io_complete(struct efuse_io *io, u64 pos, size_t len);
const void *efuse_req_in(const struct fuse_args *args, size_t size);
const char *efuse_req_name_at(const struct fuse_args *args, u32 index, u32 *len);
u32 efuse_arg_flags(const struct fuse_args *args);
u64 efuse_arg_fh(const struct fuse_args *args);
u64 efuse_arg_offset(const struct fuse_args *args);
u64 efuse_arg_size(const struct fuse_args *args);
u64 efuse_arg_newdir(const struct fuse_args *args);
void *efuse_out_data(struct fuse_args *args, size_t *room);
char *efuse_dirents_start(const struct efuse_req *req, size_t *left);
struct fuse_direntplus *efuse_dirents_next(char **at, size_t *left);
bool efuse_is_write_back(const struct fuse_args *args);
struct fuse_entry_out *efuse_out_entry(const struct fuse_args *args);
struct fuse_attr_out *efuse_out_attr(const struct fuse_args *args);
struct fuse_open_out *efuse_out_open(const struct fuse_args *args);
bool efuse_handle_is_any(const struct fuse_args *args, u64 fh);

/* caller.c: who asks */
u32 efuse_caller_uid(const struct efuse_req *req);
u32 efuse_caller_gid(const struct efuse_req *req);
u32 efuse_caller_pid(const struct efuse_req *req);
u64 efuse_caller(struct efuse_req *req);
u64 efuse_caller_stamp(struct efuse_req *req);
bool efuse_caller_is(struct efuse_req *req, const struct efuse_stamp *stamp);
bool efuse_names_shared(const struct efuse_conn *ec);
u32 efuse_raised_open(const struct efuse_req *req, u64 fh);
void efuse_part_callers(struct efuse_req *req);

/* acl.c: access control lists */
void efuse_acls_end(struct inode *inode);
bool efuse_acl_is_the_vfs(const struct efuse_req *req);

/* stamp.c: keys and checks of values */
void efuse_entry_key(struct efuse_entry_key *key, u64 parent, const char *name, u32 len);
void efuse_blob_key(struct efuse_blob_key *key, u64 nodeid, u32 opcode,
		    const char *name, u32 len);
void efuse_grant_key(struct efuse_grant_key *key, struct efuse_req *req);
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
	EFUSE_KIND_DATA,	/* anything of its content */
	EFUSE_KIND_WHOLE,	/* its content but for what a WRITE changes: that has its blocks */
	EFUSE_KIND_END,		/* where the content ends, if it grew */
	EFUSE_KIND_LIFE,	/* what inode the nodeid stands for */
	EFUSE_KIND_VOLUME,	/* with nodeid 0: free space */
	EFUSE_KIND_RIGHTS,	/* who may open it or look into it */
	EFUSE_KIND_PAGES,	/* its content, changed past FUSE's pages of it */
};

u16 efuse_bucket_inode(u64 nodeid, enum efuse_kind kind);
u16 efuse_bucket_entry(u64 parent, const char *name, u32 len);
bool efuse_epoch_quiet(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_valid(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_block_valid(const struct efuse_conn *ec, u64 nodeid, u64 block, bool last,
			     u64 epoch);
void efuse_epochs_free(struct efuse_conn *ec);
u64 efuse_epoch_now(const struct efuse_conn *ec);
void efuse_epoch_begin(struct efuse_conn *ec, const struct efuse_changes *ch);
void efuse_epoch_end(struct efuse_conn *ec, struct efuse_changes *ch, u64 issued);
void efuse_epoch_cancel(struct efuse_conn *ec, const struct efuse_changes *ch);
bool efuse_epoch_holds(const struct efuse_conn *ec, const struct efuse_changes *ch, u16 bucket,
		       u64 issued, bool *own);
void efuse_epoch_enter(struct efuse_conn *ec, u16 bucket);
void efuse_epoch_leave(struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_word(const struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_last(const struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_in_flight(const struct efuse_conn *ec, u16 bucket);
void efuse_epoch_bump(struct efuse_conn *ec, u16 bucket);
void efuse_epoch_void(struct efuse_conn *ec);

/* changes.c */
void efuse_changes_add(struct efuse_changes *ch, u16 bucket);
void efuse_changes_issue(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
			 struct fuse_args *args);
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
bool efuse_inode_alive(struct efuse_conn *ec, u64 nodeid);
void efuse_forget_request(struct efuse_conn *ec, u64 nodeid);
u64 efuse_inode_valid_ns(struct fuse_mount *fm, u64 nodeid);
u64 efuse_inode_size(struct fuse_mount *fm, u64 nodeid);
u64 efuse_life_mark(const struct efuse_conn *ec, u64 nodeid);
bool efuse_life_ends(struct efuse_conn *ec, u64 nodeid);

/* answer.c */
int efuse_answer_entry(struct efuse_req *req, const void *entry, u32 entry_size,
		       const void *attrs, u32 attrs_size);
int efuse_answer_negative(struct efuse_req *req, const void *entry, u32 size);
int efuse_answer_attrs(struct efuse_req *req, const void *attrs, u32 size);
int efuse_answer_blob(struct efuse_req *req, const void *blob, u32 size);
int efuse_answer_grant(struct efuse_req *req, const void *grant, u32 size);
int efuse_answer_volume(struct efuse_req *req, const void *volume, u32 size);
int efuse_answer_flush(struct efuse_req *req);

/* extents.c */

/**
 * struct efuse_use_count - how often an extent was begun to be used on a CPU, and ended
 * @begun: holders that began there
 * @ended: holders that ended there
 */
struct efuse_use_count {
	u64 begun;
	u64 ended;
};

/**
 * struct efuse_use - who holds an extent, since it got its first range or lost the last one
 * @extent: the extent
 * @number: how many uses the extent has had before
 * @counts: how often it is held
 * @over: nobody may begin to hold it by this use; who ends wakes who waits for that
 * @next: the next of those that are over, or spare
 * @reap: lets go of the extent once nobody holds it by this use
 * @rcu: for freeing
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
 * struct efuse_content - which content a backing file had when it was looked at
 * @ctime: its change time
 * @size: bytes
 * @racy: whether a change meanwhile may have left both as they were
 */
struct efuse_content {
	struct timespec64 ctime;
	loff_t size;
	bool racy;
};

/**
 * struct efuse_backing - an extent: a range of a file, and where its bytes lie
 * @ec: connection
 * @use: by which it is held from now on
 * @uses: how many uses of it there are, those that are over among them
 * @ended: the number of the first use of it that has not ended
 * @file: the backing file
 * @resident: what its page cache has of it, if it lies on a device of csd.ko; NULL elsewhere
 * @cred: of who mapped it
 * @offset: in the file, of where the extent began
 * @backing_offset: in the backing file, of the same byte
 * @seal: i_version of the backing file, if the extent is sealed
 * @flags: EFUSE_EXTENT_*
 * @content: of the backing file when a READ looked last
 * @content_lock: taken to change that; who looks without it finds what is newer racy, or as it is
 * @ranges: how many ranges of the file's tree it stands in; under extents_mutex
 * @touched: a change of the tree takes ranges from it; under extents_mutex
 * @next_touched: the next of those
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
	struct efuse_content content;
	spinlock_t content_lock;	/* for changing content */
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
bool efuse_extents_cut(struct efuse_conn *ec, u64 nodeid);
struct efuse_use *efuse_extent_begin(struct efuse_req *req, u64 pos, u64 *length);
void efuse_extent_end(struct efuse_conn *ec, struct efuse_use *use);
bool efuse_seal_holds(const struct efuse_backing *eb);

/* Is a backing file as it was when its extent was mapped, if the extent is sealed? */
static inline bool efuse_sealed(const struct efuse_backing *eb)
{
	return !(eb->flags & EFUSE_EXTENT_SEALED) || efuse_seal_holds(eb);
}

/* dispatch.c */
bool efuse_answer_now(struct efuse_req *req, struct efuse_conn *ec, struct fuse_mount *fm,
		      struct fuse_args *args);
void efuse_send(struct efuse_req *req, struct mnt_idmap *idmap);
int efuse_background_send(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			  gfp_t gfp_flags);
void efuse_background_now(struct efuse_conn *ec, struct fuse_mount *fm,
			  struct fuse_args *args);

/* data.c */
#define EFUSE_DATA_PAGES	64	/* as many as the stack has room to describe */

/**
 * struct efuse_data - a place in the data of a READ or WRITE
 * @args: the request's
 * @direction: ITER_DEST or ITER_SOURCE
 * @left: bytes from there to the end
 * @index: of the page where it is
 * @skip: bytes of that page (of the whole, without pages) before it
 * @iter: the rest of the caller's buffer, if that is where it is
 */
struct efuse_data {
	struct fuse_args *args;
	unsigned int direction;
	size_t left;
	unsigned int index;
	size_t skip;
	struct iov_iter iter;
};

/* What an iterator over a part of the data goes over. Large: nobody needs it zeroed. */
struct efuse_span {
	struct kvec kvec;
	struct bio_vec bvec[EFUSE_DATA_PAGES];
};

void efuse_data_start(struct efuse_data *data, struct fuse_args *args, unsigned int direction);
size_t efuse_data_next(struct efuse_data *data, struct efuse_span *span, struct iov_iter *iter,
		       size_t len);
void efuse_data_skip(struct efuse_data *data, size_t len);
void efuse_data_end(struct fuse_args *args, size_t done);

/* blocks.c */

/* Larger WRITEs are not kept: that copy would cost more than it is worth. */
#define EFUSE_KEPT_WRITE	(4 * PAGE_SIZE)

/**
 * struct efuse_block - a block of a file, for block() and learn()
 * @number: which: offset in the file / EFUSE_BLOCK_SIZE
 * @skip: bytes at its start that are not wanted
 * @want: bytes wanted behind them
 * @len: bytes found, or to be learned
 * @found: whether it was found
 * @last: whether the file ends in it
 * @iter: where its bytes go, or come from
 * @now: time of the request
 * @epoch: to be learned with
 * @expires_ns: likewise
 * @evicted: what made room for it, nodeid 0: nothing
 */
struct efuse_block {
	u64 number;
	u32 skip;
	u32 want;
	u32 len;
	bool found;
	bool last;
	struct iov_iter *iter;
	u64 now;
	u64 epoch;
	u64 expires_ns;
	struct efuse_tag evicted;
};

int efuse_answer_block(struct efuse_req *req, void *tag, u32 tag_size, const void *data,
		       u32 data_size);
int efuse_keep_block(struct efuse_req *req, void *tag, u32 tag_size, void *data, u32 data_size);
int efuse_evicted_block(const struct efuse_req *req, void *tag, u32 size);
bool efuse_blocks_allowed(const struct efuse_req *req);
size_t efuse_blocks_read(struct efuse_req *req, struct efuse_data *data, u64 pos, bool *eof);
size_t efuse_blocks_missing(struct efuse_req *req, u64 pos, size_t len);
void efuse_blocks_learn(struct efuse_req *req, const struct efuse_changes *ch);

/* direct.c */
const struct cred *efuse_act_as(const struct cred *cred);
void efuse_content_look(struct efuse_content *content, const struct file *file);
void efuse_content_shown(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb);
void efuse_backing_accessed(struct efuse_conn *ec, u64 nodeid, const struct inode *inode,
			    struct timespec64 before);
void efuse_direct_shown(const struct efuse_req *req);
bool efuse_direct_read(struct efuse_req *req);
bool efuse_direct_write(struct efuse_req *req);

/* device.c */
csd_resident_t efuse_device_reads(const struct file *file);
int efuse_device_resident(struct efuse_req *req);

/* ask.c */
size_t efuse_daemon_limit(const struct efuse_req *req);
bool efuse_ask_in_parts(const struct efuse_req *req);
void efuse_ask_all(struct efuse_req *req);
bool efuse_ask_behind(struct efuse_req *req);
ssize_t efuse_ask_fill(struct efuse_req *req, size_t at, size_t len);

/* file_io.c */
bool efuse_file_clean(struct inode *inode);

/* paths.c */
bool efuse_path_take(struct efuse_req *req);
bool efuse_path_direct(struct efuse_req *req);
void efuse_path_done(struct efuse_req *req, enum efuse_path path);
const struct efuse_path_info *efuse_path_describe(struct efuse_req *req);

/* May backing files be read and written? */
static inline bool efuse_path_backed(const struct efuse_conn *ec)
{
	u8 forced = READ_ONCE(ec->forced_path);

	return forced != EFUSE_PATH_DAEMON && forced != EFUSE_PATH_CACHE;
}

static inline void efuse_count_path(struct efuse_conn *ec, enum efuse_path path,
				    enum efuse_path_counter counter, u64 n)
{
	this_cpu_add(ec->stats->path[path][counter], n);
}

/* later.c */
int efuse_later_prepare(struct efuse_conn *ec);
void efuse_later_settle(struct efuse_conn *ec);
void efuse_later_free(struct efuse_conn *ec);
bool efuse_later(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
		 gfp_t gfp_flags);

/* readdir.c */
#define EFUSE_READDIR		SZ_32K	/* what a READDIR asks for unless sysfs says otherwise */
#define EFUSE_MAX_READDIR	SZ_128K

/* path_sysfs.c */
int efuse_path_sysfs_add(struct efuse_conn *ec);
void efuse_path_sysfs_remove(struct efuse_conn *ec);
void efuse_limits_apply(struct efuse_conn *ec);

/* number_sysfs.c */

/**
 * struct efuse_number - a u32 of struct efuse_conn that root may set
 * @attr: its file
 * @offset: of it
 * @least: bound
 * @most: likewise
 * @step: of which it is a multiple
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

/* channel_sysfs.c */
int efuse_channel_sysfs_add(struct efuse_conn *ec);
void efuse_channel_sysfs_remove(struct efuse_conn *ec);

/* channel.c */
long efuse_channel_make(struct efuse_conn *ec, struct fuse_dev *fud,
			const struct efuse_channel_setup __user *argp);
long efuse_channel_next(struct fuse_dev *fud, struct file *file,
			struct efuse_next __user *argp);

/* polling.c */
bool efuse_poll(struct efuse_channel *channel);
bool efuse_poll_claim(struct efuse_channel *channel);
bool efuse_poll_any(const struct efuse_channel *channel);
u32 efuse_poll_free(const struct efuse_channel *channel);

/* balance.c */
const struct efuse_channel_load *efuse_load_describe(struct efuse_placement *placement, u32 cpu);
void efuse_homes_find(struct efuse_conn *ec);

/* queues.c */
struct fuse_conn *efuse_queue_conn(struct fuse_iqueue *fiq);
bool efuse_queues_forget(struct efuse_conn *ec, u64 nodeid, u16 bucket, u64 *others);
bool efuse_queue_filled(const struct efuse_queue *queue);
void efuse_queue_wake(const struct efuse_queue *queue);
void efuse_queues_wake_all(struct fuse_conn *fc);
int efuse_queues_add(struct efuse_conn *ec);
void efuse_queues_free(struct efuse_conn *ec);

/* learn.c */
void efuse_learn(struct efuse_req *req, struct efuse_ops *ops,
		 const struct efuse_changes *ch);

/* raise.c */
#define EFUSE_RAISED_SECS	(10ULL * 365 * 24 * 3600)

void efuse_raise(struct efuse_req *req, const struct efuse_changes *ch);
void efuse_strip(struct fuse_args *args);

/* kept.c */
/* A time-out that was raised: no time, but the bucket and epoch that it lives by. */
#define EFUSE_TIME_RAISED	BIT_ULL(62)

static inline bool efuse_time_raised(u64 time)
{
	return time & EFUSE_TIME_RAISED;
}

void efuse_raise_time(u16 bucket, u64 epoch, u64 *secs, u32 *nsecs);
bool efuse_time_ended(const struct efuse_conn *ec, u64 time);
bool efuse_shared(const struct efuse_conn *ec, const struct fuse_attr *attr);
bool efuse_shared_nodeid(struct fuse_mount *fm, u64 nodeid);
bool efuse_kept(const struct efuse_conn *ec, struct fuse_mount *fm, u64 nodeid);
bool efuse_refresh_nodeid(struct fuse_mount *fm, u64 nodeid);
bool efuse_pages_true(const struct efuse_conn *ec, struct inode *inode);

void efuse_linked(struct fuse_mount *fm, u64 nodeid);
void efuse_lower_attrs(struct fuse_mount *fm, u64 nodeid);
void efuse_lower(struct fuse_conn *fc);

/* pages.c */
bool efuse_pages_drop(struct inode *inode, loff_t pos, size_t len);
void efuse_pages_void(struct efuse_conn *ec, struct inode *inode, loff_t pos, size_t len);
void efuse_pages_pass(struct inode *inode, loff_t pos, size_t len);
void efuse_pages_passed(struct inode *inode);
void efuse_pages_evicted(struct inode *inode);

#endif /* _FS_FUSE_EFUSE_I_H */
