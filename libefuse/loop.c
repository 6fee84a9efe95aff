// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * libfuse's session loop over channels: a worker for each CPU, which stays there and
 * handles one request after the other where the kernel has put it. A small reply goes
 * the same way back with the call that brings the next request; a large one, and that
 * of a handler who answers later or from another thread, by writev(2).
 *
 * Handlers may block: on a disk, or on another request. When all workers have been at
 * the same requests for a while, another worker is added, who may run anywhere.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "channel.h"
#include "session.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOT_SIZE	8192
#define STUCK_NS	10000000	/* at the same requests for so long: add a worker */

/* A WRITE of libfuse's largest max_write with its headers; pages unused stay unmapped. */
#define BUFFER_SIZE	(1U << 20 | 1U << 16)

struct loop;

/**
 * struct worker - a thread
 * @loop: whose
 * @channel: where its requests come from
 * @cpu: where it runs, -1: anywhere
 * @thread: it
 * @buffer: for requests that fit no slot
 * @message: the request at hand
 * @unique: its number
 * @reply_length: of the reply that lies in its slot, 0: none
 * @begun: requests begun
 * @seen: as many when the supervisor looked last
 * @busy: whether one is being handled
 */
struct worker {
	struct loop *loop;
	struct channel *channel;
	int cpu;
	pthread_t thread;
	char *buffer;
	struct message message;
	uint64_t unique;
	uint32_t reply_length;
	_Atomic uint64_t begun;
	uint64_t seen;
	atomic_bool busy;
};

/**
 * struct loop - a session's
 * @se: the session
 * @channels: of each CPU
 * @nr_channels: how many
 * @workers: room for all that there may be
 * @nr_workers: how many there are
 * @max_workers: how many there may be
 * @idle: workers that handle nothing now
 * @watched: whether the supervisor looks at them now and then
 * @wake: it is to look, or the loop ends
 * @error: why it ends: 0 or a negative errno
 */
struct loop {
	struct fuse_session *se;
	struct channel *channels;
	unsigned int nr_channels;
	struct worker *workers;
	unsigned int nr_workers;
	unsigned int max_workers;
	atomic_int idle;
	atomic_bool watched;
	sem_t wake;
	atomic_int error;
};

static _Thread_local struct worker *self;

/* libfuse's way out: a small reply to the request at hand into its slot. */
static ssize_t loop_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	struct worker *worker = self;
	char *to;
	int i;

	(void)userdata;
	if (!worker || out->unique != worker->unique || !worker->message.reply ||
	    worker->reply_length || out->len > worker->channel->slot_size)
		return writev(worker ? worker->channel->fd : fd, iov, count);
	to = worker->message.reply;
	for (i = 0; i < count; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	worker->reply_length = out->len;
	return out->len;
}

static ssize_t loop_read(int fd, void *buf, size_t size, void *userdata)
{
	(void)userdata;
	return read(fd, buf, size);
}

static const struct fuse_custom_io loop_io = {
	.writev = loop_writev,
	.read = loop_read,
};

static void loop_end(struct loop *loop, int error)
{
	int none = 0;

	atomic_compare_exchange_strong(&loop->error, &none, error);
	fuse_session_exit(loop->se);
	sem_post(&loop->wake);
}

static void handle(struct worker *worker)
{
	struct loop *loop = worker->loop;
	struct fuse_buf buf = {
		.size = worker->message.length,
		.mem = worker->message.request,
	};

	worker->unique = ((const struct fuse_in_header *)buf.mem)->unique;
	atomic_store_explicit(&worker->busy, true, memory_order_relaxed);
	atomic_fetch_add_explicit(&worker->begun, 1, memory_order_relaxed);
	if (atomic_fetch_sub(&loop->idle, 1) == 1 && !atomic_load(&loop->watched) &&
	    !atomic_exchange(&loop->watched, true))
		sem_post(&loop->wake);
	fuse_session_process_buf(loop->se, &buf);
	atomic_fetch_add(&loop->idle, 1);
	atomic_store_explicit(&worker->busy, false, memory_order_relaxed);
}

/* Wait for a request; only there the loop's end may take the thread away. */
static int next(struct worker *worker)
{
	int err, ignored;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &ignored);
	err = channel_next(worker->channel, &worker->message, worker->reply_length,
			   worker->buffer, BUFFER_SIZE);
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &ignored);
	worker->reply_length = 0;
	return err;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct loop *loop = worker->loop;
	cpu_set_t cpus;
	int err, ignored;

	self = worker;
	if (worker->cpu >= 0) {
		CPU_ZERO(&cpus);
		CPU_SET(worker->cpu, &cpus);
		/* The CPU may be gone by now: then anywhere. */
		pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
	}
	worker->message.slot = EFUSE_NO_SLOT;
	while (!fuse_session_exited(loop->se)) {
		err = next(worker);
		if (err == -EINTR || err == -EBADMSG)
			continue;
		if (err) {
			/* ENODEV: unmounted. */
			loop_end(loop, err == -ENODEV ? 0 : err);
			break;
		}
		/* A handler has cancellation points, but is not to be cancelled. */
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
		handle(worker);
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &ignored);
	}
	return NULL;
}

static int add_worker(struct loop *loop, struct channel *channel, int cpu)
{
	struct worker *worker = &loop->workers[loop->nr_workers];
	sigset_t ours, before;
	int err;

	worker->loop = loop;
	worker->channel = channel;
	worker->cpu = cpu;
	worker->buffer = mmap(NULL, BUFFER_SIZE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (worker->buffer == MAP_FAILED)
		return -ENOMEM;
	atomic_fetch_add(&loop->idle, 1);
	/* Those that end a session are the supervisor's. */
	sigemptyset(&ours);
	sigaddset(&ours, SIGTERM);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGHUP);
	sigaddset(&ours, SIGQUIT);
	pthread_sigmask(SIG_BLOCK, &ours, &before);
	err = pthread_create(&worker->thread, NULL, work, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		atomic_fetch_sub(&loop->idle, 1);
		munmap(worker->buffer, BUFFER_SIZE);
		return -err;
	}
	loop->nr_workers++;
	return 0;
}

/* Has every worker been at the same request since the last look? */
static bool all_stuck(struct loop *loop)
{
	bool stuck = true;
	unsigned int i;

	for (i = 0; i < loop->nr_workers; i++) {
		struct worker *worker = &loop->workers[i];
		uint64_t begun = atomic_load(&worker->begun);

		if (!atomic_load(&worker->busy) || begun != worker->seen)
			stuck = false;
		worker->seen = begun;
	}
	return stuck;
}

/* As long as all workers are busy, look at them now and then. */
static void watch(struct loop *loop)
{
	const struct timespec pause = { .tv_nsec = STUCK_NS };

	do {
		nanosleep(&pause, NULL);
		if (loop->nr_workers < loop->max_workers && all_stuck(loop))
			add_worker(loop, &loop->channels[loop->nr_workers % loop->nr_channels], -1);
	} while (!fuse_session_exited(loop->se) && atomic_load(&loop->idle) <= 0);
	atomic_store(&loop->watched, false);
	/* One may have become busy before it saw that nobody watches. */
	if (atomic_load(&loop->idle) <= 0 && !atomic_exchange(&loop->watched, true))
		sem_post(&loop->wake);
}

static void supervise(struct loop *loop)
{
	while (!fuse_session_exited(loop->se)) {
		/* A signal's handler may have ended the session. */
		if (sem_wait(&loop->wake) && errno == EINTR)
			continue;
		if (!fuse_session_exited(loop->se))
			watch(loop);
	}
}

static void join_workers(struct loop *loop)
{
	unsigned int i;

	for (i = 0; i < loop->nr_workers; i++)
		pthread_cancel(loop->workers[i].thread);
	for (i = 0; i < loop->nr_workers; i++) {
		pthread_join(loop->workers[i].thread, NULL);
		munmap(loop->workers[i].buffer, BUFFER_SIZE);
	}
}

/* A channel for each CPU that there may be: none is left out if it comes later. */
static int open_channels(struct loop *loop)
{
	int device = fuse_session_fd(loop->se);
	uint32_t slots = loop->max_workers < EFUSE_MAX_SLOTS ? loop->max_workers : EFUSE_MAX_SLOTS;
	unsigned int i;
	int err;

	for (i = 0; i < loop->nr_channels; i++) {
		err = channel_open(&loop->channels[i], device, i, slots, SLOT_SIZE);
		if (err) {
			loop->nr_channels = i;
			return err;
		}
	}
	return 0;
}

/**
 * loop_channels - handle a session's requests over channels until it ends
 * @se: a mounted session
 * @max_workers: the most threads
 * @started: set if it was begun; else the session is as it was
 *
 * Return: 0 or a negative errno
 */
int loop_channels(struct fuse_session *se, unsigned int max_workers, bool *started)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct loop loop = { .se = se, .nr_channels = (unsigned int)cpus };
	unsigned int i;
	int err = -ENOMEM;

	*started = false;
	loop.max_workers = max_workers > loop.nr_channels ? max_workers : loop.nr_channels;
	loop.channels = calloc(loop.nr_channels, sizeof(*loop.channels));
	loop.workers = calloc(loop.max_workers, sizeof(*loop.workers));
	if (!loop.channels || !loop.workers || sem_init(&loop.wake, 0, 0))
		goto out_free;
	err = open_channels(&loop);
	*started = !err;
	if (!err)
		err = fuse_session_custom_io(se, &loop_io, fuse_session_fd(se));
	for (i = 0; !err && i < loop.nr_channels; i++)
		err = add_worker(&loop, &loop.channels[i], (int)i);
	if (!err) {
		supervise(&loop);
		err = atomic_load(&loop.error);
	}
	join_workers(&loop);
	for (i = 0; i < loop.nr_channels; i++)
		channel_close(&loop.channels[i]);
	if (*started)
		fuse_session_reset(se);
	sem_destroy(&loop.wake);

out_free:
	free(loop.workers);
	free(loop.channels);
	return err;
}
