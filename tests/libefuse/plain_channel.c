// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * An implementation of libefuse's channel.h on plain FUSE, with read(2) and write(2). It lets tests
 * of the loop run on any kernel, much faster than in a guest. It aborts if the loop misuses slots.
 */
#define _GNU_SOURCE
#include "channel.h"
#include "cancellable.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* With O_NONBLOCK, channel_next() looks for a request for this time before it gives up. */
#define LOOK_NS		50000

/* For each channel, by descriptor: whether a slot holds a request that a worker handles. */
static atomic_bool taken[1024][EFUSE_MAX_SLOTS];

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "plain_channel.c, line %d: %s\n", __LINE__, #what); \
			abort(); \
		} \
	} while (0)

static uint32_t slots_of(const struct channel *channel)
{
	return channel->size / channel->slot_size / 2;
}

static atomic_bool *slots_taken(const struct channel *channel)
{
	return taken[channel->fd];
}

int channel_open(struct channel *channel, int device, unsigned int cpu, uint32_t slots,
		 uint32_t slot_size)
{
	uint32_t i;

	(void)cpu;
	channel->slot_size = slot_size;
	channel->request_start = EFUSE_REQUEST_START((uint32_t)sysconf(_SC_PAGESIZE));
	channel->size = 2UL * slots * slot_size;
	/* A duplicate: FUSE takes a reply only on the device from which the request was read. */
	channel->fd = fcntl(device, F_DUPFD_CLOEXEC, 0);
	if (channel->fd < 0)
		return -errno;
	channel->memory = mmap(NULL, channel->size, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(channel->memory != MAP_FAILED && channel->fd < 1024);
	for (i = 0; i < slots; i++)
		atomic_store(&slots_taken(channel)[i], false);
	return 0;
}

void channel_close(struct channel *channel)
{
	munmap(channel->memory, channel->size);
	close(channel->fd);
}

/* Behaves as the kernel: returns 0, or the error with which the call for the next request fails. */
static int give_back(struct channel *channel, uint32_t slot, uint32_t reply_length)
{
	const char *reply = channel->memory + (2UL * slot + 1) * channel->slot_size;
	ssize_t written = reply_length;
	int err = 0;

	CHECK(slot < slots_of(channel) && reply_length <= channel->slot_size);
	if (reply_length)
		written = write(channel->fd, reply, reply_length);
	if (written < 0)
		err = errno == ENOENT ? 0 : errno == EINVAL ? -EBADMSG : -errno;
	CHECK(atomic_exchange(&slots_taken(channel)[slot], false));
	return err;
}

static uint32_t take(struct channel *channel)
{
	uint32_t i;

	for (i = 0; i < slots_of(channel); i++)
		if (!atomic_exchange(&slots_taken(channel)[i], true))
			return i;
	/* Each worker has at most one slot. */
	CHECK(!"a slot is free");
	return EFUSE_NO_SLOT;
}

int channel_reply(struct channel *channel, struct message *message, uint32_t reply_length)
{
	uint32_t slot = message->slot;

	message->slot = EFUSE_NO_SLOT;
	return give_back(channel, slot, reply_length);
}

const char *channel_reason(int err)
{
	return strerror(-err);
}

/* A request that fits no slot, and that the loop, which has a single thread, has not taken yet. */
static _Thread_local char left[2 << 20];
static _Thread_local size_t left_length;

/* Returns FUSE's error at the end of a session; with EFUSE_TEST_ABORTED, the other possible one. */
static int gone(void)
{
	return getenv("EFUSE_TEST_ABORTED") ? -ECONNABORTED : -ENODEV;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int channel_next(struct channel *channel, struct message *message, uint32_t reply_length,
		 char *buffer, uint32_t size, atomic_int *ending)
{
	uint32_t slot = message->slot;
	uint64_t end = now_ns() + LOOK_NS;
	ssize_t length;
	int err = 0;
	bool fits;

	CHECK(slot != EFUSE_NO_SLOT || !reply_length);
	message->slot = EFUSE_NO_SLOT;
	if (slot != EFUSE_NO_SLOT)
		err = give_back(channel, slot, reply_length);
	if (err)
		return err;
	if (left_length && buffer) {
		CHECK(size >= left_length);
		message->length = left_length;
		message->request = memcpy(buffer, left, left_length);
		message->reply = NULL;
		left_length = 0;
		return 0;
	}
	CHECK(!left_length);
	if (!buffer) {
		buffer = left;
		size = sizeof(left);
	}
	do {
		length = cancellable(SYS_read, channel->fd, (uintptr_t)buffer, size, ending);
	} while (length < 0 && (errno == ENOENT || (errno == EAGAIN && now_ns() < end)));
	if (length < 0)
		return errno == ENODEV ? gone() : -errno;
	fits = length + channel->request_start <= channel->slot_size;
	if (buffer == left && !fits) {
		left_length = length;
		return -EMSGSIZE;
	}
	message->length = length;
	message->request = buffer;
	message->reply = NULL;
	if (fits) {
		char *slot;

		message->slot = take(channel);
		slot = channel->memory + 2UL * message->slot * channel->slot_size;
		message->request = slot + channel->request_start;
		message->reply = slot + channel->slot_size;
		memcpy(message->request, buffer, length);
	}
	return 0;
}
