// SPDX-License-Identifier: GPL-2.0
/*
 * Per-CPU queues of requests, instead of FUSE's single queue. A sender locks the queue of its
 * own CPU. A reader takes from FUSE's queue first, which has only the replies to notifications and
 * all requests of CUSE. Then it takes from the queue of its own CPU or of its channel's CPU, then
 * from the queues of that NUMA node, then from any.
 *
 * Readers sleep on FUSE's queue, because poll(2) and SIGIO look there too. A sender takes the lock
 * of FUSE's queue only if a reader sleeps there.
 */
#include "transport_i.h"

#include <linux/list_sort.h>
#include <linux/topology.h>

#ifdef EFUSE_HAS_CHAN
#include "../../fuse_trace.h"
#endif

/*
 * One look out of this many begins at another queue, so that requests do not starve where no reader
 * looks first.
 */
#define EFUSE_ROTATION	4

static const struct fuse_iqueue_ops efuse_queue_ops;

static bool efuse_iqueue_filled(const struct fuse_iqueue *fiq)
{
	return !list_empty(&fiq->pending) || !list_empty(&fiq->interrupts) ||
	       READ_ONCE(fiq->forget_list_head.next);
}

/**
 * efuse_queue_filled - does a queue have something to read?
 * @queue: the queue
 *
 * Return: true if a request, an interrupt or a forget waits in it
 */
bool efuse_queue_filled(const struct efuse_queue *queue)
{
	return efuse_iqueue_filled(&queue->iq);
}

/**
 * efuse_queue_conn - get the connection of a queue
 * @fiq: one of eFuse's queues, or FUSE's own
 *
 * Return: the connection
 */
struct fuse_conn *efuse_queue_conn(struct fuse_iqueue *fiq)
{
	struct efuse_queue *queue = fiq->priv;

	return fiq->ops == &efuse_queue_ops ? queue->fc : efuse_iqueue_conn(fiq);
}

/* Most FORGETs that are looked at in one queue. */
#define EFUSE_MAX_FORGETS	4096

/* Does a FORGET of @nodeid wait in @fiq? See efuse_queues_forget(). Under the queue's lock. */
static bool efuse_queue_forgets(const struct fuse_iqueue *fiq, u64 nodeid, u16 bucket, u64 *others)
{
	const struct fuse_forget_link *forget = fiq->forget_list_head.next;
	u32 nr = 0;

	for (; forget; forget = forget->next) {
		u64 its = forget->efuse_nodeid;

		if (its == nodeid || ++nr > EFUSE_MAX_FORGETS)
			return true;
		*others += efuse_bucket_inode(its, EFUSE_KIND_IDENTITY) == bucket;
	}
	return false;
}

/**
 * efuse_queues_forget - does a FORGET of a nodeid wait to be read?
 * @ec: connection
 * @nodeid: the nodeid
 * @bucket: the nodeid's bucket of EFUSE_KIND_IDENTITY
 * @others: set to the number of waiting FORGETs of other nodeids in @bucket
 *
 * Context: process context.
 * Return: true if one waits, or if more FORGETs wait than are looked at; @others is not complete
 *         then
 */
static bool efuse_queues_forget(struct efuse_conn *ec, u64 nodeid, u16 bucket, u64 *others)
{
	struct fuse_iqueue *own = &efuse_chan(ec->fc)->iq;
	bool found;
	int cpu;

	*others = 0;
	spin_lock(&own->lock);
	found = efuse_queue_forgets(own, nodeid, bucket, others);
	spin_unlock(&own->lock);
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;

		if (found)
			break;
		spin_lock(&fiq->lock);
		found = efuse_queue_forgets(fiq, nodeid, bucket, others);
		spin_unlock(&fiq->lock);
	}
	return found;
}

/**
 * efuse_identity_ends - is there a FORGET of a nodeid that the daemon has not read?
 * @ec: connection
 * @nodeid: the nodeid
 *
 * Context: process context.
 * Return: false only if there is none; true also if that cannot be told.
 */
bool efuse_identity_ends(struct efuse_conn *ec, u64 nodeid)
{
	u16 bucket = efuse_bucket_identity(nodeid);
	u64 in_flight = efuse_epoch_in_flight(ec, bucket), others;

	if (!in_flight)
		return false;
	return efuse_queues_forget(ec, nodeid, bucket, &others) || in_flight > others;
}

/* Wakes a sleeping worker of a channel. False: none sleeps. */
static bool efuse_channel_wake(struct efuse_channel *channel)
{
	/* Ordered by the barrier in efuse_queue_wake(). */
	if (!waitqueue_active(&channel->waitq))
		return false;
	wake_up(&channel->waitq);
	return true;
}

/* Wakes a sleeping worker of any channel of @cpus, for what is in @queue. False: none sleeps. */
static bool efuse_channels_wake(struct efuse_conn *ec, const struct cpumask *cpus,
				const struct efuse_queue *queue)
{
	struct efuse_channel *channel;
	int other;

	for_each_cpu_wrap(other, cpus, queue->cpu) {
		channel = rcu_dereference(ec->queues[other]->channel);
		if (!channel || !efuse_channel_wake(channel))
			continue;
		if (channel->queue != queue)
			efuse_count_channel(ec, EFUSE_OTHERS_WOKEN);
		return true;
	}
	return false;
}

/*
 * Makes sure that a worker looks at @queue: one of its own channel, or if none is free one of
 * another channel. False: no free worker was found.
 */
static bool efuse_queue_wake_worker(const struct efuse_queue *queue)
{
	struct efuse_conn *ec = efuse_conn_get(queue->fc);
	struct efuse_channel *channel = rcu_dereference(queue->channel);
	int node;

	/* A queue that is its own home without a channel: the connection has no channels. */
	if (!channel && READ_ONCE(queue->home) == queue)
		return false;
	if (channel) {
		if (atomic_read(&channel->nr_replying) || efuse_poll_any(channel) ||
		    efuse_channel_wake(channel))
			return true;
		/*
		 * No other worker may take it. The first worker of this channel that is done will.
		 */
		if (READ_ONCE(ec->policy) == EFUSE_POLICY_OWN)
			return false;
	}
	if (atomic_read(&ec->nodes[queue->node]->waiting) &&
	    efuse_channels_wake(ec, cpumask_of_node(queue->node), queue))
		return true;
	for_each_node(node)
		if (atomic_read(&ec->nodes[node]->waiting))
			return efuse_channels_wake(ec, cpu_possible_mask, queue);
	return false;
}

/**
 * efuse_queue_wake - make sure that a reader takes what was put into a queue
 * @queue: the queue
 *
 * Wakes a reader unless one is polling, or is about to poll.
 *
 * Context: any, without locks.
 */
void efuse_queue_wake(const struct efuse_queue *queue)
{
	struct fuse_conn *fc = queue->fc;
	struct fuse_iqueue *fiq = &efuse_chan(fc)->iq;
	bool woken;

	/* Full barrier: a reader that is not seen to sleep or to poll sees what was put there. */
	smp_mb();
	rcu_read_lock();
	woken = efuse_queue_wake_worker(queue);
	rcu_read_unlock();
	if (woken)
		return;
	/* Ordered by the barrier above. */
	if (waitqueue_active(&fiq->waitq)) {
		/* With the policy "own" some readers may not take it, so wake all. */
		if (READ_ONCE(efuse_conn_get(fc)->policy) == EFUSE_POLICY_OWN)
			wake_up_all(&fiq->waitq);
		else
			wake_up(&fiq->waitq);
	}
	kill_fasync(&fiq->fasync, SIGIO, POLL_IN);
}

/**
 * efuse_queues_wake_all - have all sleeping readers look again
 * @fc: the connection
 */
void efuse_queues_wake_all(struct fuse_conn *fc)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	struct efuse_channel *channel;
	int cpu;

	rcu_read_lock();
	for_each_possible_cpu(cpu) {
		channel = rcu_dereference(ec->queues[cpu]->channel);
		if (channel)
			wake_up_all(&channel->waitq);
	}
	rcu_read_unlock();
	wake_up_all(&efuse_chan(fc)->iq.waitq);
}

/* A FORGET that no daemon reads. */
static void efuse_forget_drop(struct efuse_conn *ec, struct fuse_forget_link *forget)
{
	if (forget->efuse_changes)
		efuse_epoch_leave(ec, efuse_bucket_identity(forget->efuse_nodeid));
	kfree(forget);
}

/* Was a request or FORGET translated for a daemon that has ended? Under the queue's lock. */
static bool efuse_queue_outdated(const struct efuse_queue *queue, u32 serial)
{
	return serial && serial != queue->serial;
}

static void efuse_queue_send_forget(struct fuse_iqueue *fiq, struct fuse_forget_link *forget)
{
	struct efuse_queue *queue = fiq->priv;

	spin_lock(&fiq->lock);
	/* A successor is asked for names before it serves, and hears when they are forgotten. */
	if (!fiq->connected || efuse_queue_outdated(queue, forget->efuse_serial) ||
	    (queue->held && !forget->efuse_serial)) {
		spin_unlock(&fiq->lock);
		efuse_forget_drop(efuse_conn_get(queue->fc), forget);
		return;
	}
	fiq->forget_list_tail->next = forget;
	fiq->forget_list_tail = forget;
	spin_unlock(&fiq->lock);
	efuse_queue_wake(queue);
}

static void efuse_queue_send_interrupt(struct fuse_iqueue *fiq, struct fuse_req *req)
{
	struct efuse_queue *queue = fiq->priv;
	bool queued = false;

	spin_lock(&fiq->lock);
	/* A request that is sent a second time must not be interrupted before it was read. */
	if (list_empty(&req->intr_entry) && test_bit(FR_SENT, &req->flags)) {
		list_add_tail(&req->intr_entry, &fiq->interrupts);
		/* Pairs with fuse_request_end(): it sees the entry, or FR_FINISHED is seen here. */
		smp_mb();
		queued = !test_bit(FR_FINISHED, &req->flags);
		if (!queued)
			list_del_init(&req->intr_entry);
	}
	spin_unlock(&fiq->lock);
	if (queued)
		efuse_queue_wake(queue);
}

static void efuse_queue_send_req(struct fuse_iqueue *fiq, struct fuse_req *req)
{
	struct efuse_queue *queue = fiq->priv;

	spin_lock(&fiq->lock);
	/* For the background, the lock of its queue says whether a daemon serves. */
	if (!fiq->connected || efuse_queue_outdated(queue, req->args->efuse.serial) ||
	    (queue->held && !test_bit(FR_BACKGROUND, &req->flags) && !req->args->efuse.early)) {
		req->out.h.error = fiq->connected ? EFUSE_LOST_UNREAD : -ENOTCONN;
		spin_unlock(&fiq->lock);
		clear_bit(FR_PENDING, &req->flags);
		fuse_request_end(req);
		return;
	}
	fiq->reqctr += efuse_unique_step();
	req->in.h.unique = fiq->reqctr;
#ifdef EFUSE_HAS_CHAN
	/* The function that numbers a request has to trace that it is sent. */
	trace_fuse_request_send(req);
#endif
	queue->sent++;
	queue->depth++;
	list_add_tail(&req->list, &fiq->pending);
	spin_unlock(&fiq->lock);
	/* @req may be freed by now. */
	efuse_queue_wake(queue);
}

static const struct fuse_iqueue_ops efuse_queue_ops = {
	.send_forget	= efuse_queue_send_forget,
	.send_interrupt	= efuse_queue_send_interrupt,
	.send_req	= efuse_queue_send_req,
};

/**
 * efuse_unique_step - the distance between two consecutive request numbers of one queue
 *
 * Each queue of a connection has a counter of its own with a start of its own, see
 * efuse_queues_add(), so that no number is used twice. FUSE's own queue starts at 0.
 *
 * Return: a multiple of FUSE's own step
 */
u64 efuse_unique_step(void)
{
	return EFUSE_UNIQUE_STEP * (u64)(nr_cpu_ids + 1);
}

/* May a reader with @channel (NULL: without one) take what waits in @queue? */
static bool efuse_queue_allowed(const struct efuse_queue *queue,
				const struct efuse_channel *channel)
{
	const struct efuse_channel *its;

	if (!channel || READ_ONCE(channel->ec->policy) != EFUSE_POLICY_OWN)
		return true;
	its = rcu_access_pointer(queue->channel);
	return !its || its == channel;
}

/*
 * The first queue of @node, searched from @cpu on, that has something for the reader of @fud. If
 * there is none, or if @node is NUMA_NO_NODE: the first such queue of any node. NULL: there is none
 * at all.
 */
static struct fuse_iqueue *efuse_queue_search(struct fuse_dev *fud, unsigned int cpu, int node)
{
	/* Pairs with efuse_channel_make(). */
	const struct efuse_channel *channel = smp_load_acquire(&fud->channel);
	struct efuse_conn *ec = efuse_conn_get(efuse_dev_conn(fud));
	struct fuse_iqueue *elsewhere = NULL;
	struct efuse_queue *queue;
	unsigned int left;

	for (left = nr_cpu_ids; left; left--, cpu++) {
		if (cpu == nr_cpu_ids)
			cpu = 0;
		queue = ec->queues[cpu];
		if (!queue || !efuse_queue_filled(queue) || !efuse_queue_allowed(queue, channel))
			continue;
		if (node == NUMA_NO_NODE || queue->node == node)
			return &queue->iq;
		if (!elsewhere)
			elsewhere = &queue->iq;
	}
	return elsewhere;
}

static struct fuse_iqueue *efuse_dev_queue(const struct fuse_dev *fud)
{
	return &efuse_chan(efuse_dev_conn(fud))->iq;
}

/* The queue that the reader of @fud looks into first. NULL: there is only FUSE's own. */
static struct efuse_queue *efuse_queue_own(struct fuse_dev *fud)
{
	/* Pairs with efuse_channel_make(). */
	const struct efuse_channel *channel = smp_load_acquire(&fud->channel);
	struct efuse_conn *ec = efuse_conn_get(efuse_dev_conn(fud));

	if (channel)
		return channel->queue;
	return ec ? ec->queues[raw_smp_processor_id()] : NULL;
}

/**
 * efuse_queues_filled - is there something for a reader, or has the connection ended?
 * @fud: the reader's descriptor
 *
 * Context: any; a reader that is to be woken is on the wait queue already.
 * Return: true if so
 */
bool efuse_queues_filled(struct fuse_dev *fud)
{
	const struct efuse_queue *own = efuse_queue_own(fud);
	const struct fuse_iqueue *fiq = efuse_dev_queue(fud);

	/* Pairs with efuse_queue_wake(): it sees the waiting reader, or this sees what was sent. */
	smp_mb();
	return !READ_ONCE(fiq->connected) || efuse_dev_detached(fud) || efuse_iqueue_filled(fiq) ||
	       (own && efuse_queue_search(fud, own->cpu, NUMA_NO_NODE));
}

/*
 * The queue that the reader of @fud is to take something from: NULL if none has anything, FUSE's
 * own if the connection ended. The queue may be empty by the time that the caller has locked it.
 */
static struct fuse_iqueue *efuse_queue_find(struct fuse_dev *fud)
{
	struct efuse_queue *own = efuse_queue_own(fud);
	struct fuse_iqueue *fiq = efuse_dev_queue(fud);
	u32 looks;

	if (!READ_ONCE(fiq->connected) || efuse_iqueue_filled(fiq))
		return fiq;
	if (!own)
		return NULL;
	if (!efuse_queue_filled(own))
		return efuse_queue_search(fud, own->cpu, own->node);
	looks = READ_ONCE(own->looks) + 1;
	WRITE_ONCE(own->looks, looks);
	if (looks % EFUSE_ROTATION)
		return &own->iq;
	return efuse_queue_search(fud, looks / EFUSE_ROTATION % nr_cpu_ids, NUMA_NO_NODE);
}

/**
 * efuse_queue_taken - account for a request that a reader took out of a queue
 * @fud: the reader's descriptor
 * @fiq: the queue
 *
 * Context: under the queue's lock.
 */
void efuse_queue_taken(struct fuse_dev *fud, struct fuse_iqueue *fiq)
{
	struct efuse_queue *queue = fiq->priv;
	const struct efuse_channel *channel = fud->channel;

	/* FUSE's own queue belongs to no CPU. */
	if (fiq == efuse_dev_queue(fud))
		return;
	queue->depth--;
	if (queue->cpu != (channel ? channel->queue->cpu : raw_smp_processor_id()))
		queue->stolen++;
}

/**
 * efuse_queue_withdrawn - account for a request that its killed caller took out of a queue
 * @fiq: the queue
 *
 * Context: under the queue's lock.
 */
void efuse_queue_withdrawn(struct fuse_iqueue *fiq)
{
	struct efuse_queue *queue = fiq->priv;

	/* FUSE's own queue has no struct efuse_queue. */
	if (queue)
		queue->depth--;
}

/**
 * efuse_queue_wait - wait until there is something to read, or the connection ended
 * @fud: the reader's descriptor
 * @file: the reader's open file; NULL if the caller must not wait here
 * @found: set to the queue to take from; it may be empty by the time that the caller has locked it
 *
 * Return: 0; -ERESTARTSYS after a signal; -EAGAIN if nothing is there and the caller must not wait;
 *         -ENODEV if the descriptor is a refused successor's
 */
int efuse_queue_wait(struct fuse_dev *fud, const struct file *file, struct fuse_iqueue **found)
{
	int err = 0;

	*found = NULL;
	if (!file || file->f_flags & O_NONBLOCK) {
		*found = efuse_queue_find(fud);
		err = *found ? 0 : -EAGAIN;
	} else {
		err = wait_event_interruptible_exclusive(efuse_dev_queue(fud)->waitq,
							 efuse_dev_detached(fud) ||
							 (*found = efuse_queue_find(fud)));
	}
	return efuse_dev_detached(fud) ? -ENODEV : err;
}

static int efuse_request_compare(void *priv, const struct list_head *a, const struct list_head *b)
{
	u64 first = list_entry(a, struct fuse_req, list)->in.h.unique & ~FUSE_UNIQUE_RESEND;
	u64 second = list_entry(b, struct fuse_req, list)->in.h.unique & ~FUSE_UNIQUE_RESEND;

	return first > second;
}

/**
 * efuse_queues_resend - put requests that were read back into their queues
 * @requests: the requests, in any order. On return the list holds the requests of FUSE's own queue,
 *         and all requests if the connection has ended
 */
void efuse_queues_resend(struct list_head *requests)
{
	struct fuse_req *req, *next;

	list_sort(NULL, requests, efuse_request_compare);
	/*
	 * Newest first, each to the head of its queue: all of them were sent before the requests
	 * that are there.
	 */
	list_for_each_entry_safe_reverse(req, next, requests, list) {
		struct fuse_iqueue *fiq = req->iq;

		if (fiq == &efuse_chan(efuse_sent_on(req))->iq)
			continue;
		spin_lock(&fiq->lock);
		if (fiq->connected) {
			set_bit(FR_PENDING, &req->flags);
			req->in.h.unique |= FUSE_UNIQUE_RESEND;
			if (test_bit(FR_INTERRUPTED, &req->flags))
				list_del_init(&req->intr_entry);
			list_move(&req->list, &fiq->pending);
			((struct efuse_queue *)fiq->priv)->depth++;
		}
		spin_unlock(&fiq->lock);
		efuse_queue_wake(fiq->priv);
	}
}

#ifdef EFUSE_HAS_CHAN
/**
 * efuse_queues_expired - has a queued request waited longer than the daemon may take?
 * @fch: channel of a connection that has a timeout
 *
 * Return: true if so
 */
bool efuse_queues_expired(struct fuse_chan *fch)
{
	struct efuse_conn *ec = efuse_conn_get(fch->conn);
	bool expired = false;
	int cpu;

	if (!ec)
		return false;
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;

		spin_lock(&fiq->lock);
		expired |= fuse_request_expired(fch, &fiq->pending);
		spin_unlock(&fiq->lock);
	}
	return expired;
}
#endif

static void efuse_forgets_free(struct fuse_iqueue *fiq)
{
	struct fuse_forget_link *forget = fiq->forget_list_head.next;

	while (forget) {
		struct fuse_forget_link *next = forget->next;

		kfree(forget);
		forget = next;
	}
	fiq->forget_list_head.next = NULL;
	fiq->forget_list_tail = &fiq->forget_list_head;
}

/*
 * Takes all that no reader took out of a queue: requests to @requests, and FORGETs away. Under the
 * queue's lock.
 */
static void efuse_queue_empty(struct efuse_conn *ec, struct fuse_iqueue *fiq,
			      struct list_head *requests)
{
	struct fuse_forget_link *forget;
	struct fuse_req *req;

	list_for_each_entry(req, &fiq->pending, list)
		clear_bit(FR_PENDING, &req->flags);
	list_splice_tail_init(&fiq->pending, requests);
	while ((forget = fiq->forget_list_head.next)) {
		fiq->forget_list_head.next = forget->next;
		efuse_forget_drop(ec, forget);
	}
	fiq->forget_list_tail = &fiq->forget_list_head;
}

/**
 * efuse_queues_hold - empty all queues, and let nothing in whose sender can wait
 * @ec: connection, whose daemon has ended
 * @requests: the requests that no reader took are added here
 *
 * Context: under the lock of the background queue.
 */
void efuse_queues_hold(struct efuse_conn *ec, struct list_head *requests)
{
	struct fuse_iqueue *own = &efuse_chan(ec->fc)->iq;
	int cpu;

	lockdep_assert_held(&efuse_chan(ec->fc)->bg_lock);
	spin_lock(&own->lock);
	efuse_queue_empty(ec, own, requests);
	spin_unlock(&own->lock);
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;

		spin_lock(&fiq->lock);
		ec->queues[cpu]->held = true;
		ec->queues[cpu]->serial = 0;
		efuse_queue_empty(ec, fiq, requests);
		ec->queues[cpu]->depth = 0;
		spin_unlock(&fiq->lock);
	}
}

/**
 * efuse_queues_admit - let in what was translated for a successor
 * @ec: connection, whose successor has answered INIT
 *
 * Requests whose sender can wait are still held, except efuse_args.early.
 *
 * Context: under the lock of the background queue.
 */
void efuse_queues_admit(struct efuse_conn *ec)
{
	int cpu;

	lockdep_assert_held(&efuse_chan(ec->fc)->bg_lock);
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;

		spin_lock(&fiq->lock);
		ec->queues[cpu]->serial = ec->recovery.incarnation + 1;
		spin_unlock(&fiq->lock);
	}
}

/**
 * efuse_queues_open - undo efuse_queues_hold(): the next daemon serves
 * @ec: connection
 *
 * Context: under the lock of the background queue.
 */
void efuse_queues_open(struct efuse_conn *ec)
{
	int cpu;

	lockdep_assert_held(&efuse_chan(ec->fc)->bg_lock);
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;

		spin_lock(&fiq->lock);
		ec->queues[cpu]->held = false;
		spin_unlock(&fiq->lock);
	}
}

/**
 * efuse_queues_abort - close the queues of a connection that ends
 * @fc: the connection; FUSE's own queue is closed already
 * @to_end: the requests that no reader took are added here
 *
 * Wakes those who poll the attributes "connected" and "daemon", and callers that wait for a daemon.
 *
 * Context: under the lock of the connection's descriptors.
 */
void efuse_queues_abort(struct fuse_conn *fc, struct list_head *to_end)
{
	struct efuse_conn *ec = efuse_conn_get(fc);
	int cpu;

	if (!ec)
		return;
	for_each_possible_cpu(cpu) {
		struct fuse_iqueue *fiq = &ec->queues[cpu]->iq;
		struct fuse_req *req;

		spin_lock(&fiq->lock);
		fiq->connected = 0;
		list_for_each_entry(req, &fiq->pending, list)
			clear_bit(FR_PENDING, &req->flags);
		list_splice_tail_init(&fiq->pending, to_end);
		ec->queues[cpu]->depth = 0;
		efuse_forgets_free(fiq);
		spin_unlock(&fiq->lock);
	}
	efuse_queues_wake_all(fc);
	wake_up_all(&ec->recovery.waitq);
	sysfs_notify_dirent(ec->connected_node);
	sysfs_notify_dirent(ec->recovery.node);
}

static struct efuse_queue *efuse_queue_alloc(struct fuse_conn *fc, int cpu)
{
	struct efuse_queue *queue = kzalloc_node(sizeof(*queue), GFP_KERNEL, cpu_to_node(cpu));
	struct fuse_iqueue *fiq;

	if (!queue)
		return NULL;
	queue->fc = fc;
	queue->cpu = cpu;
	queue->node = max(cpu_to_node(cpu), 0);
	queue->home = queue;
	queue->serial = 1;
	queue->spin.credit = EFUSE_MAX_SPIN_CREDIT;
	fiq = &queue->iq;
	spin_lock_init(&fiq->lock);
	init_waitqueue_head(&fiq->waitq);
	INIT_LIST_HEAD(&fiq->pending);
	INIT_LIST_HEAD(&fiq->interrupts);
	fiq->forget_list_tail = &fiq->forget_list_head;
	fiq->reqctr = EFUSE_UNIQUE_STEP * (u64)(cpu + 1);
	fiq->connected = 1;
	fiq->ops = &efuse_queue_ops;
	fiq->priv = queue;
	return queue;
}

static int efuse_nodes_add(struct efuse_conn *ec)
{
	int node;

	ec->nodes = kcalloc(nr_node_ids, sizeof(*ec->nodes), GFP_KERNEL);
	if (!ec->nodes)
		return -ENOMEM;
	for_each_node(node) {
		ec->nodes[node] = kzalloc_node(sizeof(*ec->nodes[node]), GFP_KERNEL, node);
		if (!ec->nodes[node])
			return -ENOMEM;
	}
	return 0;
}

/**
 * efuse_queues_add - allocate the queues of a connection
 * @ec: connection; call efuse_queues_free() for it also after an error
 *
 * Context: process context, may sleep.
 * Return: 0 or -ENOMEM
 */
int efuse_queues_add(struct efuse_conn *ec)
{
	int cpu;

	ec->queues = kcalloc(nr_cpu_ids, sizeof(*ec->queues), GFP_KERNEL);
	if (!ec->queues)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		ec->queues[cpu] = efuse_queue_alloc(ec->fc, cpu);
		if (!ec->queues[cpu])
			return -ENOMEM;
	}
	return efuse_nodes_add(ec);
}

/**
 * efuse_queues_free - free the queues of a connection after the last reference to it is gone
 * @ec: connection
 */
void efuse_queues_free(struct efuse_conn *ec)
{
	int i;

	if (ec->nodes)
		for_each_node(i)
			kfree(ec->nodes[i]);
	kfree(ec->nodes);
	if (ec->queues)
		for_each_possible_cpu(i)
			kfree(ec->queues[i]);
	kfree(ec->queues);
}
