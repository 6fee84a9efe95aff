// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A channel for pyfuse3. Its loop is one thread: a task waits in trio until the session's
 * descriptor becomes readable, has libfuse read one request, and handles it. With a channel, a task
 * that has replied polls for the next request before it waits. The call that brings the request
 * also delivers the reply. A request that was found stays here until libfuse reads it.
 *
 * One slot is enough. It is given back at each poll, whether its request was answered or not, and
 * may hold the reply to any request. A reply may stay in the slot only if the task is sure to poll
 * soon: replying is the last action of pyfuse3's handlers, and then their task waits for the next
 * request, unless more tasks are waiting than pyfuse3 wants.
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

/* Time in ns that the thread may go on without giving other trio tasks a turn. */
#define BUSY_NS		1000000

/* pyfuse3's min_tasks: if more tasks than this are waiting, a task that has replied ends. */
#define WAITING		1

/**
 * struct python - the session and its channel, one at a time
 * @lock: guards all other members; other threads send notifications
 * @mount: the replacement of fuse_session_mount() in pyfuse3
 * @se: the session that pyfuse3 made
 * @fd: descriptor of the session
 * @open: there is a channel
 * @channel: the channel
 * @message: the slot that this process has, and the request in it
 * @found: @message is a request that libfuse has not read yet
 * @reply: length of the reply in the slot in bytes, 0: there is none
 * @thread: the thread of the loop
 * @waiting: number of tasks that wait in trio
 * @busy_until: CLOCK_MONOTONIC time in ns at which other trio tasks must get a turn
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

/* Delivers the reply in the slot, if there is one, and gives the slot back. */
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

/*
 * Delivers the reply in the slot, if there is one, and takes a request. Returns 0, -EINTR if there
 * is no request, or another error of channel_next().
 */
static int take(char *buffer, size_t size)
{
	int err = channel_next(&python.channel, &python.message, python.reply, buffer,
			       (uint32_t)size, NULL);

	python.reply = 0;
	if (err == -EBADMSG)
		fuse_log(FUSE_LOG_ERR, "efuse: the kernel refused a reply\n");
	return err == -EBADMSG || err == -EAGAIN ? -EINTR : err;
}

/* Reads for libfuse. pyfuse3 tries again after EINTR. */
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
		/* A request that fits no slot was put into @buf. */
		if (python.message.slot != EFUSE_NO_SLOT)
			memcpy(buf, python.message.request, python.message.length);
	}
	pthread_mutex_unlock(&python.lock);
	errno = -err;
	return length;
}

/*
 * May a message of the loop's thread stay in the slot until the thread polls for the next request?
 */
static bool may_stay(const struct fuse_out_header *out)
{
	return out->unique && out->len <= python.channel.slot_size &&
	       python.message.slot != EFUSE_NO_SLOT && !python.reply &&
	       python.waiting <= WAITING && !fuse_session_exited(python.se);
}

/* Writes for libfuse: replies by the loop's thread, and notifications by any thread. */
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
	/*
	 * A later message may be about the same inode, or wait for the process that gets the reply.
	 */
	if (python.open && python.reply)
		give_back();
	pthread_mutex_unlock(&python.lock);
	/*
	 * The kernel finds a request fastest on the descriptor that brought it. Only the loop's
	 * thread may use that one, since it is the thread that closes it.
	 */
	return writev(ours ? python.channel.fd : fd, iov, count);
}

/* Has no splicing: libfuse reads requests, with all data of a WRITE, into memory. */
static const struct fuse_custom_io python_io = {
	.writev = python_writev,
	.read = python_read,
};

/* pyfuse3 calls this instead of fuse_session_mount(). */
static int python_mount(struct fuse_session *se, const char *mountpoint)
{
	python.se = se;
	return fuse_session_mount(se, mountpoint);
}

/**
 * efuse_python_watch - find the session that pyfuse3 mounts from now on
 * @extension: path of pyfuse3's extension module
 *
 * Return: 0 or a negative errno: -ESRCH if pyfuse3 does not call fuse_session_mount(), -EXDEV if it
 *         uses another libfuse, -ENOSYS if libfuse is older than 3.14; or one of got_replace()
 */
int efuse_python_watch(const char *extension)
{
	void *handle = dlopen(extension, RTLD_LAZY | RTLD_NOLOAD);
	void *its;
	int err;

	python.se = NULL;
	if (!session_has_custom_io())
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
 * efuse_python_unwatch - undo efuse_python_watch()
 */
void efuse_python_unwatch(void)
{
	got_restore(&python.mount);
}

/* A forked child does not share the slots, and must not keep the channel open. */
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
	      session_custom_io(python.se, &python_io, python.fd);
	if (err)
		channel_close(&python.channel);
	return err;
}

/**
 * efuse_python_open - make the session that was found get its requests through a channel
 *
 * Must be called by the thread that runs pyfuse3's loop, before the loop runs.
 *
 * Return: 0, -ESRCH if no session was found, or another negative errno; see efuse_python_reason()
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
 * efuse_python_look - deliver the stored reply, and poll for a request
 *
 * Called by a task before it waits in trio. It polls only if another task waits there, because
 * otherwise pyfuse3 would start another task for each request. It also polls only for BUSY_NS in a
 * row.
 *
 * Return: true if libfuse has something to read. Otherwise the task must wait in trio, and then
 *         call efuse_python_rested()
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
	/* libfuse gets a request that is too large for the slot, and any error, when it reads. */
	if (err == -EINTR)
		python.waiting++;
	pthread_mutex_unlock(&python.lock);
	return err != -EINTR;
}

/**
 * efuse_python_rested - note that a task has returned from waiting in trio
 */
void efuse_python_rested(void)
{
	pthread_mutex_lock(&python.lock);
	python.waiting--;
	python.busy_until = now_ns() + BUSY_NS;
	pthread_mutex_unlock(&python.lock);
}

/**
 * efuse_python_close - close the channel, before pyfuse3 ends the session
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
 * efuse_python_reason - describe why there is no channel
 * @err: negative errno of efuse_python_watch() or efuse_python_open()
 *
 * Return: the reason, for people to read
 */
const char *efuse_python_reason(int err)
{
	switch (err) {
	case -ENOSYS:
		return "libfuse is older than 3.14";
	case -EXDEV:
		return "pyfuse3 contains its own libfuse";
	case -E2BIG:
	case -ESRCH:
		return "this version of pyfuse3 is not known";
	default:
		return channel_reason(err);
	}
}
