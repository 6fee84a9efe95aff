// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * libfuse's session loop over channels. Each CPU has a worker that stays on it and handles one
 * request after the other, in the slot where the kernel has put it. A small reply stays in the
 * slot, and is delivered by the call that brings the next request. A large reply, and one that a
 * handler sends later or from another thread, is sent by writev(2).
 *
 * A handler may continue after its reply, and may then wait for the process that gets the reply. So
 * a reply may stay in its slot only while the supervisor looks at the workers regularly. It does so
 * while there are requests, and delivers the replies that it finds. The first reply after a pause
 * is sent immediately.
 *
 * Handlers may block, on a disk or on another request. If all workers have been at the same
 * requests for a while, another worker is added, which may run on any CPU.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "channel.h"
#include "session.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOT_SIZE	8192
#define LOOK_NS		10000000	/* between two looks of the supervisor */
#define MAX_WORKERS	10		/* libfuse's own default */

/* The kernel's largest WRITE with its headers. Unused pages are never allocated. */
#define BUFFER_SIZE	(8U << 20 | 1U << 16)

/* A list of numbers and ranges, such as 0-3,8. */
#ifndef ONLINE_CPUS
#define ONLINE_CPUS	"/sys/devices/system/cpu/online"
#endif

struct loop;

/**
 * struct worker - a thread that handles requests
 * @loop: its loop
 * @channel: the channel that its requests come from
 * @cpu: the CPU that it has to run on, -1: any
 * @pinned: whether the thread runs on @cpu only
 * @thread: the thread
 * @buffer: for requests that fit no slot. They begin at the same offset as in a slot, so that the
 *         data of a WRITE can be written to a file that was opened with O_DIRECT
 * @message: the current request
 * @unique: number of the current request
 * @stored: the reply to the current request was put into its slot
 * @waiting: length of a reply in the slot that was not delivered yet, 0: there is none
 * @delivery: held while the reply in the slot is delivered by write(2)
 * @sending: length of the reply that the call for the next request delivers
 * @begun: number of requests begun
 * @seen: @begun when the supervisor looked last
 * @busy: a request is being handled
 * @ending: set to another value than 0 before the thread is cancelled
 */
struct worker {
	struct loop *loop;
	struct channel *channel;
	int cpu;
	bool pinned;
	pthread_t thread;
	char *buffer;
	struct message message;
	uint64_t unique;
	bool stored;
	_Atomic uint32_t waiting;
	pthread_mutex_t delivery;
	uint32_t sending;
	_Atomic uint64_t begun;
	uint64_t seen;
	atomic_bool busy;
	atomic_int ending;
};

/**
 * struct loop - the loop of a session
 * @se: the session
 * @fd: descriptor of the session
 * @cpus: the CPUs that the process may run on
 * @signals: the signals that the caller had blocked
 * @channels: one for each online CPU, @max_workers at most
 * @online: the CPU of each channel
 * @nr_channels: number of channels
 * @workers: room for @max_workers workers
 * @nr_workers: number of workers
 * @max_workers: the most workers
 * @idle: number of workers that handle no request now
 * @watched: the supervisor looks at the workers regularly
 * @event: eventfd to wake the supervisor: it has to look, or the loop ends
 * @error: 0, or the negative errno that the loop ends with
 */
struct loop {
	struct fuse_session *se;
	int fd;
	cpu_set_t cpus;
	sigset_t signals;
	struct channel *channels;
	unsigned int *online;
	unsigned int nr_channels;
	struct worker *workers;
	unsigned int nr_workers;
	unsigned int max_workers;
	atomic_int idle;
	atomic_bool watched;
	int event;
	atomic_int error;
};

static _Thread_local struct worker *self;

static void have_watched(struct loop *loop)
{
	if (!atomic_load(&loop->watched) && !atomic_exchange(&loop->watched, true))
		eventfd_write(loop->event, 1);
}

static void loop_end(struct loop *loop, int error)
{
	int none = 0;

	atomic_compare_exchange_strong(&loop->error, &none, error);
	fuse_session_exit(loop->se);
	eventfd_write(loop->event, 1);
}

static void refused(const struct loop *loop)
{
	if (!fuse_session_exited(loop->se))
		fuse_log(FUSE_LOG_ERR, "efuse: the kernel refused a reply\n");
}

/* Sends the reply in the slot of the current request by write(2). The slot stays the worker's. */
static void write_stored(const struct worker *worker, uint32_t length)
{
	ssize_t written = write(worker->channel->fd, worker->message.reply, length);

	/* After any other error the request, or the connection, has ended. */
	if (written < 0 && errno == EINVAL)
		refused(worker->loop);
}

/* Delivers the worker's stored reply, if it was not delivered yet. */
static void deliver(struct worker *worker)
{
	uint32_t length;

	pthread_mutex_lock(&worker->delivery);
	length = atomic_exchange(&worker->waiting, 0);
	if (length)
		write_stored(worker, length);
	pthread_mutex_unlock(&worker->delivery);
}

/* Will the supervisor deliver replies that stay in their slots? */
static bool is_watched(struct loop *loop)
{
	return atomic_load(&loop->watched) && !fuse_session_exited(loop->se);
}

static bool fits_slot(const struct worker *worker, const struct fuse_out_header *out)
{
	return worker->message.reply && !worker->stored && out->unique == worker->unique &&
	       out->len <= worker->channel->slot_size;
}

/* Sends what libfuse sends. A small reply to the current request goes to the slot. */
static ssize_t loop_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	struct worker *worker = self;
	char *to;
	int i;

	(void)userdata;
	/* The thread is no worker, or the message is for another session. */
	if (!worker || fd != worker->loop->fd)
		return writev(fd, iov, count);
	if (!fits_slot(worker, out)) {
		/*
		 * The process that gets the stored reply may have to act before a notification
		 * returns.
		 */
		if (worker->stored)
			deliver(worker);
		return writev(worker->channel->fd, iov, count);
	}
	if (!is_watched(worker->loop)) {
		ssize_t written = writev(worker->channel->fd, iov, count);
		int error = errno;

		have_watched(worker->loop);
		errno = error;
		return written;
	}
	to = worker->message.reply;
	for (i = 0; i < count; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	worker->stored = true;
	atomic_store(&worker->waiting, out->len);
	/*
	 * Either the supervisor's last look sees the reply, or this sees that it has stopped
	 * looking.
	 */
	if (!is_watched(worker->loop))
		deliver(worker);
	return out->len;
}

static ssize_t loop_read(int fd, void *buf, size_t size, void *userdata)
{
	(void)userdata;
	return read(fd, buf, size);
}

/* Has no splicing, and libfuse tells the daemon so. */
static const struct fuse_custom_io loop_io = {
	.writev = loop_writev,
	.read = loop_read,
};

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
	if (atomic_fetch_sub(&loop->idle, 1) == 1)
		have_watched(loop);
	fuse_session_process_buf(loop->se, &buf);
	atomic_fetch_add(&loop->idle, 1);
	atomic_store_explicit(&worker->busy, false, memory_order_relaxed);
}

/* Waits for a request, and delivers the stored reply. */
static int next(struct worker *worker)
{
	uint32_t start = worker->channel->request_start;
	int err;

	worker->sending = atomic_exchange(&worker->waiting, 0);
	if (worker->stored && !worker->sending) {
		/* The slot must not be given back while another thread sends the reply from it. */
		pthread_mutex_lock(&worker->delivery);
		pthread_mutex_unlock(&worker->delivery);
	}
	err = channel_next(worker->channel, &worker->message, worker->sending,
			   worker->buffer + start, BUFFER_SIZE - start, &worker->ending);
	worker->sending = 0;
	worker->stored = false;
	return err;
}

/*
 * Before the first pinning: threads and processes that the handler of INIT starts must not inherit
 * the CPU.
 */
static bool may_start_threads(const struct worker *worker)
{
	return ((const struct fuse_in_header *)worker->message.request)->opcode == FUSE_INIT;
}

static void pin(struct worker *worker)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(worker->cpu, &cpus);
	/* If the CPU has gone offline, the worker runs anywhere. */
	sched_setaffinity(0, sizeof(cpus), &cpus);
	worker->pinned = true;
}

static void unpin(const struct worker *worker)
{
	sched_setaffinity(0, sizeof(worker->loop->cpus), &worker->loop->cpus);
}

static bool is_pinned(const struct worker *worker)
{
	cpu_set_t cpus;

	return worker->pinned && !sched_getaffinity(0, sizeof(cpus), &cpus) &&
	       CPU_COUNT(&cpus) == 1 && CPU_ISSET(worker->cpu, &cpus);
}

/**
 * loop_unpin - let the calling process run on any CPU, before it executes another program
 *
 * Does nothing if the process has chosen other CPUs.
 *
 * Context: any, also a child of vfork(): only the child's affinity changes.
 */
void loop_unpin(void)
{
	if (self && is_pinned(self))
		unpin(self);
}

/*
 * Was the mount unmounted, or its connection aborted? -ECONNABORTED ends a request that was on its
 * way at that time.
 */
static bool is_gone(int err)
{
	return err == -ENODEV || err == -ECONNABORTED;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct loop *loop = worker->loop;
	int err, ignored;

	/*
	 * The end of the loop cancels threads that wait in channel_next(). A handler, or the
	 * delivery of a reply, must not be cancelled.
	 */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &ignored);
	self = worker;
	worker->message.slot = EFUSE_NO_SLOT;
	while (!fuse_session_exited(loop->se)) {
		err = next(worker);
		if (err == -EBADMSG)
			refused(loop);
		if (err == -EINTR || err == -EBADMSG)
			continue;
		if (err) {
			loop_end(loop, is_gone(err) ? 0 : err);
			return NULL;
		}
		if (worker->cpu >= 0 && !worker->pinned && !may_start_threads(worker))
			pin(worker);
		handle(worker);
	}
	if (worker->stored)
		deliver(worker);
	/* A handler may have ended the session. */
	loop_end(loop, 0);
	return NULL;
}

static int start_thread(struct worker *worker)
{
	sigset_t blocked = worker->loop->signals, before;
	int err;

	/* The supervisor gets the signals that end a session. */
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigaddset(&blocked, SIGHUP);
	sigaddset(&blocked, SIGQUIT);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	err = pthread_create(&worker->thread, NULL, work, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

/* Adds a worker. @cpu: the CPU to run on if the process may run there; -1: any. */
static int add_worker(struct loop *loop, struct channel *channel, int cpu)
{
	struct worker *worker = &loop->workers[loop->nr_workers];
	int err;

	worker->loop = loop;
	worker->channel = channel;
	worker->cpu = cpu >= 0 && CPU_ISSET(cpu, &loop->cpus) ? cpu : -1;
	worker->buffer = mmap(NULL, BUFFER_SIZE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (worker->buffer == MAP_FAILED)
		return -ENOMEM;
	pthread_mutex_init(&worker->delivery, NULL);
	atomic_fetch_add(&loop->idle, 1);
	err = start_thread(worker);
	if (err) {
		atomic_fetch_sub(&loop->idle, 1);
		munmap(worker->buffer, BUFFER_SIZE);
		return err;
	}
	loop->nr_workers++;
	return 0;
}

/*
 * Delivers waiting replies, and adds a worker if all have been at the same requests since the last
 * look. Returns whether there is reason to look again.
 */
static bool look(struct loop *loop)
{
	bool room = loop->nr_workers < loop->max_workers;
	bool stuck = true, news = false;
	unsigned int i;

	for (i = 0; i < loop->nr_workers; i++) {
		struct worker *worker = &loop->workers[i];
		uint64_t begun = atomic_load(&worker->begun);

		if (atomic_load(&worker->waiting))
			deliver(worker);
		if (!atomic_load(&worker->busy) || begun != worker->seen)
			stuck = false;
		news |= begun != worker->seen;
		worker->seen = begun;
	}
	if (stuck && room)
		add_worker(loop, &loop->channels[loop->nr_workers % loop->nr_channels], -1);
	return news || (room && atomic_load(&loop->idle) <= 0);
}

/* Waits for the next look, or for a signal, whose handler may have ended the session. */
static void supervisor_wait(struct loop *loop)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	struct pollfd event = { .fd = loop->event, .events = POLLIN };
	eventfd_t ignored;

	if (ppoll(&event, 1, atomic_load(&loop->watched) ? &pause : NULL,
		  &loop->signals) > 0)
		eventfd_read(loop->event, &ignored);
}

static void supervise(struct loop *loop)
{
	sigset_t all;
	bool watching;

	/* Signals are blocked so that none comes between the check and ppoll(2). */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (!fuse_session_exited(loop->se)) {
		watching = atomic_load(&loop->watched);
		supervisor_wait(loop);
		if (!watching || look(loop))
			continue;
		atomic_store(&loop->watched, false);
		/*
		 * Replies may have been stored before the workers could see that the supervisor
		 * stopped looking.
		 */
		if (look(loop))
			atomic_store(&loop->watched, true);
	}
	pthread_sigmask(SIG_SETMASK, &loop->signals, NULL);
}

static void join_workers(struct loop *loop)
{
	unsigned int i;

	for (i = 0; i < loop->nr_workers; i++) {
		atomic_fetch_or(&loop->workers[i].ending, 1);
		pthread_cancel(loop->workers[i].thread);
		/* The worker's handler may take long to return. */
		deliver(&loop->workers[i]);
	}
	for (i = 0; i < loop->nr_workers; i++)
		pthread_join(loop->workers[i].thread, NULL);
	for (i = 0; i < loop->nr_workers; i++) {
		struct worker *worker = &loop->workers[i];

		/*
		 * The cancelled call may or may not have delivered this reply. The kernel ignores a
		 * second reply.
		 */
		if (worker->sending)
			write_stored(worker, worker->sending);
		pthread_mutex_destroy(&worker->delivery);
		munmap(worker->buffer, BUFFER_SIZE);
	}
}

/* Stores the online CPUs, @room at most. Returns the number of online CPUs; 0: not known. */
static unsigned int online_cpus(unsigned int *cpus, unsigned int room)
{
	FILE *file = fopen(ONLINE_CPUS, "re");
	unsigned int first, last, found = 0;
	int end = ',';

	while (file && end == ',' && fscanf(file, "%u", &first) == 1) {
		last = first;
		end = fgetc(file);
		if (end == '-' && fscanf(file, "%u", &last) == 1)
			end = fgetc(file);
		for (; first <= last; first++, found++)
			if (found < room)
				cpus[found] = first;
	}
	if (file)
		fclose(file);
	return found;
}

/*
 * Opens a channel for each online CPU, as many as there may be workers. A CPU that goes online
 * later has none: the kernel puts its requests into the nearest channel.
 */
static int open_channels(struct loop *loop)
{
	/* A worker uses one slot at most. */
	uint32_t slots = (loop->max_workers + loop->nr_channels - 1) / loop->nr_channels;
	unsigned int i;
	int err;

	if (slots > EFUSE_MAX_SLOTS)
		slots = EFUSE_MAX_SLOTS;
	for (i = 0; i < loop->nr_channels; i++) {
		err = channel_open(&loop->channels[i], loop->fd, loop->online[i], slots,
				   SLOT_SIZE);
		if (err) {
			loop->nr_channels = i;
			return err;
		}
	}
	return 0;
}

static int start_workers(struct loop *loop)
{
	unsigned int i;
	int err = 0;

	for (i = 0; !err && i < loop->nr_channels; i++)
		err = add_worker(loop, &loop->channels[i], (int)loop->online[i]);
	/* One worker is enough to serve all channels. */
	return loop->nr_workers ? 0 : err;
}

/* From here on a child of fork() chooses its CPUs itself. */
static void in_child(void)
{
	loop_unpin();
	self = NULL;
}

static void at_fork(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

/**
 * loop_unpinned - call a function that starts threads or processes
 * @start: called while the thread may run on any CPU, which what it starts inherits
 * @arg: argument for @start
 *
 * Return: what @start returned
 */
int loop_unpinned(int (*start)(void *arg), void *arg)
{
	struct worker *worker = self;
	int result;

	if (!worker || !worker->pinned)
		return start(arg);
	unpin(worker);
	result = start(arg);
	pin(worker);
	return result;
}

/**
 * loop_channels - handle a session's requests over channels until it ends
 * @se: a mounted session
 * @max_workers: the most threads; 0: libfuse's default, but at least one per CPU
 * @started: set to whether the loop was started; if not, the session is unchanged
 *
 * Return: 0 or a negative errno, or libfuse's result for the session's end, such as the number of a
 *         signal
 */
int loop_channels(struct fuse_session *se, unsigned int max_workers, bool *started)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	unsigned int cpus = online_cpus(NULL, 0), found, i;
	struct loop loop = { .se = se, .fd = fuse_session_fd(se) };
	int err = -ENOMEM, ended;

	*started = false;
	if (!cpus)
		cpus = (unsigned int)sysconf(_SC_NPROCESSORS_ONLN);
	pthread_once(&once, at_fork);
	pthread_sigmask(SIG_SETMASK, NULL, &loop.signals);
	if (!max_workers)
		max_workers = cpus > MAX_WORKERS ? cpus : MAX_WORKERS;
	loop.max_workers = max_workers;
	loop.nr_channels = cpus < max_workers ? cpus : max_workers;
	/* There are more CPUs than the set has room for: run anywhere. */
	if (sched_getaffinity(0, sizeof(loop.cpus), &loop.cpus))
		CPU_ZERO(&loop.cpus);
	loop.channels = calloc(loop.nr_channels, sizeof(*loop.channels));
	loop.online = calloc(loop.nr_channels, sizeof(*loop.online));
	loop.workers = calloc(loop.max_workers, sizeof(*loop.workers));
	if (!loop.channels || !loop.online || !loop.workers)
		goto out_free;
	found = online_cpus(loop.online, loop.nr_channels);
	if (found && found < loop.nr_channels)
		loop.nr_channels = found;
	for (i = found; i < loop.nr_channels; i++)
		loop.online[i] = i;
	loop.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop.event < 0) {
		err = -errno;
		goto out_free;
	}
	err = open_channels(&loop);
	if (!err)
		err = session_custom_io(se, &loop_io, loop.fd);
	if (!err)
		err = start_workers(&loop);
	*started = !err;
	if (!err) {
		supervise(&loop);
		err = atomic_load(&loop.error);
	}
	join_workers(&loop);
	for (i = 0; i < loop.nr_channels; i++)
		channel_close(&loop.channels[i]);
	close(loop.event);
	if (*started) {
		/* The session has ended, so this only returns the reason and resets the session. */
		ended = fuse_session_loop(se);
		err = ended ? ended : err;
	}

out_free:
	free(loop.workers);
	free(loop.online);
	free(loop.channels);
	return err;
}
