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
void efuse_queues_open(struct efuse_conn *ec);
int efuse_queues_add(struct efuse_conn *ec);
void efuse_queues_free(struct efuse_conn *ec);
bool efuse_identity_ends(struct efuse_conn *ec, u64 nodeid);

/* recovery.c */
int efuse_recovery_wait(struct efuse_conn *ec);
int efuse_recovery_set(struct efuse_conn *ec, u32 seconds);
void efuse_recovery_add(struct efuse_conn *ec);
void efuse_recovery_settle(struct efuse_conn *ec);
int efuse_takeover_begin(struct efuse_conn *ec);
bool efuse_takeover_end(struct efuse_conn *ec, u32 takeover);
void efuse_takeover_accept(struct efuse_conn *ec, u32 takeover);

/* takeover.c */
long efuse_takeover(struct file *file, const struct efuse_takeover __user *argp);

/* repeat.c */
bool efuse_repeatable(const struct fuse_args *args);

/* settle.c */

enum efuse_settled {
	EFUSE_NOT_DONE,		/* was certainly not carried out */
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
