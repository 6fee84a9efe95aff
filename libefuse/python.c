// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A channel for pyfuse3, whose loop is one thread: a task waits in trio for the session's
 * descriptor to become readable, has libfuse read one request, and handles it. Here a task
 * that has replied looks for the next request before it waits; the call that brings it delivers
 * the reply. A request that is found lies here until libfuse reads.
 *
 * One slot is enough: it is given back with each look, whether its request was answered or
 * not, and may take the reply to any request. A reply may stay in it where the task is
 * sure to look at once: replying is the last thing of pyfuse3's handlers, and then
 * their task goes on to wait, unless there are more waiting than pyfuse3 wants.
 */
#define _GNU_SOURCE
#include "python.h"
#include "channel.h"
#include "got.h"
#include "session.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOT_SIZE	8192

/* So long the thread may go on without asking trio whether other tasks want it. */
#define BUSY_NS		1000000

/* pyfuse3's min_tasks: with more of them waiting, who has replied ends. */
#define WAITING		1

/**
 * struct python - the session, one at a time
 * @lock: held for all that follows; other threads send notifications
 * @mount: what pyfuse3 was made to call
 * @se: the session that it made
 * @fd: its descriptor
 * @open: whether there is a channel
 * @channel: it
 * @message: the slot that is ours, and the request in it
 * @found: libfuse has not read the request yet
 * @reply: length of the reply in the slot, 0: there is none
 * @thread: that of the loop
 * @waiting: tasks that wait in trio
 * @busy_until: CLOCK_MONOTONIC at which trio is to be asked, in ns
 */
static struct python {
	pthread_mutex_t lock;
	struct got mount;
	struct fuse_session *se;
	int fd;
	bool open;
	struct channel channel;
	struct message message;
	bool found;
	uint32_t reply;
	pthread_t thread;
	unsigned int waiting;
	uint64_t busy_until;
} python = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Deliver the reply in the slot, if there is one, and give the slot back. */
static void give_back(void)
{
	int err;

	if (python.message.slot == EFUSE_NO_SLOT)
		return;
	err = channel_reply(&python.channel, &python.message, python.reply);
	python.reply = 0;
	if (err == -EBADMSG)
		fuse_log(FUSE_LOG_ERR, "efuse: the kernel refused a reply\n");
}

/* Likewise, and take a request: 0, -EINTR if there is none, or as of channel_next(). */
static int take(char *buffer, size_t size)
{
	int err = channel_next(&python.channel, &python.message, python.reply, buffer,
			       (uint32_t)size, NULL);

	python.reply = 0;
	if (err == -EBADMSG)
		fuse_log(FUSE_LOG_ERR, "efuse: the kernel refused a reply\n");
	return err == -EBADMSG || err == -EAGAIN ? -EINTR : err;
}

/* libfuse's way in. pyfuse3 goes on if it was EINTR. */
static ssize_t python_read(int fd, void *buf, size_t size, void *userdata)
{
	ssize_t length = -1;
	int err;

	(void)userdata;
	pthread_mutex_lock(&python.lock);
	if (!python.open) {
		pthread_mutex_unlock(&python.lock);
		return read(fd, buf, size);
	}
	err = python.found ? 0 : take(buf, size);
	python.found = false;
	if (!err) {
		length = (ssize_t)python.message.length;
		/* What fits no slot is there. */
		if (python.message.slot != EFUSE_NO_SLOT)
			memcpy(buf, python.message.request, python.message.length);
	}
	pthread_mutex_unlock(&python.lock);
	errno = -err;
	return length;
}

/* May what the loop's thread sends stay in the slot until it looks for the next request? */
static bool may_stay(const struct fuse_out_header *out)
{
	return out->unique && out->len <= python.channel.slot_size &&
	       python.message.slot != EFUSE_NO_SLOT && !python.reply &&
	       python.waiting <= WAITING && !fuse_session_exited(python.se);
}

/* libfuse's way out: of replies by the loop's thread, and of notifications by any. */
static ssize_t python_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	bool ours;
	char *to;
	int i;

	(void)userdata;
	pthread_mutex_lock(&python.lock);
	ours = python.open && pthread_equal(pthread_self(), python.thread);
	if (ours && may_stay(out)) {
		to = python.message.reply;
		for (i = 0; i < count; i++) {
			memcpy(to, iov[i].iov_base, iov[i].iov_len);
			to += iov[i].iov_len;
		}
		python.reply = out->len;
		pthread_mutex_unlock(&python.lock);
		return out->len;
	}
	/* What comes after a reply may be about the same, or wait for who waits for it. */
	if (python.open && python.reply)
		give_back();
	pthread_mutex_unlock(&python.lock);
	/* A request is found at once on the descriptor that brought it; only this thread closes it. */
	return writev(ours ? python.channel.fd : fd, iov, count);
}

/* Without splicing: libfuse then reads requests, and all of a WRITE, into memory. */
static const struct fuse_custom_io python_io = {
	.writev = python_writev,
	.read = python_read,
};

/* Where pyfuse3 calls fuse_session_mount(). */
static int python_mount(struct fuse_session *se, const char *mountpoint)
{
	python.se = se;
	return fuse_session_mount(se, mountpoint);
}

/**
 * efuse_python_watch - have the session that pyfuse3 mounts from now on found
 * @extension: the path of pyfuse3's extension module
 *
 * Return: 0 or a negative errno: -ESRCH if it does not call fuse_session_mount(), -EXDEV if
 *         it is another libfuse's, -ENOSYS for a libfuse older than 3.14
 */
int efuse_python_watch(const char *extension)
{
	void *handle = dlopen(extension, RTLD_LAZY | RTLD_NOLOAD);
	void *its;
	int err;

	python.se = NULL;
	if (!fuse_session_custom_io)
		return -ENOSYS;
	if (!handle)
		return -ESRCH;
	its = dlsym(handle, "fuse_session_mount");
	dlclose(handle);
	if (its != (void *)fuse_session_mount)
		return -EXDEV;
	err = got_replace(&python.mount, extension, "fuse_session_mount", (void *)python_mount);
	return err == -ENOENT ? -ESRCH : err;
}

/**
 * efuse_python_unwatch - leave pyfuse3 as it was
 */
void efuse_python_unwatch(void)
{
	got_restore(&python.mount);
}

/* A child that is forked has no part in the slots, and is not to keep the channel. */
static void before_fork(void)
{
	pthread_mutex_lock(&python.lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&python.lock);
}

static void in_child(void)
{
	if (python.open)
		close(python.channel.fd);
	python.open = false;
	pthread_mutex_unlock(&python.lock);
}

static void at_fork(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static int open_channel(void)
{
	int cpu = sched_getcpu();
	int err = channel_open(&python.channel, python.fd, cpu < 0 ? 0 : (unsigned int)cpu, 1,
			       SLOT_SIZE);

	if (err)
		return err;
	err = fcntl(python.channel.fd, F_SETFL, O_NONBLOCK) ? -errno :
	      fuse_session_custom_io(python.se, &python_io, python.fd);
	if (err)
		channel_close(&python.channel);
	return err;
}

/**
 * efuse_python_open - have the session that was found get its requests through a channel
 *
 * To be called by the thread that runs pyfuse3's loop, before it does.
 *
 * Return: 0, -ESRCH if no session was found, or another negative errno; see
 *         efuse_python_reason()
 */
int efuse_python_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int err = -ESRCH;

	pthread_once(&once, at_fork);
	pthread_mutex_lock(&python.lock);
	if (python.se && !python.open) {
		python.fd = fuse_session_fd(python.se);
		python.thread = pthread_self();
		python.message.slot = EFUSE_NO_SLOT;
		python.found = false;
		python.reply = 0;
		python.waiting = 0;
		err = open_channel();
		python.open = !err;
	}
	pthread_mutex_unlock(&python.lock);
	return err;
}

/**
 * efuse_python_look - deliver the reply that waits, and look for a request
 *
 * Called by a task before it waits in trio. It looks only if another one waits there, so that
 * pyfuse3 does not start one more with each request, and for BUSY_NS altogether.
 *
 * Return: whether libfuse has something to read. If not, the task shall wait in trio, and
 *         then call efuse_python_rested().
 */
int efuse_python_look(void)
{
	int err = -EINTR;

	pthread_mutex_lock(&python.lock);
	if (python.open) {
		if (python.waiting && now_ns() < python.busy_until) {
			err = take(NULL, 0);
			python.found = !err;
		} else {
			give_back();
		}
	}
	/* What is too large for the slot, and any error, libfuse gets when it reads. */
	if (err == -EINTR)
		python.waiting++;
	pthread_mutex_unlock(&python.lock);
	return err != -EINTR;
}

/**
 * efuse_python_rested - the task that was to wait in trio has done so
 */
void efuse_python_rested(void)
{
	pthread_mutex_lock(&python.lock);
	python.waiting--;
	python.busy_until = now_ns() + BUSY_NS;
	pthread_mutex_unlock(&python.lock);
}

/**
 * efuse_python_close - end the channel, before pyfuse3 ends the session
 */
void efuse_python_close(void)
{
	pthread_mutex_lock(&python.lock);
	if (python.open) {
		give_back();
		channel_close(&python.channel);
		python.open = false;
	}
	python.se = NULL;
	pthread_mutex_unlock(&python.lock);
}

/**
 * efuse_python_reason - why there is no channel, in words
 * @err: what efuse_python_watch() or efuse_python_open() has returned
 */
const char *efuse_python_reason(int err)
{
	switch (err) {
	case -ENOSYS:
		return "libfuse is older than 3.14";
	case -EXDEV:
		return "pyfuse3 has a libfuse of its own";
	case -E2BIG:
	case -ESRCH:
		return "this pyfuse3 is not known";
	default:
		return channel_reason(err);
	}
}
