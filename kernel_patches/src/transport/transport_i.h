/* SPDX-License-Identifier: GPL-2.0 */
/* Requests on their way to the daemon: queues, channels, sending. */
#ifndef _FS_FUSE_EFUSE_TRANSPORT_I_H
#define _FS_FUSE_EFUSE_TRANSPORT_I_H

#include "../cache/cache_i.h"

#define EFUSE_UNIQUE_STEP	2	/* of FUSE's request numbers: bit 0 marks an interrupt */

/**
 * struct efuse_spin - whether polling has paid off lately
 * @credit: incremented, up to EFUSE_MAX_SPIN_CREDIT, when polling has succeeded, else decremented;
 *	    at 0 most polls are skipped
 * @skipped: polls that were skipped since the last one
 *
 * Not locked: races only make it less exact.
 */
struct efuse_spin {
	u8 credit;
	u8 skipped;
};

#define EFUSE_MAX_SPIN_CREDIT	8

/**
 * struct efuse_queue - the queue of requests of one CPU
 * @iq: the queue as FUSE knows it; its waitq is not used: readers sleep on FUSE's own queue
 * @fc: connection
 * @cpu: the CPU
 * @node: NUMA node of the CPU
 * @channel: channel of the CPU, NULL if the daemon has made none; under RCU, written under
 *	     channels_mutex
 * @home: queue of the nearest CPU with a channel; this queue if there is no channel; written under
 *	  channels_mutex
 * @spin: of callers that poll for the answers to requests in this queue
 * @looks: how often a reader on this CPU looked for a request; not locked, races are harmless
 * @serial: number of the present daemon, plus one; 0: there is none; written under iq.lock
 * @held: no daemon serves: a request whose caller waits, or a FORGET, is not queued; written under
 *	  iq.lock
 * @depth: requests in the queue; written under iq.lock
 * @sent: requests that were sent to the queue so far; written under iq.lock
 * @stolen: requests that a reader of another CPU took so far; written under iq.lock
 */
struct efuse_queue {
	struct fuse_iqueue iq;
	struct fuse_conn *fc;
	struct efuse_channel __rcu *channel;
	struct efuse_queue *home;
	struct efuse_spin spin;
	int cpu;
	int node;
	u32 looks;
	u32 serial;
	bool held;
	u32 depth;
	u64 sent;
	u64 stolen;
};

/**
 * struct efuse_node - the workers of all channels of a NUMA node
 * @waiting: number of workers that wait for a request, polling or asleep; without those that have
 *	     O_NONBLOCK
 * @nr_polling: number of workers that poll and that no sender has claimed
 */
struct efuse_node {
	atomic_t waiting;
	atomic_t nr_polling;
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
 * @lock: protects @state, @begun, @nr_in_flight, @service_ns and @full; some are read without it
 * @state: enum efuse_slot_state of each slot
 * @begun: local_clock() at which the daemon got the request in each slot
 * @nr_in_flight: number of slots whose request the daemon is working on
 * @service_ns: recent mean time that the daemon works on a request; 0: not known yet
 * @full: a worker has found no free slot; the next slot that becomes free wakes all workers
 * @waitq: wait queue of the channel's workers
 * @nr_replying: number of workers that are delivering a reply and will poll for a request next
 * @polls: numbers of workers that poll, see polling.c
 * @spin: of the workers that poll
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
	u32 nr_in_flight;
	u32 service_ns;
	bool full;
	wait_queue_head_t waitq;
	atomic_t nr_replying;
	atomic_t polls;
	struct efuse_spin spin;
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

/* channel.c */
long efuse_channel_make(struct efuse_conn *ec, struct fuse_dev *fud,
			const struct efuse_channel_setup __user *argp);
long efuse_channel_next(struct fuse_dev *fud, struct file *file,
			struct efuse_next __user *argp);

/* polling.c */
bool efuse_poll(struct efuse_channel *channel);
bool efuse_poll_claim(struct efuse_channel *channel);
u32 efuse_poll_free(const struct efuse_channel *channel);

/* Is any worker polling a channel's queue, free or claimed? */
static inline bool efuse_poll_any(const struct efuse_channel *channel)
{
	return atomic_read(&channel->polls);
}

/* balance.c */
const struct efuse_channel_load *efuse_load_describe(struct efuse_placement *placement, u32 cpu);
void efuse_homes_find(struct efuse_conn *ec);

/* queues.c */
struct fuse_conn *efuse_queue_conn(struct fuse_iqueue *fiq);
bool efuse_queue_filled(const struct efuse_queue *queue);
void efuse_queue_wake(const struct efuse_queue *queue);
void efuse_queues_wake_all(struct fuse_conn *fc);
void efuse_queues_hold(struct efuse_conn *ec, struct list_head *requests);
void efuse_queues_admit(struct efuse_conn *ec);
void efuse_queues_open(struct efuse_conn *ec);
int efuse_queues_add(struct efuse_conn *ec);
void efuse_queues_free(struct efuse_conn *ec);
bool efuse_identity_ends(struct efuse_conn *ec, u64 nodeid);

/* The daemon has not opened what a request would end. Less than any error of a request. */
#define EFUSE_NOTHING_TO_TELL	(-1027)

/* What is known of the present daemon? */
enum efuse_found {
	EFUSE_FOUND,
	EFUSE_FOUND_LATER,	/* the daemon has to be asked */
	EFUSE_FOUND_NEVER,	/* it was known of an earlier daemon alone */
};

/**
 * struct efuse_file_id - a file, for the kernel or for a daemon
 * @nodeid: its nodeid; 0: there is no such file
 * @handle: the handle of the open file
 * @open: the request is for an open file
 */
struct efuse_file_id {
	u64 nodeid;
	u64 handle;
	bool open;
};

/**
 * struct efuse_file_ids - the files of a request
 * @file: the file that it is for
 * @other: another one, for RENAME, LINK and COPY_FILE_RANGE
 */
struct efuse_file_ids {
	struct efuse_file_id file;
	struct efuse_file_id other;
};

struct efuse_listed;

/**
 * struct efuse_listing - how far an open directory has been listed; see listing.c
 * @now: array of what the present daemon has returned
 * @nr_now: number of elements in it
 * @room_now: number of elements that fit in it
 * @nr_before: number of elements in @before
 * @room_before: number of elements that fit in it
 * @before: sorted array of the hashes of names that earlier daemons have returned
 * @start: the caller's position at which the present daemon's listing began
 * @asked: the caller's position when the daemon was asked last
 * @incarnation: number of the daemon that was asked last
 * @lost: not all names are noted
 */
struct efuse_listing {
	struct efuse_listed *now;
	u32 nr_now;
	u32 room_now;
	u32 nr_before;
	u32 room_before;
	u64 *before;
	u64 start;
	u64 asked;
	u32 incarnation;
	bool lost;
};

/* No daemon has this number. */
#define EFUSE_NOT_OPENED	U32_MAX

/**
 * struct efuse_handle - an open file of the daemon
 * @rcu: for freeing
 * @lock: serializes opening the file again
 * @cred: credentials of the program that has opened the file
 * @number: the number that FUSE has for a handle
 * @daemon: the daemon's handle
 * @incarnation: number of this daemon; EFUSE_NOT_OPENED if no daemon has opened the file
 * @flags: flags of open(2)
 * @open_flags: FOPEN_* in the first daemon's reply
 * @dir: the file is a directory
 * @told: a successor is being told of a lock of the file, and must not be told of its end before;
 *	  cleared under bg_lock
 * @closing: the RELEASE that waits for that; under bg_lock
 * @listing: directory: how far it has been listed; FUSE lists one part at a time
 */
struct efuse_handle {
	struct rcu_head rcu;
	struct mutex lock;		/* opening again */
	const struct cred *cred;
	u64 number;
	u64 daemon;
	u32 incarnation;
	u32 flags;
	u32 open_flags;
	bool dir;
	bool told;
	struct fuse_req *closing;
	struct efuse_listing listing;
};

/* listing.c */
u64 efuse_listing_place(struct efuse_listing *listing, u64 off, u32 incarnation);
ssize_t efuse_listing_take(struct efuse_conn *ec, struct efuse_listing *listing,
			   struct fuse_args *args, size_t got, u64 *last);
void efuse_listing_free(struct efuse_listing *listing);

static inline bool efuse_is_dots(const struct fuse_dirent *dirent)
{
	return (dirent->namelen == 1 || (dirent->namelen == 2 && dirent->name[1] == '.')) &&
	       dirent->name[0] == '.';
}

/* moves.c */
int efuse_moves_wait(struct efuse_conn *ec, u64 dir, const char *name, u32 len, u64 *begun);
bool efuse_moves_since(struct efuse_conn *ec, u64 dir, const char *name, u32 len, u64 begun);
bool efuse_moves_try(struct efuse_conn *ec, u64 *begun);
void efuse_moves_add(struct efuse_conn *ec);

/* handles.c */
bool efuse_handle_add(struct efuse_conn *ec, const struct fuse_args *args, u32 incarnation);
bool efuse_handle_later(struct efuse_conn *ec, const struct fuse_args *args);
bool efuse_handle_unopened(struct efuse_conn *ec, u64 number);
bool efuse_handle_drop(struct efuse_conn *ec, u64 number);
enum efuse_found efuse_handle_daemon(struct efuse_conn *ec, u64 number, u32 incarnation, u64 *fh);
struct efuse_handle *efuse_handle_find(struct efuse_conn *ec, u64 number);
void efuse_handle_released(struct efuse_conn *ec, u64 number);
struct efuse_listing *efuse_handle_listing(struct efuse_conn *ec, u64 number);
void efuse_handles_add(struct efuse_conn *ec);
void efuse_handles_free(struct efuse_conn *ec);

/* locks.c */
void efuse_locked(struct efuse_req *req);
bool efuse_locks_end(struct efuse_conn *ec, const struct fuse_args *args);
bool efuse_locks_flushed(struct efuse_conn *ec, const struct fuse_args *args);
void efuse_locks_settle(struct efuse_conn *ec);
ssize_t efuse_locks_again(struct efuse_conn *ec);
void efuse_locks_add(struct efuse_conn *ec);
void efuse_locks_free(struct efuse_conn *ec);

/* resolve.c */
u64 efuse_child_known(struct fuse_mount *fm, struct efuse_conn *ec, u64 dir, const char *name,
		      u32 len, const struct fuse_entry_out *entry, u32 incarnation);
ssize_t efuse_linked_resolve(struct fuse_mount *fm, struct efuse_conn *ec,
			     const struct fuse_entry_out *entry, u32 incarnation);
ssize_t efuse_nodeid_resolve(struct fuse_mount *fm, struct efuse_conn *ec, u64 nodeid);

/* exchange.c */
void efuse_ids_get(struct fuse_args *args, struct efuse_file_ids *ids);
void efuse_ids_set(struct fuse_args *args, const struct efuse_file_ids *ids);
enum efuse_found efuse_ids_translate(struct efuse_conn *ec, struct efuse_file_ids *ids,
				     u32 incarnation, struct efuse_file_id *missing);
ssize_t efuse_exchange(struct mnt_idmap *idmap, struct fuse_mount *fm, struct efuse_conn *ec,
		       struct fuse_args *args, u32 incarnation);

/* reopen.c */
ssize_t efuse_handle_open(struct fuse_mount *fm, struct efuse_conn *ec, u64 number, u64 nodeid);
int efuse_handle_ready(struct efuse_conn *ec, struct fuse_mount *fm, const struct fuse_args *args);

/* translate.c */
ssize_t efuse_ids_ready(struct fuse_mount *fm, struct efuse_conn *ec, struct fuse_args *args,
			bool must, u32 *incarnation);
ssize_t efuse_ids_find(struct fuse_mount *fm, struct efuse_conn *ec, enum efuse_found found,
		       const struct efuse_file_id *missing);

/* replies.c */
ssize_t efuse_ask_daemon(struct mnt_idmap *idmap, struct fuse_mount *fm, struct fuse_args *args);

/* requeue.c */
void efuse_background_fail(struct efuse_conn *ec, struct fuse_req *req);
bool efuse_background_return(struct efuse_conn *ec, struct fuse_req *req);
bool efuse_closes_later(struct efuse_conn *ec, struct fuse_req *req);
void efuse_background_closes(struct efuse_conn *ec, struct efuse_handle *handle);

static inline bool efuse_closes(const struct fuse_args *args)
{
	return args->opcode == FUSE_RELEASE || args->opcode == FUSE_RELEASEDIR;
}

/* unresolved.c */
int efuse_unresolved_init(void);
void efuse_unresolved_exit(void);
void efuse_background_issued(struct efuse_conn *ec, const struct fuse_args *args);
void efuse_background_ended(struct efuse_conn *ec, struct fuse_args *args);
void efuse_unresolved_add(struct efuse_conn *ec);
void efuse_unresolved_start(struct efuse_conn *ec);
void efuse_unresolved_settle(struct efuse_conn *ec);

/* recovery.c */

/*
 * Are requests lost with their daemon? Otherwise such an error is from a device whose errors FUSE
 * does not check, such as virtio-fs.
 */
static inline bool efuse_loses(const struct efuse_conn *ec)
{
	return READ_ONCE(ec->recovery.seconds) ||
	       READ_ONCE(ec->recovery.daemon) != EFUSE_DAEMON_SERVING;
}

int efuse_recovery_wait(struct efuse_conn *ec, bool killable);
void efuse_recovery_translate(struct efuse_conn *ec);
int efuse_recovery_set(struct efuse_conn *ec, u32 seconds);
void efuse_recovery_add(struct efuse_conn *ec);
void efuse_recovery_settle(struct efuse_conn *ec);
void efuse_recovery_free(struct efuse_conn *ec);
int efuse_takeover_begin(struct efuse_conn *ec);
bool efuse_takeover_end(struct efuse_conn *ec, u32 takeover);
void efuse_takeover_accept(struct efuse_conn *ec, u32 takeover);

/* takeover.c */
long efuse_takeover(struct file *file, const struct efuse_takeover __user *argp);

/* repeat.c */
bool efuse_repeatable(const struct fuse_args *args);

/* settle.c */

enum efuse_settled {
	EFUSE_NOT_DONE,		/* was certainly not carried out, or is to be carried out again */
	EFUSE_DONE,		/* was certainly carried out */
	EFUSE_UNKNOWN,
	EFUSE_LOST_AGAIN,	/* the daemon that was asked has ended, too */
};

enum efuse_settled efuse_settle(struct efuse_req *req, ssize_t *ret);

/* again.c */
ssize_t efuse_send_again(struct efuse_req *req, struct mnt_idmap *idmap, ssize_t ret);

/* send.c */
void efuse_send(struct efuse_req *req, struct mnt_idmap *idmap);
int efuse_background_send(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			  gfp_t gfp_flags);
void efuse_replied(struct efuse_req *req, struct efuse_changes *ch);

#endif /* _FS_FUSE_EFUSE_TRANSPORT_I_H */
