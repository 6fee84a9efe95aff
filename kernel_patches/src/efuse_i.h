/* SPDX-License-Identifier: GPL-2.0 */
/*
 * eFuse's internal interface: one section for each .c file of this directory.
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
#define EFUSE_NR_OPCODES	64	/* requests of lower opcodes are counted */
#define EFUSE_NR_BUCKETS	65536	/* of epochs, per connection */
#define EFUSE_EPOCH_BITS	46	/* bits of an epoch that shares a word */
#define EFUSE_VOLUME_NS		(10ULL * NSEC_PER_SEC)	/* a daemon may free space at any time */
#define EFUSE_BUCKETS_CHUNK	512	/* buckets that are allocated together */
#define EFUSE_MAX_ERRNO		511	/* largest errno that the FUSE protocol allows */

/* In the FUSE protocol: the daemon does not implement the opcode and wants no more of it. */
#define EFUSE_NOT_IMPLEMENTED	(-ENOSYS)

/* Initial values of a connection's round and probes, and the largest that sysfs accepts. */
#define EFUSE_ROUND		5000
#define EFUSE_PROBES		4
#define EFUSE_MAX_ROUND		1000000000
#define EFUSE_MAX_PROBES	1000

/*
 * Marks of the kernel's own answers. efuse_strip() takes them out of the daemon's replies.
 *
 * In fuse_file.open_flags: the kernel has opened the file itself.
 */
#define EFUSE_FOPEN_LOCAL	BIT(31)
/* In fuse_attr.flags: the answer of the LOOKUP does not stand for a lookup count. */
#define EFUSE_ATTR_UNCOUNTED	BIT(31)

enum efuse_consistency {
	EFUSE_STRICT,
	EFUSE_TTL,
	EFUSE_CTO,
	EFUSE_EXCLUSIVE,
	EFUSE_NR_CONSISTENCIES,
};

/* Counters per opcode. stats.c has their names in sysfs. */
enum efuse_counter {
	EFUSE_REQUESTS,
	EFUSE_HITS,
	EFUSE_REFUSED,
	EFUSE_DAEMON,
	EFUSE_ERRORS,
	/* Reasons why a request went to the daemon. */
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
	/* Times, and how many requests they are of. */
	EFUSE_HIT_NS,
	EFUSE_HIT_TIMED,
	EFUSE_DAEMON_NS,
	EFUSE_DAEMON_TIMED,
	EFUSE_NR_COUNTERS,
};

/* What answered a request, if not a path of enum efuse_path. */
enum efuse_by {
	EFUSE_BY_HANDLER = EFUSE_NR_PATHS,
	EFUSE_BY_REFUSAL,	/* a handler that refused it */
	EFUSE_BY_KERNEL,	/* the kernel, without a handler */
};

/* Counters per path. path_sysfs.c has their names in sysfs. */
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

/* Counters of channels, by the CPU that counts. channel_sysfs.c has their names in sysfs. */
enum efuse_channel_counter {
	EFUSE_POLL_HITS,	/* a worker polled and found a request */
	EFUSE_POLL_MISSES,	/* a worker polled in vain */
	EFUSE_SPIN_HITS,	/* a caller polled and found its answer */
	EFUSE_SPIN_MISSES,	/* a caller polled in vain */
	EFUSE_ELSEWHERE,	/* requests sent to another channel than the CPU's home */
	EFUSE_OTHERS_WOKEN,	/* no worker of the channel was free: one of another was woken */
	EFUSE_BROUGHT,		/* requests that EFUSE_IOC_NEXT returned */
	EFUSE_REPLY_REFUSED,	/* invalid replies in slots, invalid slot numbers */
	EFUSE_NR_CHANNEL_COUNTERS,
};

/*
 * Durations of requests are counted in classes: four for each power of two from 2^8 to 2^34 ns, one
 * for shorter and one for longer durations.
 */
#define EFUSE_LATENCY_MIN_LOG	8
#define EFUSE_LATENCY_MAX_LOG	34
#define EFUSE_NR_LATENCIES	((EFUSE_LATENCY_MAX_LOG - EFUSE_LATENCY_MIN_LOG) * 4 + 2)

/* The counters of one CPU. efuse_stats_sum() adds them up. */
struct efuse_stats {
	u64 path[EFUSE_NR_PATHS][EFUSE_NR_PATH_COUNTERS];
	u64 latency[EFUSE_NR_PATHS][EFUSE_NR_LATENCIES];
	u64 op[EFUSE_NR_OPCODES][EFUSE_NR_COUNTERS];
	u64 channel[EFUSE_NR_CHANNEL_COUNTERS];
	u64 learned;
	u64 map_full;
	u64 garbage;
	u64 evicted;
	atomic_t depth;		/* see struct efuse_path_info; requests may end on another CPU */
};

#define EFUSE_UNIQUE_STEP	2	/* of FUSE's request numbers: bit 0 marks an interrupt */

/**
 * struct efuse_luck - whether polling has paid off lately
 * @credit: incremented, up to EFUSE_LUCK, when polling has succeeded, else decremented; at 0 most
 *	    polls are skipped
 * @skipped: polls that were skipped since the last one
 *
 * Not locked: races only make it less exact.
 */
struct efuse_luck {
	u8 credit;
	u8 skipped;
};

#define EFUSE_LUCK	8

/**
 * struct efuse_queue - the queue of requests of one CPU
 * @iq: the queue as FUSE knows it; its waitq is not used: readers sleep on FUSE's own queue
 * @fc: connection
 * @kobj: the queue's directory in sysfs
 * @cpu: the CPU
 * @node: NUMA node of the CPU
 * @channel: channel of the CPU, NULL if the daemon has made none; under RCU, written under
 *	     channels_mutex
 * @home: queue of the nearest CPU with a channel; this queue if there is no channel; written under
 *	  channels_mutex
 * @luck: of callers that poll for the answers to requests in this queue
 * @looks: how often a reader on this CPU looked for a request; not locked, races are harmless
 * @depth: requests in the queue; written under iq.lock
 * @sent: requests that were sent to the queue so far; written under iq.lock
 * @stolen: requests that a reader of another CPU took so far; written under iq.lock
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
 * struct efuse_node - the workers of all channels of a NUMA node
 * @waiting: number of workers that wait for a request, polling or asleep; without those that have
 *	     O_NONBLOCK
 * @looking: number of workers that poll and that no sender has claimed
 */
struct efuse_node {
	atomic_t waiting;
	atomic_t looking;
} ____cacheline_aligned_in_smp;

enum efuse_policy {
	EFUSE_POLICY_LEAST,	/* requests may go to any channel */
	EFUSE_POLICY_OWN,	/* requests go to the sender's home */
	EFUSE_NR_POLICIES,
};

/* Initial values of a connection's spin_ns and threshold, and the largest that sysfs accepts. */
#define EFUSE_SPIN_NS		50000
#define EFUSE_THRESHOLD		1
#define EFUSE_MAX_SPIN_NS	1000000
#define EFUSE_MAX_THRESHOLD	65536

/**
 * struct efuse_channel - memory that is shared with the daemon, see channel.c
 * @ec: connection
 * @fud: the descriptor of /dev/efuse that the channel belongs to
 * @queue: queue of the channel's CPU
 * @slots: number of slots
 * @slot_size: bytes of a slot's room for a request, and of its room for a reply
 * @nr_pages: number of pages of all slots
 * @pages: array of these pages, owned by the channel
 * @bvec: array with one whole page of @pages in each element
 * @lock: protects @state, @begun, @held, @service_ns and @full; some are read without it
 * @state: enum efuse_slot_state of each slot
 * @begun: local_clock() at which the daemon got the request in each slot
 * @held: number of slots whose request the daemon is working on
 * @service_ns: recent mean time that the daemon works on a request; 0: not known yet
 * @full: a worker has found no free slot; the next slot that becomes free wakes all workers
 * @waitq: wait queue of the channel's workers
 * @coming: number of workers that are delivering a reply and will poll for a request next
 * @polls: numbers of workers that poll, see polling.c
 * @luck: of the workers that poll
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
	spinlock_t lock;		/* the states of the slots */
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
 * struct efuse_buckets - a table of buckets, see epochs.c
 * @chunk: arrays of EFUSE_BUCKETS_CHUNK words; NULL until the first change of a bucket in them
 */
struct efuse_buckets {
	atomic64_t *chunk[EFUSE_NR_BUCKETS / EFUSE_BUCKETS_CHUNK];
};

/**
 * struct efuse_conn - eFuse's half of a struct fuse_conn
 * @rcu: for freeing
 * @kobj: the connection's directory in sysfs; its reference count is that of this structure
 * @stats_kobj: the subdirectory stats
 * @paths_kobj: the subdirectory paths
 * @channels_kobj: the subdirectory channels
 * @fc: FUSE's half of the connection; valid until efuse_conn_free()
 * @id: name of the connection in sysfs: the minor of the mount's device number
 * @ops: the attached program set, or NULL; under RCU, written under efuse_conn_mutex
 * @list: node in the list of all connections; under efuse_conn_mutex
 * @caller_key: secret key of the hash of callers, see caller.c
 * @epoch: number of the last change; starts at a random value
 * @floor: values of earlier epochs are void
 * @buckets: buckets of inodes and names, see epochs.c
 * @block_buckets: buckets of the blocks of files, see epochs.c
 * @queues: array with the queue of each possible CPU, see queues.c
 * @channels_mutex: serializes the making and closing of channels
 * @nodes: array with the workers of each possible NUMA node
 * @policy: enum efuse_policy, see balance.c
 * @threshold: a channel with this many requests is loaded
 * @spread: not 0: for requests in the background, a channel with one request is loaded
 * @spin_ns: how long workers and callers poll before they sleep
 * @stats: counters
 * @timed_until: jiffies64 until which requests are timed
 * @backed: struct efuse_backed of each file with extents, by nodeid; see extents.c
 * @extents_mutex: protects @backed and all extents in it; they are read under RCU
 * @extents_wait: wait queue for the ends of uses of extents and for @extents_open
 * @extents_open: number of extents whose backing files are not closed yet
 * @extents_ended: the connection is unmounted: no extent can be mapped any more
 * @on_device: some extent was on a device of csd.ko; never cleared
 * @forced_path: path of every READ and WRITE, or EFUSE_PATH_AUTO
 * @round: the program probes all paths once in this many READs of a kind
 * @probes: how many READs of a round probe each path
 * @later_queue: workers for WRITEs of write-back, NULL until needed; see later.c
 * @daemon_read: the most bytes of a READ that the daemon accepts; 0 until INIT is answered
 * @daemon_write: the most bytes of a WRITE that the daemon accepts; 0 until INIT is answered
 * @max_request: the most bytes of a READ or WRITE that FUSE makes; 0: what the daemon accepts
 * @max_readdir: the most bytes that a READDIR or READDIRPLUS asks for
 * @enable_seq: number of attached sets so far; written under efuse_conn_mutex
 * @exit_kind: enum efuse_exit_kind of the last detach; under efuse_conn_mutex
 * @exit_code: exit code of the last detach; under efuse_conn_mutex
 * @consistency: enum efuse_consistency
 * @stable_nodeids: declared: a nodeid stands for the same inode for ever
 * @nodeid_per_file: declared: a file has one nodeid, however many names it has
 * @caller_independent: declared: answers do not depend on the caller
 * @handleless: declared: the daemon needs no file handles
 * @flush_free: declared: the daemon needs no FLUSH of a file that was not written
 * @lazy_atime: declared: the reported atime need not include the latest reads
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
	struct mutex channels_mutex;	/* making and closing channels */
	struct efuse_node **nodes;
	u32 spin_ns;
	u32 threshold;
	u32 spread;
	u8 policy;
	struct efuse_stats __percpu *stats;
	u64 timed_until;

	struct xarray backed;
	struct mutex extents_mutex;	/* changes of extents */
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

/* A value from a reply, with its key, for the member learn(); built by learn.c. */
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
#define EFUSE_MAX_PAGES		2048	/* of one READ or WRITE: 8 MiB */
#define EFUSE_MAX_BLOCKS	(EFUSE_MAX_PAGES + 1)

/**
 * struct efuse_changes - the buckets that a request changes
 * @nr: number of buckets of inodes and names
 * @nr_blocks: number of blocks of a file that are changed
 * @bucket: the buckets of inodes and names, without duplicates
 * @own: for each of @bucket: no other change has touched it since the request was issued; set by
 *	 efuse_epoch_end()
 * @own_blocks: for each of the blocks: no other change has touched its bucket since the request was
 *		issued; set by efuse_epoch_end()
 * @nodeid: nodeid of the file whose blocks are changed
 * @block: number of the first changed block
 * @epoch: the epoch of this change; set by efuse_epoch_end()
 * @content: nodeid of the file whose content is changed, 0: none
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

/* Why a READ or WRITE stopped moving bytes. Only EFUSE_STOP_EOF means that the file ends there. */
enum efuse_stop {
	EFUSE_STOP_ALL,		/* all bytes were moved */
	EFUSE_STOP_EOF,		/* the file ends there */
	EFUSE_STOP_SIGNAL,	/* the caller is being killed */
	EFUSE_STOP_FAULT,	/* a page of the caller's buffer is not in memory */
	EFUSE_STOP_ERROR,	/* the file system of the backing file failed */
	EFUSE_STOP_UNMAPPED,	/* no extent contains the rest */
	EFUSE_STOP_REFUSED,	/* the extent must not be used for this request */
};

/**
 * struct efuse_req - a request for handlers, to which it is opaque
 * @ec: connection
 * @fm: mount
 * @args: the request's arguments
 * @sent: header of the request, if its sender is not the current task (it was sent in the
 *	  background); else NULL
 * @caller: cached result of efuse_caller(); 0: not known
 * @error: the daemon's answer, 0 or a negative errno; for reply() and learn()
 * @ret: what the caller gets, if @replied
 * @reason: why an offered answer was not accepted: enum efuse_counter, or 0
 * @replied: an efuse_reply_*() or a path has answered the request
 * @at_device: backing files are read by direct I/O, past their page cache
 * @stop: READ, WRITE that a path tried: enum efuse_stop
 * @appended: append by the direct path: end of the file after it; 0: nothing was appended
 * @racy: data that the direct path has read may be newer than FUSE's pages of that range
 * @lesson: the value that learn() is called for, if that is not a block; else NULL
 * @block: the block that block() or learn() is called for; else NULL
 * @path: data for select_path() and path_done()
 * @ended: nodeid of the file whose former data is void now, 0: none; for reply() and written()
 * @ended_epoch: the epoch since which it is void
 * @key: room for the result of efuse_req_key(); handlers can write it, so it is never trusted
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

/* A notification of the daemon, for the member notify(); @name is NULL if it has none. */
struct efuse_notify {
	u32 code;
	u64 nodeid;
	const char *name;
	u32 len;
	u64 epoch;
};

/**
 * struct efuse_placement - a request that needs a channel, for handlers, to which it is opaque
 * @ec: connection
 * @info: result of efuse_placement_info()
 * @load: result of the last efuse_channel_load()
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

/* eFuse's half of a connection, or NULL before the file system is mounted. */
static inline struct efuse_conn *efuse_conn_get(const struct fuse_conn *fc)
{
	/* Pairs with efuse_conn_add(): the structure is complete. */
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

/* Times are being read in sysfs: measure requests for the next 10 s. */
static inline void efuse_watch_times(struct efuse_conn *ec)
{
	WRITE_ONCE(ec->timed_until, get_jiffies_64() + 10 * HZ);
}

/* request.c: access to a request's arguments by their meaning */

/**
 * struct efuse_io - a READ or WRITE that eFuse makes itself
 * @ap: arguments of the request
 * @read: READ: the first input argument
 * @write: WRITE: the first input argument
 * @written: WRITE: the output argument
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

/* caller.c: identity of the caller */
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

/* stamp.c: keys of values and the checks in their stamps */
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

/* The kinds of changes of an inode. Each (nodeid, kind) has a bucket. */
enum efuse_kind {
	EFUSE_KIND_ATTR,	/* attributes except the atime */
	EFUSE_KIND_ATIME,
	EFUSE_KIND_XATTR,
	EFUSE_KIND_DATA,	/* content: any change of it */
	EFUSE_KIND_WHOLE,	/* content: other changes than WRITEs, which change blocks */
	EFUSE_KIND_END,		/* content: its end, where it has grown */
	EFUSE_KIND_LIFE,	/* the inode that the nodeid stands for */
	EFUSE_KIND_VOLUME,	/* free space of the file system, with nodeid 0 */
	EFUSE_KIND_RIGHTS,	/* permissions: who may open the file or search the directory */
	EFUSE_KIND_PAGES,	/* content: changes that bypass FUSE's page cache */
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
	EFUSE_TAKEN,		/* the caller has got a lookup count */
	EFUSE_TAKEN_NONE,	/* the inode matches, but has no count to give */
	EFUSE_TAKEN_ABSENT,	/* no inode of this nodeid is in memory */
	EFUSE_TAKEN_UNFIT,	/* the inode is being evicted, or does not match the answer */
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
bool efuse_extents_cut(struct efuse_conn *ec, u64 nodeid);
struct efuse_use *efuse_extent_begin(struct efuse_req *req, u64 pos, u64 *length);
void efuse_extent_end(struct efuse_conn *ec, struct efuse_use *use);
bool efuse_seal_holds(const struct efuse_backing *eb);

/* Is the extent not sealed, or its backing file unchanged since the extent was mapped? */
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
#define EFUSE_DATA_PAGES	64	/* of a struct efuse_span, which is on the stack */

/**
 * struct efuse_data - a position in the data of a READ or WRITE
 * @args: arguments of the request
 * @direction: ITER_DEST or ITER_SOURCE
 * @left: bytes from the position to the end of the data
 * @index: data in pages: index of the page of the position
 * @skip: data in pages: bytes of that page before the position; data in a kernel buffer: bytes of
 *	  the buffer before the position
 * @iter: data in the caller's own buffer: the rest of it
 */
struct efuse_data {
	struct fuse_args *args;
	unsigned int direction;
	size_t left;
	unsigned int index;
	size_t skip;
	struct iov_iter iter;
};

/* The segments of an iterator over a part of the data. Large: not to be zeroed on the stack. */
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

/* Larger WRITEs are not put into the data cache: the copy would cost more than it gains. */
#define EFUSE_KEPT_WRITE	(4 * PAGE_SIZE)

/**
 * struct efuse_block - a block of a file, for block() and learn()
 * @number: number of the block: offset in the file / EFUSE_BLOCK_SIZE
 * @skip: block(): bytes at the start of the block that are not wanted
 * @want: block(): bytes wanted after @skip; 0: only whether the block is there
 * @len: block(): bytes found; learn(): bytes to store
 * @found: block(): the block was found
 * @last: block(): the file ends in the block
 * @iter: block(): destination of the bytes; learn(): source of the bytes
 * @now: block(): ktime of the request
 * @epoch: learn(): epoch for the block's tag
 * @expires_ns: learn(): CLOCK_MONOTONIC time for the block's tag at which the timeout ends
 * @evicted: learn(): former tag of the slot, if another block was evicted; else its nodeid is 0
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

/* Does the forced path, if there is one, allow the use of backing files? */
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
#define EFUSE_READDIR		SZ_32K	/* initial value of efuse_conn.max_readdir */
#define EFUSE_MAX_READDIR	SZ_128K	/* the largest that sysfs accepts */

/* path_sysfs.c */
int efuse_path_sysfs_add(struct efuse_conn *ec);
void efuse_path_sysfs_remove(struct efuse_conn *ec);
void efuse_limits_apply(struct efuse_conn *ec);

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
/* Flag of a raised timeout: the word is not a time, but a bucket and an epoch. See kept.c. */
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
