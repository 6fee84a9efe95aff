// SPDX-License-Identifier: GPL-2.0
/*
 * A queue of requests for each possible CPU in the place of FUSE's one. Who sends locks
 * the queue of its own CPU. Who reads takes from the queue of its own CPU, then from
 * FUSE's (which has replies to notifications, and all of CUSE's), then from those of its
 * node, then from any.
 *
 * Readers sleep on FUSE's queue, since that is where poll(2) and SIGIO look too. A
 * sender takes the lock of it only if somebody sleeps there.
 */
#include "efuse_i.h"

#include <linux/list_sort.h>
#include <linux/topology.h>

#ifdef EFUSE_HAS_CHAN
#include "../fuse_trace.h"
#endif

/* Of so many looks one begins at another queue: nothing waits for ever where nobody reads. */
#define EFUSE_ROTATION	4

static const struct fuse_iqueue_ops efuse_queue_ops;

static bool efuse_iqueue_filled(const struct fuse_iqueue *fiq)
{
	return !list_empty(&fiq->pending) || !list_empty(&fiq->interrupts) ||
	       READ_ONCE(fiq->forget_list_head.next);
}

/**
 * efuse_queue_filled - has a queue something to read?
 * @queue: the queue
 */
bool efuse_queue_filled(const struct efuse_queue *queue)
{
	return efuse_iqueue_filled(&queue->iq);
}

/**
 * efuse_queue_conn - the connection of a queue
 * @fiq: the queue, one of eFuse's or FUSE's own
 */
struct fuse_conn *efuse_queue_conn(struct fuse_iqueue *fiq)
{
	struct efuse_queue *queue = fiq->priv;

	return fiq->ops == &efuse_queue_ops ? queue->fc : efuse_iqueue_conn(fiq);
}

/* So many FORGETs of a queue are looked at. */
#define EFUSE_MAX_FORGETS	4096

/* Under the queue's lock; see efuse_queues_forget(). */
static bool efuse_queue_forgets(const struct fuse_iqueue *fiq, u64 nodeid, u16 bucket, u64 *others)
{
	const struct fuse_forget_link *forget = fiq->forget_list_head.next;
	u32 nr = 0;

	for (; forget; forget = forget->next) {
		u64 its = forget->forget_one.nodeid;

		if (its == nodeid || ++nr > EFUSE_MAX_FORGETS)
			return true;
		*others += efuse_bucket_inode(its, EFUSE_KIND_LIFE) == bucket;
	}
	return false;
}

/**
 * efuse_queues_forget - does a FORGET of a nodeid wait to be read?
 * @ec: connection
 * @nodeid: which
 * @bucket: the bucket of its life
 * @others: gets how many FORGETs of other nodeids of that bucket wait
 *
 * Context: process context.
 * Return: true also where more wait than are looked at
 */
bool efuse_queues_forget(struct efuse_conn *ec, u64 nodeid, u16 bucket, u64 *others)
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

/* Wake a worker of a channel that sleeps; false: none does. */
static bool efuse_channel_wake(struct efuse_channel *channel)
{
	/* After the barrier in efuse_queue_wake(). */
	if (!waitqueue_active(&channel->waitq))
		return false;
	wake_up(&channel->waitq);
	return true;
}

/* Likewise of the channels of @cpus, for what is in @queue. */
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

/* A worker of @queue's channel, or if none is free one of another channel, shall look. */
static bool efuse_queue_wake_worker(const struct efuse_queue *queue)
{
	struct efuse_conn *ec = efuse_conn_get(queue->fc);
	struct efuse_channel *channel = rcu_dereference(queue->channel);
	int node;

	/* Without a home there is no channel at all. */
	if (!channel && READ_ONCE(queue->home) == queue)
		return false;
	if (channel) {
		if (atomic_read(&channel->coming) || efuse_poll_any(channel) ||
		    efuse_channel_wake(channel))
			return true;
		/* Others may not take it: the first worker who is done here will. */
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
 * efuse_queue_wake - something is in a queue: who sleeps, looks or is about to shall take it
 * @queue: the queue
 *
 * Context: any, without locks.
 */
void efuse_queue_wake(const struct efuse_queue *queue)
{
	struct fuse_conn *fc = queue->fc;
	struct fuse_iqueue *fiq = &efuse_chan(fc)->iq;
	bool woken;

	/* What was put there is seen by who is not seen to sleep or to look. */
	smp_mb();
	rcu_read_lock();
	woken = efuse_queue_wake_worker(queue);
	rcu_read_unlock();
	if (woken)
		return;
	/* After the barrier above. */
	if (waitqueue_active(&fiq->waitq)) {
		/* With "own" not every one of them may take it. */
		if (READ_ONCE(efuse_conn_get(fc)->policy) == EFUSE_POLICY_OWN)
			wake_up_all(&fiq->waitq);
		else
			wake_up(&fiq->waitq);
	}
	kill_fasync(&fiq->fasync, SIGIO, POLL_IN);
}

/**
 * efuse_queues_wake_all - have everybody who sleeps look again
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

static void efuse_queue_send_forget(struct fuse_iqueue *fiq, struct fuse_forget_link *forget)
{
	struct efuse_queue *queue = fiq->priv;

	spin_lock(&fiq->lock);
	if (!fiq->connected) {
		spin_unlock(&fiq->lock);
		kfree(forget);
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
	/* A request that is sent a second time is not to be interrupted before it was read. */
	if (list_empty(&req->intr_entry) && test_bit(FR_SENT, &req->flags)) {
		list_add_tail(&req->intr_entry, &fiq->interrupts);
		/* Pairs with fuse_request_end(): either it sees the entry, or this its bit. */
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
	if (!fiq->connected) {
		spin_unlock(&fiq->lock);
		req->out.h.error = -ENOTCONN;
		clear_bit(FR_PENDING, &req->flags);
		fuse_request_end(req);
		return;
	}
	fiq->reqctr += efuse_unique_step();
	req->in.h.unique = fiq->reqctr;
#ifdef EFUSE_HAS_CHAN
	/* Who numbers a request says that it is sent. */
	trace_fuse_request_send(req);
#endif
	queue->sent++;
	queue->depth++;
	list_add_tail(&req->list, &fiq->pending);
	spin_unlock(&fiq->lock);
	/* @req may be gone by now. */
	efuse_queue_wake(queue);
}

static const struct fuse_iqueue_ops efuse_queue_ops = {
	.send_forget	= efuse_queue_send_forget,
	.send_interrupt	= efuse_queue_send_interrupt,
	.send_req	= efuse_queue_send_req,
};

/**
 * efuse_unique_step - the distance of two request numbers of one queue
 *
 * Each queue of a connection counts for itself, from another start: see
 * efuse_queues_add(). FUSE's own starts at 0.
 *
 * Return: a multiple of FUSE's own step
 */
u64 efuse_unique_step(void)
{
	return EFUSE_UNIQUE_STEP * (u64)(nr_cpu_ids + 1);
}

/* May a reader with @channel (or NULL) take what waits in @queue? */
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
 * From @cpu on, the first queue of @node that has something for the reader of @fud; if there
 * is none, or @node is NUMA_NO_NODE, the first of any.
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

/* The queue that the reader of @fud looks into first; NULL: there is but FUSE's. */
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
 * Context: any; whoever shall be woken waits already.
 */
bool efuse_queues_filled(struct fuse_dev *fud)
{
	const struct efuse_queue *own = efuse_queue_own(fud);
	const struct fuse_iqueue *fiq = efuse_dev_queue(fud);

	/* Pairs with efuse_queue_wake(): either it sees who waits, or this what was sent. */
	smp_mb();
	return !READ_ONCE(fiq->connected) || efuse_iqueue_filled(fiq) ||
	       (own && efuse_queue_search(fud, own->cpu, NUMA_NO_NODE));
}

/*
 * Where the reader of @fud is to take something: a queue that has it, NULL if none has;
 * FUSE's own if the connection ended. What is there may be gone when the caller has locked it.
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
 * efuse_queue_taken - a reader has taken a request out of a queue
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
 * efuse_queue_withdrawn - a caller that was killed takes its request back
 * @fiq: the queue where it was
 *
 * Context: under the queue's lock.
 */
void efuse_queue_withdrawn(struct fuse_iqueue *fiq)
{
	struct efuse_queue *queue = fiq->priv;

	/* FUSE's own queue has none. */
	if (queue)
		queue->depth--;
}

/**
 * efuse_queue_wait - wait until there is something to read, or the connection ended
 * @fud: the reader's descriptor
 * @file: its file, or NULL for who does not wait here
 * @found: gets the queue to look at; what is there may be gone when the caller has locked it
 *
 * Return: 0, -ERESTARTSYS for a signal, or -EAGAIN if the caller is not to wait
 */
int efuse_queue_wait(struct fuse_dev *fud, const struct file *file, struct fuse_iqueue **found)
{
	if (!file || file->f_flags & O_NONBLOCK) {
		*found = efuse_queue_find(fud);
		return *found ? 0 : -EAGAIN;
	}
	return wait_event_interruptible_exclusive(efuse_dev_queue(fud)->waitq,
						  (*found = efuse_queue_find(fud)));
}

static int efuse_request_compare(void *priv, const struct list_head *a, const struct list_head *b)
{
	u64 first = list_entry(a, struct fuse_req, list)->in.h.unique & ~FUSE_UNIQUE_RESEND;
	u64 second = list_entry(b, struct fuse_req, list)->in.h.unique & ~FUSE_UNIQUE_RESEND;

	return first > second;
}

/**
 * efuse_queues_resend - put requests that were read into the queues that they came from
 * @requests: in any order; what stays in it came from FUSE's queue, or the connection ended
 */
void efuse_queues_resend(struct list_head *requests)
{
	struct fuse_req *req, *next;

	list_sort(NULL, requests, efuse_request_compare);
	/* From the newest on, each before the others: these were sent before what is there. */
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
 * efuse_queues_expired - has a request waited in a queue for longer than the daemon may take?
 * @fch: of a connection that has a time-out
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

/**
 * efuse_queues_abort - the connection ends: nobody reads any more
 * @fc: the connection; FUSE's queue is closed already
 * @to_end: gets the requests that nobody has read
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
	queue->luck.credit = EFUSE_LUCK;
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
 * efuse_queues_add - make the queues of a connection
 * @ec: connection; efuse_queues_free() also after an error
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
 * efuse_queues_free - the last reference to the connection is gone
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
