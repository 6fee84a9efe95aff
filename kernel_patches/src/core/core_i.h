/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What all of eFuse sees: connections, requests, their callers, counters. Calls nothing of the
 * other rooms.
 */
#ifndef _FS_FUSE_EFUSE_CORE_I_H
#define _FS_FUSE_EFUSE_CORE_I_H

#include <linux/efuse.h>
#include <linux/kobject.h>
#include <linux/percpu.h>
#include <linux/siphash.h>
#include <linux/tracepoint-defs.h>
#include <linux/uio.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "../../fuse_i.h"
#include "../efuse.h"
#include "../efuse_ops.h"
#include "compat.h"

#define EFUSE_NR_OPCODES	(EFUSE_COPY_FILE_RANGE_64 + 1)	/* lower opcodes are counted */
#define EFUSE_NR_BUCKETS	65536	/* of epochs, per connection */
#define EFUSE_BUCKETS_CHUNK	512	/* buckets that are allocated together */
#define EFUSE_MAX_ERRNO		511	/* largest errno that the FUSE protocol allows */

/* In the FUSE protocol: the daemon does not implement the opcode and wants no more of it. */
#define EFUSE_NOT_IMPLEMENTED	(-ENOSYS)

/*
 * Marks of the kernel's own answers. efuse_strip() takes them out of the daemon's replies.
 *
 * In fuse_file.open_flags: the kernel has opened the file itself.
 */
#define EFUSE_FOPEN_LOCAL	BIT(31)
/* In fuse_attr.flags: the answer of the LOOKUP does not stand for a lookup count. */
#define EFUSE_ATTR_UNCOUNTED	BIT(31)
/* In fuse_attr.flags: EFUSE_ATTR_EPOCH has the end of the epoch since which they are true. */
#define EFUSE_ATTR_MARKED	BIT(30)
/* In fuse_attr.flags: the size is FUSE's own, which has replaced the daemon's. */
#define EFUSE_ATTR_REPLACED	BIT(29)
/* In fuse_attr.flags: the attributes are from a map. */
#define EFUSE_ATTR_ANSWER	BIT(28)
#define EFUSE_ATTR_EPOCH	GENMASK(27, 2)	/* see EFUSE_ATTR_MARKED */

enum efuse_consistency {
	EFUSE_STRICT,
	EFUSE_TTL,
	EFUSE_CTO,
	EFUSE_EXCLUSIVE,
	EFUSE_NR_CONSISTENCIES,
};

/* Counters per opcode. opcode_sysfs.c has their names in sysfs. */
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
	EFUSE_INVALID_VERDICT,
	EFUSE_UNMAPPED,
	EFUSE_FAILED,
	EFUSE_NR_COUNTERS,
};

/* What answered a request, if not a path of enum efuse_path. */
enum efuse_answered_by {
	EFUSE_ANSWERED_BY_HANDLER = EFUSE_NR_PATHS,
	EFUSE_ANSWERED_BY_REFUSAL,	/* a handler that refused it */
	EFUSE_ANSWERED_BY_KERNEL,	/* the kernel, without a handler */
};

/* Counters per path. path_sysfs.c has their names in sysfs. */
enum efuse_path_counter {
	EFUSE_PATH_CHOSEN,
	EFUSE_PATH_REQUESTS,
	EFUSE_PATH_PARTIAL,
	EFUSE_PATH_BYTES,
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

/* Counters are in rows of a power of two: a shift finds the row of an opcode or a path. */
#define EFUSE_ROW	16
static_assert(EFUSE_NR_COUNTERS <= EFUSE_ROW && EFUSE_NR_PATH_COUNTERS <= EFUSE_ROW);

/* The counters of one CPU. efuse_stats_sum() adds them up. */
struct efuse_stats {
	u64 path[EFUSE_NR_PATHS][EFUSE_ROW];
	u64 op[EFUSE_NR_OPCODES][EFUSE_ROW];
	u64 channel[EFUSE_NR_CHANNEL_COUNTERS];
	u64 learned;
	u64 map_full;
	u64 invalid_verdicts;
	u64 evicted;
	atomic_t depth;		/* see struct efuse_path_info; requests may end on another CPU */
};

/**
 * struct efuse_time - the time of requests on one CPU
 * @ns: sum of their times
 * @timed: number of requests
 */
struct efuse_time {
	u64 ns;
	u64 timed;
};

/**
 * struct efuse_times - the times of requests on one CPU; efuse_times_sum() adds them up
 * @hit: answers of the kernel, by opcode
 * @daemon: answers of the daemon, by opcode
 * @path: READs and WRITEs, by the path that answered
 * @latency: number of READs and WRITEs of a path, by class of duration
 */
struct efuse_times {
	struct efuse_time hit[EFUSE_NR_OPCODES];
	struct efuse_time daemon[EFUSE_NR_OPCODES];
	struct efuse_time path[EFUSE_NR_PATHS];
	u64 latency[EFUSE_NR_PATHS][EFUSE_NR_LATENCIES];
};

#define EFUSE_WATCH_S	10	/* how long requests are timed after a read of watch_times */

/**
 * struct efuse_buckets - a table of buckets, see epochs.c
 * @chunk: arrays of EFUSE_BUCKETS_CHUNK words; NULL until the first change of a bucket in them
 */
struct efuse_buckets {
	atomic64_t *chunk[EFUSE_NR_BUCKETS / EFUSE_BUCKETS_CHUNK];
};

/*
 * Errors of requests whose daemon ended before it answered. They are below the errors that FUSE
 * accepts from a daemon.
 */
#define EFUSE_LOST_UNREAD	(-1024)	/* the daemon has not read the request */
#define EFUSE_LOST_READ		(-1025)	/* the daemon may have carried the request out */

/* Was a request lost with its daemon? */
static inline bool efuse_lost(ssize_t error)
{
	return error < -EFUSE_MAX_ERRNO;
}

enum efuse_daemon {
	EFUSE_DAEMON_SERVING,
	EFUSE_DAEMON_DEAD,	/* the connection waits for a successor */
	EFUSE_DAEMON_STARTING,	/* a successor has not answered INIT yet */
};

#define EFUSE_NR_MOVES	64

/**
 * struct efuse_moves - the RENAMEs of a connection; see moves.c
 * @lock: protects @list and @all
 * @list: struct efuse_move of each that is in flight
 * @all: number of those that have begun
 * @begun: number of RENAMEs that have begun, by the hash of their names
 * @waitq: wait queue for their ends
 */
struct efuse_moves {
	spinlock_t lock;		/* the list */
	struct list_head list;
	u64 all;
	atomic64_t begun[EFUSE_NR_MOVES];
	wait_queue_head_t waitq;
};

/**
 * struct efuse_locks - the locks that a daemon keeps; see locks.c
 * @lock: protects @list, @nr and @missed
 * @again: serializes telling a successor
 * @list: struct efuse_lock of each
 * @nr: number of them
 * @incarnation: number of the daemon that has been told all of them
 * @missed: some could not be noted
 */
struct efuse_locks {
	spinlock_t lock;		/* the list */
	struct mutex again;		/* telling a successor */
	struct list_head list;
	u32 nr;
	u32 incarnation;
	bool missed;
};

/**
 * struct efuse_recovery - what a connection needs to outlive its daemon; see recovery.c
 * @waitq: wait queue of callers whose requests are to be sent again
 * @deadline: work that ends the connection if no successor comes
 * @serve: work that lets requests go on after a successor has answered INIT
 * @node: the attribute "daemon"
 * @offers: the INIT that the first daemon got
 * @accepts: its reply
 * @died_ns: boot time at which the last descriptor was closed, 0 if none was since @recording began
 * @served_ns: boot time at which the successor began to serve, 0 if none did yet
 * @died_s: real time of the daemon's end, seconds
 * @seconds: how long callers wait for a successor; 0: the connection ends with its daemon
 * @incarnation: number of successors that have served
 * @takeovers: number of successors that have begun
 * @lost: requests that the last daemon had not answered when its descriptors were closed
 * @resent: requests that were sent again
 * @settled: requests that were found to be carried out
 * @failed: requests that failed, because the outcome is unknown or the caller did not wait
 * @daemon: enum efuse_daemon; written under bg_lock
 * @held: requests of the background wait for a daemon; written under bg_lock
 * @accepted: the successor's reply to INIT was accepted; under bg_lock
 * @recording: the counters are of the present daemon; under bg_lock
 * @translates: nodeids and handles differ from the daemon's, as soon as there is a successor; never
 *		cleared
 * @cred: credentials of the user who has mounted, for looking names up again
 * @nodeids_mutex: serializes changes of @by_kernel and @by_daemon
 * @by_kernel: struct efuse_nodeid of each nodeid of the kernel that a successor knows, see
 *	       nodeids.c
 * @by_daemon: struct efuse_nodeid of each, by the daemon's nodeid
 * @ino_real: a daemon has answered with an st_ino that is not the nodeid
 * @next_nodeid: number of nodeids that the kernel has given itself
 * @handles: struct efuse_handle of each open file, by FUSE's handle; see handles.c
 * @next_handle: FUSE's last handle
 * @moves: RENAMEs in flight
 * @locks: locks that the daemon keeps
 * @unresolved: requests of the background that have to be translated first; under bg_lock
 * @resolve: work that does that
 */
struct efuse_recovery {
	wait_queue_head_t waitq;
	struct delayed_work deadline;
	struct work_struct serve;
	struct kernfs_node *node;
	struct fuse_init_in offers;
	struct fuse_init_out accepts;
	u64 died_ns;
	u64 served_ns;
	s64 died_s;
	u32 seconds;
	u32 incarnation;
	u32 takeovers;
	atomic_t lost;
	atomic_t resent;
	atomic_t settled;
	atomic_t failed;
	u8 daemon;
	bool held;
	bool accepted;
	bool recording;
	bool translates;
	bool ino_real;
	const struct cred *cred;
	struct mutex nodeids_mutex;	/* changes of the nodeids */
	struct xarray by_kernel;
	struct xarray by_daemon;
	u64 next_nodeid;
	struct xarray handles;
	atomic64_t next_handle;
	struct efuse_moves moves;
	struct efuse_locks locks;
	struct list_head unresolved;
	struct work_struct resolve;
};

#define EFUSE_MAX_RECOVERY	86400	/* seconds */

/**
 * struct efuse_conn - eFuse's half of a struct fuse_conn
 * @rcu: for freeing
 * @kobj: the connection's directory in sysfs; its reference count is that of this structure
 * @connected_node: the attribute "connected"
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
 * @times: counters of times, NULL until times are needed; written under efuse_conn_mutex
 * @timed_until: jiffies64 until which requests are timed
 * @backed: struct efuse_backed of each file with extents, by nodeid; see extents.c
 * @extents_mutex: protects @backed and all extents in it; they are read under RCU
 * @extents_wait: wait queue for the ends of uses of extents and for @extents_open
 * @extents_open: number of extents whose backing files are not closed yet
 * @extents_ended: the connection is unmounted: no extent can be mapped any more
 * @on_device: some extent was on a device of csd.ko; never cleared
 * @extents_fixed: some extent had a fixed length; never cleared
 * @forced_path: path of every READ and WRITE, or EFUSE_PATH_AUTO
 * @round: the program probes all paths once in this many READs of a kind
 * @probes: how many READs of a round probe each path
 * @deferred_queue: workers for WRITEs of write-back, NULL until needed; see deferred.c
 * @daemon_read: the most bytes of a READ that the daemon accepts; 0 until INIT is answered
 * @daemon_write: the most bytes of a WRITE that the daemon accepts; 0 until INIT is answered
 * @max_request: the most bytes of a READ or WRITE that FUSE makes; 0: what the daemon accepts
 * @max_readdir: the most bytes that a READDIR or READDIRPLUS asks for
 * @enable_seq: number of attached sets so far; written under efuse_conn_mutex
 * @exit_kind: enum efuse_exit_kind of the last detach; under efuse_conn_mutex
 * @exit_code: exit code of the last detach; under efuse_conn_mutex
 * @order: by the hash of a nodeid, when its attributes were learned last; see order.c
 * @learn_since: value of fuse_conn.attr_version when a program set was attached or replaced last;
 *		 U64_MAX meanwhile, 0 before the first one
 * @learned_maps: maps into which a reply was learned, a bit for each map; bits are never cleared
 * @consistency: enum efuse_consistency
 * @stable_nodeids: declared: a nodeid stands for the same inode for ever
 * @nodeid_per_file: declared: a file has one nodeid, however many names it has
 * @caller_independent: declared: answers do not depend on the caller
 * @no_open: declared: the daemon needs no file handles
 * @no_flush: declared: the daemon needs no FLUSH of a file that was not written
 * @lazy_atime: declared: the reported atime need not include the latest reads
 * @lazy_open: declared: a file that was opened for reading can be opened again, see
 *	       efuse_opens_later()
 * @revalidate: what was read outlives its timeout if its version has not changed: see version.c
 * @no_terminals: the daemon does not implement the IOCTL of isatty(3): see terminal.c
 * @clock_offset: CLOCK_REALTIME less CLOCK_MONOTONIC, in ns, as far as it was looked at
 * @clock_steps: how often @clock_offset has become smaller
 * @recovery: what the connection needs to outlive its daemon
 */
struct efuse_conn {
	struct rcu_head rcu;
	struct kobject kobj;
	struct kernfs_node *connected_node;
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
	struct efuse_times __percpu *times;
	u64 timed_until;

	struct xarray backed;
	struct mutex extents_mutex;	/* changes of extents */
	wait_queue_head_t extents_wait;
	atomic_t extents_open;
	bool extents_ended;
	bool on_device;
	bool extents_fixed;
	u8 forced_path;
	u32 round;
	u32 probes;
	struct workqueue_struct *deferred_queue;
	u32 daemon_read;
	u32 daemon_write;
	u32 max_request;
	u32 max_readdir;

	u32 enable_seq;
	u32 exit_kind;
	s64 exit_code;

	struct efuse_buckets order;
	u64 learn_since;
	unsigned long learned_maps;
	u8 consistency;
	bool stable_nodeids;
	bool nodeid_per_file;
	bool caller_independent;
	bool no_open;
	bool no_flush;
	bool lazy_atime;
	bool lazy_open;
	bool revalidate;
	bool no_terminals;
	atomic64_t clock_offset;
	atomic64_t clock_steps;
	struct efuse_recovery recovery;
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
 * @learn_item: the value that learn() is called for, if that is not a block; else NULL
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
	struct efuse_learn_item *learn_item;
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

/* conn.c */

/* eFuse's half of a connection, or NULL before the file system is mounted. */
static inline struct efuse_conn *efuse_conn_get(const struct fuse_conn *fc)
{
	/* Pairs with efuse_conn_add(): the structure is complete. */
	return smp_load_acquire(&fc->efuse);
}

/* Does FUSE have numbers in place of the daemon's handles? Requests on rings are not translated. */
static inline bool efuse_translates(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->recovery.translates) && !efuse_may_ring(ec->fc);
}

/* May the daemon's nodeids differ from the kernel's? */
static inline bool efuse_translated(const struct efuse_conn *ec)
{
	return efuse_translates(ec) && READ_ONCE(ec->recovery.incarnation);
}

/*
 * Is there no daemon, and no successor whose INIT was accepted? Then a descriptor of the connection
 * has no other right than to read INIT and to answer it.
 */
static inline bool efuse_daemon_absent(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->recovery.daemon) != EFUSE_DAEMON_SERVING &&
	       !READ_ONCE(ec->recovery.accepted);
}

extern struct mutex efuse_conn_mutex;
struct efuse_conn *efuse_conn_find(u32 id);
struct efuse_conn *efuse_conn_of_ops(const struct efuse_ops *ops);
bool efuse_conn_caller_free(const struct efuse_conn *ec);

void efuse_conn_register(struct efuse_conn *ec);
void efuse_limits_apply(struct efuse_conn *ec);

/* stats.c */
int efuse_times_add(struct efuse_conn *ec);
u64 efuse_stats_sum(const struct efuse_conn *ec, size_t offset);
u64 efuse_times_sum(const struct efuse_conn *ec, size_t offset);
void efuse_count_hit_time(struct efuse_conn *ec, u32 opcode, u64 ns);
void efuse_count_daemon_time(struct efuse_conn *ec, u32 opcode, u64 ns);
void efuse_count_path_time(struct efuse_conn *ec, enum efuse_path path, u64 ns);

static inline void efuse_count(struct efuse_conn *ec, u32 opcode,
			       enum efuse_counter counter)
{
	if (opcode < EFUSE_NR_OPCODES)
		this_cpu_inc(ec->stats->op[opcode][counter]);
}

static inline void efuse_count_channel(struct efuse_conn *ec, enum efuse_channel_counter counter)
{
	this_cpu_inc(ec->stats->channel[counter]);
}

static inline bool efuse_timed(const struct efuse_conn *ec)
{
	return time_before64(get_jiffies_64(), READ_ONCE(ec->timed_until));
}

static inline void efuse_count_path(struct efuse_conn *ec, enum efuse_path path,
				    enum efuse_path_counter counter, u64 n)
{
	this_cpu_add(ec->stats->path[path][counter], n);
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
void efuse_lookup_args(struct fuse_args *args, u64 dir, const char *name, u32 len,
		       struct fuse_entry_out *entry);
void efuse_room_restore(struct fuse_args *args);
const void *efuse_req_in(const struct fuse_args *args, size_t size);
const char *efuse_req_name_at(const struct fuse_args *args, u32 index, u32 *len);
u32 efuse_arg_flags(const struct fuse_args *args);
u64 efuse_arg_fh(const struct fuse_args *args);
u64 efuse_arg_offset(const struct fuse_args *args);
u64 efuse_arg_size(const struct fuse_args *args);
u64 efuse_arg_newdir(const struct fuse_args *args);
u64 *efuse_place_fh(struct fuse_args *args);
u64 *efuse_place_other(struct fuse_args *args);
u64 *efuse_place_other_fh(struct fuse_args *args);
void *efuse_out_data(struct fuse_args *args, size_t *room);
char *efuse_dirents_start(const struct efuse_req *req, size_t *left);
struct fuse_direntplus *efuse_dirents_next(char **at, size_t *left);
bool efuse_is_write_back(const struct fuse_args *args);
struct fuse_entry_out *efuse_out_entry(const struct fuse_args *args);
struct fuse_attr_out *efuse_out_attr(const struct fuse_args *args);
struct fuse_statx_out *efuse_out_statx(const struct fuse_args *args);
struct fuse_attr efuse_statx_attr(const struct fuse_statx *stat);
struct fuse_open_out *efuse_out_open(const struct fuse_args *args);
bool efuse_handle_is_any(const struct fuse_args *args, u64 fh);
bool efuse_opens_later(const struct efuse_conn *ec, const struct fuse_args *args);

static inline bool efuse_is_io(const struct fuse_args *args)
{
	return args->opcode == FUSE_READ || args->opcode == FUSE_WRITE;
}

/* caller.c: identity of the caller */
u32 efuse_caller_uid(const struct efuse_req *req);
u32 efuse_caller_gid(const struct efuse_req *req);
u32 efuse_caller_pid(const struct efuse_req *req);
u64 efuse_caller_stamp(struct efuse_req *req);
bool efuse_caller_is(struct efuse_req *req, const struct efuse_stamp *stamp);
bool efuse_names_shared(const struct efuse_conn *ec);
u32 efuse_extended_open(const struct efuse_req *req, u64 fh);
void efuse_part_callers(struct efuse_req *req);

/* trace.c */
DECLARE_TRACEPOINT(efuse_request);
void efuse_trace(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args, ssize_t ret);

/* Initialises a request before it is offered to handlers. */
static inline void efuse_req_init(struct efuse_req *req, struct efuse_conn *ec,
				  struct fuse_mount *fm, struct fuse_args *args)
{
	req->ec = ec;
	req->fm = fm;
	req->args = args;
	req->sent = NULL;
	req->caller = 0;
	req->error = 0;
	req->ret = 0;
	req->reason = 0;
	req->replied = false;
	req->at_device = false;
	req->stop = EFUSE_STOP_ALL;
	req->appended = 0;
	req->racy = false;
	req->learn_item = NULL;
	req->block = NULL;
	if (efuse_is_io(args))
		memset(&req->path, 0, sizeof(req->path));
	req->ended = 0;
	req->ended_epoch = 0;
}

/* Initialises what is noted about a request for its trace event. */
static inline void efuse_begin(struct fuse_args *args)
{
	args->efuse.begun_ns = tracepoint_enabled(efuse_request) ? ktime_get_ns() : 0;
	args->efuse.answered_by = EFUSE_ANSWERED_BY_KERNEL;
	args->efuse.reason = 0;
}

#endif /* _FS_FUSE_EFUSE_CORE_I_H */
