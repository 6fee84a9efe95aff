// SPDX-License-Identifier: GPL-2.0
/*
 * Channels: memory that the kernel and a daemon share, for the requests of one CPU.
 *
 * A channel is a descriptor of /dev/efuse with slots. EFUSE_IOC_NEXT delivers the reply in one slot
 * and puts the next request into another. That is what write(2) and read(2) do, in one call and
 * without looking up the daemon's pages. The shared memory holds messages only. Slot numbers and
 * lengths are arguments of the call. The code behind write(2) reads each message, once.
 */
#include "transport_i.h"

#include <linux/bvec.h>
#include <linux/mm.h>
#include <linux/sched/clock.h>

/* Most bytes of shared memory per channel. */
#define EFUSE_MAX_CHANNEL	SZ_64M

/* Longest service time that counts, in ns; longer ones count as this. */
#define EFUSE_MAX_SERVICE	NSEC_PER_SEC

enum efuse_slot_state {
	EFUSE_SLOT_FREE,
	EFUSE_SLOT_KERNEL,	/* being filled or emptied by the kernel */
	EFUSE_SLOT_DAEMON,	/* holds a request that the daemon works on */
};

/* Adds a service time to the channel's moving mean; the new value has a weight of 1/8. */
static void efuse_service_count(struct efuse_channel *channel, u64 ns)
{
	u32 mean = channel->service_ns;

	ns = min_t(u64, ns, EFUSE_MAX_SERVICE);
	WRITE_ONCE(channel->service_ns, mean ? mean - mean / 8 + ns / 8 : ns);
}

/* The first free slot, or channel->slots if all are in use. */
static u32 efuse_slot_find(const struct efuse_channel *channel)
{
	u32 i;

	for (i = 0; i < channel->slots; i++)
		if (READ_ONCE(channel->state[i]) == EFUSE_SLOT_FREE)
			break;
	return i;
}

/* Is a slot free? If not, the next one to become free wakes all workers. */
static bool efuse_slots_free(struct efuse_channel *channel)
{
	bool free;

	if (efuse_slot_find(channel) < channel->slots)
		return true;
	spin_lock(&channel->lock);
	free = efuse_slot_find(channel) < channel->slots;
	if (!free)
		channel->full = true;
	spin_unlock(&channel->lock);
	return free;
}

/* Claims a free slot for the kernel. Returns it, or -EAGAIN. */
static int efuse_slot_claim(struct efuse_channel *channel)
{
	u32 slot;

	spin_lock(&channel->lock);
	slot = efuse_slot_find(channel);
	if (slot < channel->slots)
		channel->state[slot] = EFUSE_SLOT_KERNEL;
	spin_unlock(&channel->lock);
	return slot < channel->slots ? slot : -EAGAIN;
}

/* Takes a slot back from the daemon. False if the daemon does not have it. */
static bool efuse_slot_reclaim(struct efuse_channel *channel, u32 slot)
{
	bool had = false;

	spin_lock(&channel->lock);
	if (channel->state[slot] == EFUSE_SLOT_DAEMON) {
		channel->state[slot] = EFUSE_SLOT_KERNEL;
		WRITE_ONCE(channel->nr_in_flight, channel->nr_in_flight - 1);
		efuse_service_count(channel, local_clock() - channel->begun[slot]);
		had = true;
	}
	spin_unlock(&channel->lock);
	return had;
}

static void efuse_slot_set(struct efuse_channel *channel, u32 slot, enum efuse_slot_state state)
{
	bool wanted = false;

	spin_lock(&channel->lock);
	channel->state[slot] = state;
	if (state == EFUSE_SLOT_DAEMON) {
		channel->begun[slot] = local_clock();
		WRITE_ONCE(channel->nr_in_flight, channel->nr_in_flight + 1);
	} else if (state == EFUSE_SLOT_FREE) {
		swap(wanted, channel->full);
	}
	spin_unlock(&channel->lock);
	/* Workers that found no free slot look again. */
	if (wanted)
		wake_up_all(&channel->waitq);
}

/* Sets @iter to the slot's room for a request. */
static void efuse_slot_request(struct efuse_channel *channel, u32 slot, struct iov_iter *iter)
{
	u32 pages = channel->slot_size / PAGE_SIZE;

	BUILD_BUG_ON(EFUSE_REQUEST_START(PAGE_SIZE) + sizeof(struct fuse_in_header) +
		     sizeof(struct fuse_write_in) != PAGE_SIZE);
	iov_iter_bvec(iter, ITER_DEST, channel->bvec + 2 * slot * pages, pages,
		      channel->slot_size);
	iov_iter_advance(iter, EFUSE_REQUEST_START(PAGE_SIZE));
}

/* Sets @iter to the @length bytes of the slot's reply. */
static void efuse_slot_reply(struct efuse_channel *channel, u32 slot, u32 length,
			     struct iov_iter *iter)
{
	u32 pages = channel->slot_size / PAGE_SIZE;

	iov_iter_bvec(iter, ITER_SOURCE, channel->bvec + (2 * slot + 1) * pages, pages, length);
}

/* Delivers the reply in @slot and frees the slot. Returns 0 or a negative errno. */
static int efuse_slot_deliver(struct efuse_channel *channel, u32 slot, u32 length)
{
	struct iov_iter iter;
	ssize_t ret = 0;

	if (length > channel->slot_size || slot >= channel->slots)
		return -EINVAL;
	/* Keep speculation within the bounds checked above. */
	slot = array_index_nospec(slot, channel->slots);
	if (!efuse_slot_reclaim(channel, slot))
		return -EINVAL;
	if (length) {
		efuse_slot_reply(channel, slot, length, &iter);
		ret = fuse_dev_reply(channel->fud, &iter);
	}
	efuse_slot_set(channel, slot, EFUSE_SLOT_FREE);
	if (ret == -ENOENT)	/* The request ended before its reply. */
		return 0;
	return ret == -EINVAL ? -EBADMSG : min_t(ssize_t, ret, 0);
}

/* Delivers the reply in @slot, unless it is EFUSE_NO_SLOT. Counts refused replies. */
static int efuse_channel_reply(struct efuse_channel *channel, u32 slot, u32 length)
{
	int err = slot == EFUSE_NO_SLOT ? 0 : efuse_slot_deliver(channel, slot, length);

	if (err == -EINVAL || err == -EBADMSG)
		efuse_count_channel(channel->ec, EFUSE_REPLY_REFUSED);
	return err;
}

/* Puts a request into a free slot. -EAGAIN: there is no request or no free slot. */
static ssize_t efuse_channel_fill(struct efuse_channel *channel, struct file *file, u32 *slot)
{
	struct iov_iter iter;
	int found = efuse_slot_claim(channel);
	ssize_t ret;

	if (found < 0)
		return READ_ONCE(efuse_chan(channel->ec->fc)->iq.connected) ? found : -ENODEV;
	efuse_slot_request(channel, found, &iter);
	ret = fuse_dev_take(channel->fud, file, &iter, false);
	efuse_slot_set(channel, found, ret < 0 ? EFUSE_SLOT_FREE : EFUSE_SLOT_DAEMON);
	*slot = found;
	return ret;
}

/*
 * Puts a request that fits no slot into the daemon's buffer. A request that does not fit the buffer
 * either fails, so that it does not block the requests queued after it.
 */
static ssize_t efuse_channel_fill_large(struct efuse_channel *channel, struct file *file,
					const struct efuse_next *next)
{
	struct iov_iter iter;
	int err = import_ubuf(ITER_DEST, u64_to_user_ptr(next->buffer), next->size, &iter);

	return err ?: fuse_dev_take(channel->fud, file, &iter, true);
}

/* Is there a request and a slot for a worker, or has the connection ended? */
static bool efuse_channel_ready(struct efuse_channel *channel)
{
	return !READ_ONCE(efuse_chan(channel->ec->fc)->iq.connected) ||
	       (efuse_slots_free(channel) && efuse_queues_filled(channel->fud));
}

/*
 * Waits for a request: polls for a while, then sleeps. Returns 0, or -EAGAIN if the caller may not
 * sleep, or -ERESTARTSYS.
 */
static int efuse_channel_wait(struct efuse_channel *channel, bool may_sleep)
{
	struct efuse_node *node = channel->ec->nodes[channel->queue->node];
	int err = 0;

	if (efuse_channel_ready(channel))
		return 0;
	if (!may_sleep) {
		efuse_poll(channel);
		/* A sender that saw this worker polling has woken no other. */
		return efuse_channel_ready(channel) ? 0 : -EAGAIN;
	}
	atomic_inc(&node->waiting);
	/*
	 * Senders from here on see this worker as waiting. Earlier requests are seen by
	 * efuse_channel_ready().
	 */
	smp_mb__after_atomic();
	/* Polling without a free slot is useless. */
	if (!efuse_slots_free(channel) || !efuse_poll(channel))
		err = wait_event_interruptible_exclusive(channel->waitq,
							 efuse_channel_ready(channel));
	atomic_dec(&node->waiting);
	return err;
}

/* Brings a request. Returns its length in bytes, or a negative errno. */
static ssize_t efuse_channel_bring(struct efuse_channel *channel, struct file *file,
				   struct efuse_next *next)
{
	ssize_t length;
	int err;

	next->slot = EFUSE_NO_SLOT;
	do {
		err = efuse_channel_wait(channel, !(file->f_flags & O_NONBLOCK));
		/* Do not restart the system call: that would deliver the reply a second time. */
		if (err)
			return err == -EAGAIN ? err : -EINTR;
		length = efuse_channel_fill(channel, file, &next->slot);
		if (length == -EMSGSIZE && !next->flags) {
			next->slot = EFUSE_NO_SLOT;
			length = efuse_channel_fill_large(channel, file, next);
		}
		/* Another worker took the request, or the request ended while it was copied. */
	} while (length == -EAGAIN || length == -ENOENT);
	return length;
}

/**
 * efuse_channel_next - EFUSE_IOC_NEXT: deliver a reply and bring the next request
 * @fud: a channel's descriptor
 * @file: the open file of @fud
 * @argp: struct efuse_next of the daemon; updated on success
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno. With -EINVAL, and with -EFAULT if *@argp could not be read,
 *         nothing was done. With any other error, also -EFAULT if *@argp could not be written, the
 *         reply was delivered, or failed as it would have with write(2), and its slot is free.
 */
long efuse_channel_next(struct fuse_dev *fud, struct file *file, struct efuse_next __user *argp)
{
	/* Pairs with efuse_channel_make(): the channel is fully initialised. */
	struct efuse_channel *channel = smp_load_acquire(&fud->channel);
	struct efuse_next next;
	ssize_t length;
	int err;

	if (!channel)
		return -EINVAL;
	if (copy_from_user(&next, argp, sizeof(next)))
		return -EFAULT;
	if ((next.flags && next.flags != EFUSE_NEXT_REPLY && next.flags != EFUSE_NEXT_SMALL) ||
	    (!next.flags && next.size < efuse_read_size(channel->ec->fc)))
		return -EINVAL;
	if (next.flags & EFUSE_NEXT_REPLY)
		return efuse_channel_reply(channel, next.slot, next.length);

	atomic_inc(&channel->nr_replying);
	err = efuse_channel_reply(channel, next.slot, next.length);
	/*
	 * Let the task that waits for the reply run: it may send its next request before this
	 * worker polls for one.
	 */
	cond_resched();
	/*
	 * Full barrier: either a sender sees this worker replying, or the worker sees what was
	 * sent.
	 */
	atomic_dec_return(&channel->nr_replying);
	length = err ?: efuse_channel_bring(channel, file, &next);
	/*
	 * Senders that saw this worker replying or polling have woken no other worker, and this one
	 * took only one request.
	 */
	if (efuse_queue_filled(channel->queue))
		efuse_queue_wake(channel->queue);
	if (length < 0)
		return length;
	efuse_count_channel(channel->ec, EFUSE_BROUGHT);
	next.length = length;
	return copy_to_user(argp, &next, sizeof(next)) ? -EFAULT : 0;
}

static void efuse_channel_destroy(struct efuse_channel *channel)
{
	u32 i;

	for (i = 0; i < channel->nr_pages && channel->pages[i]; i++)
		__free_page(channel->pages[i]);
	kvfree(channel->pages);
	kvfree(channel->bvec);
	kfree(channel);
}

static struct efuse_channel *efuse_channel_alloc(const struct efuse_channel_setup *setup)
{
	int node = cpu_to_node(setup->cpu);
	struct efuse_channel *channel = kzalloc_node(sizeof(*channel), GFP_KERNEL_ACCOUNT, node);
	u32 i;

	if (!channel)
		return NULL;
	spin_lock_init(&channel->lock);
	init_waitqueue_head(&channel->waitq);
	channel->spin.credit = EFUSE_MAX_SPIN_CREDIT;
	channel->slots = setup->slots;
	channel->slot_size = setup->slot_size;
	channel->nr_pages = 2 * setup->slots * (setup->slot_size / PAGE_SIZE);
	channel->pages = kvcalloc_node(channel->nr_pages, sizeof(*channel->pages),
				       GFP_KERNEL_ACCOUNT, node);
	channel->bvec = kvcalloc_node(channel->nr_pages, sizeof(*channel->bvec),
				      GFP_KERNEL_ACCOUNT, node);
	if (!channel->pages || !channel->bvec)
		goto out_destroy;
	for (i = 0; i < channel->nr_pages; i++) {
		channel->pages[i] = alloc_pages_node(node, GFP_KERNEL_ACCOUNT | __GFP_ZERO, 0);
		if (!channel->pages[i])
			goto out_destroy;
		bvec_set_page(&channel->bvec[i], channel->pages[i], PAGE_SIZE, 0);
	}
	return channel;

out_destroy:
	if (!channel->pages)
		channel->nr_pages = 0;
	efuse_channel_destroy(channel);
	return NULL;
}

static bool efuse_channel_setup_valid(const struct efuse_channel_setup *setup)
{
	return !setup->flags && setup->cpu < nr_cpu_ids && cpu_possible(setup->cpu) &&
	       setup->slots && setup->slots <= EFUSE_MAX_SLOTS &&
	       setup->slot_size >= 2 * PAGE_SIZE && setup->slot_size % PAGE_SIZE == 0 &&
	       setup->slot_size <= EFUSE_MAX_CHANNEL / (2 * setup->slots);
}

/**
 * efuse_channel_make - EFUSE_IOC_CHANNEL: turn a descriptor into a CPU's channel
 * @ec: connection
 * @fud: the descriptor
 * @argp: struct efuse_channel_setup of the daemon
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; -EBUSY if the descriptor is a channel or the CPU has one
 */
long efuse_channel_make(struct efuse_conn *ec, struct fuse_dev *fud,
			const struct efuse_channel_setup __user *argp)
{
	struct efuse_channel_setup setup;
	struct efuse_channel *channel;
	struct efuse_queue *queue;
	int err = -EBUSY;

	if (copy_from_user(&setup, argp, sizeof(setup)))
		return -EFAULT;
	if (!efuse_channel_setup_valid(&setup))
		return -EINVAL;
	channel = efuse_channel_alloc(&setup);
	if (!channel)
		return -ENOMEM;
	queue = ec->queues[setup.cpu];
	channel->ec = ec;
	channel->fud = fud;
	channel->queue = queue;

	mutex_lock(&ec->channels_mutex);
	if (!fud->channel && !rcu_access_pointer(queue->channel)) {
		rcu_assign_pointer(queue->channel, channel);
		efuse_homes_find(ec);
		/* efuse_channel_next() and efuse_dev_mmap() see a fully initialised channel. */
		smp_store_release(&fud->channel, channel);
		err = 0;
	}
	mutex_unlock(&ec->channels_mutex);
	if (err)
		efuse_channel_destroy(channel);
	return err;
}

/**
 * efuse_channel_close - free the channel of a descriptor that is being closed
 * @fud: a descriptor of /dev/efuse, with or without a channel
 *
 * No worker uses the channel any more.
 *
 * Context: process context, may sleep.
 */
void efuse_channel_close(struct fuse_dev *fud)
{
	struct efuse_channel *channel = fud->channel;
	struct efuse_conn *ec;

	if (!channel)
		return;
	ec = channel->ec;
	mutex_lock(&ec->channels_mutex);
	RCU_INIT_POINTER(channel->queue->channel, NULL);
	efuse_homes_find(ec);
	mutex_unlock(&ec->channels_mutex);
	fud->channel = NULL;
	/* A sender may be about to wake a worker of this channel. */
	synchronize_rcu();
	efuse_channel_destroy(channel);
	/* Other workers may take what waits in its queue now. */
	efuse_queues_wake_all(ec->fc);
}

/**
 * efuse_dev_mmap - map the slots of a channel
 * @file: a channel's open file
 * @vma: the mapping to fill
 *
 * Return: 0 or a negative errno; -ENODEV if the descriptor is not a channel
 */
int efuse_dev_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct fuse_dev *fud = efuse_file_dev(file);
	/* Pairs with efuse_channel_make(). */
	struct efuse_channel *channel = fud ? smp_load_acquire(&fud->channel) : NULL;

	if (!channel)
		return -ENODEV;
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	/* A forked child does not inherit the mapping. */
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	return vm_map_pages(vma, channel->pages, channel->nr_pages);
}
