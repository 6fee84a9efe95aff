// SPDX-License-Identifier: LGPL-2.1-or-later
/* See channel.h. The kernel's side is kernel_patches/src/transport/channel.c. */
#define _GNU_SOURCE
#include "channel.h"
#include "cancellable.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The kernel hands a slot from one worker to another, which ThreadSanitizer cannot see. All slots
 * count as one object here. That hides no race, because a worker uses only its own slot.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define SLOTS_TAKEN(channel)	__tsan_acquire((channel)->memory)
#define SLOTS_GIVEN(channel)	__tsan_release((channel)->memory)
#else
#define SLOTS_TAKEN(channel)	((void)0)
#define SLOTS_GIVEN(channel)	((void)0)
#endif

/**
 * channel_open - make the channel of a CPU
 * @channel: filled in
 * @device: an open /dev/efuse that belongs to a mount
 * @cpu: the CPU whose requests the channel gets first; must be a possible CPU
 * @slots: number of requests that can be in work at the same time, 1 to EFUSE_MAX_SLOTS
 * @slot_size: bytes, a multiple of the page size and at least two pages
 *
 * Return: 0 or a negative errno: -ENOTTY if the module has no channels, -EBUSY if the CPU has a
 *         channel already
 */
int channel_open(struct channel *channel, int device, unsigned int cpu, uint32_t slots,
		 uint32_t slot_size)
{
	struct efuse_channel_setup setup = { cpu, slots, slot_size, 0 };
	uint32_t mount = (uint32_t)device;
	int err;

	channel->slot_size = slot_size;
	channel->request_start = EFUSE_REQUEST_START((uint32_t)sysconf(_SC_PAGESIZE));
	channel->size = 2UL * slots * slot_size;
	channel->fd = open("/dev/efuse", O_RDWR | O_CLOEXEC);
	if (channel->fd < 0)
		return -errno;
	if (ioctl(channel->fd, FUSE_DEV_IOC_CLONE, &mount) ||
	    ioctl(channel->fd, EFUSE_IOC_CHANNEL, &setup))
		goto out_close;
	channel->memory = mmap(NULL, channel->size, PROT_READ | PROT_WRITE, MAP_SHARED,
			       channel->fd, 0);
	if (channel->memory != MAP_FAILED)
		return 0;

out_close:
	err = -errno;
	close(channel->fd);
	return err;
}

/**
 * channel_close - close a channel; requests that it has received and not answered fail
 * @channel: the channel, which must not be used any more
 */
void channel_close(struct channel *channel)
{
	munmap(channel->memory, channel->size);
	close(channel->fd);
}

/**
 * channel_next - deliver a reply, and wait for a request
 * @channel: the channel
 * @message: the request that the reply is to, or a message without a slot; then the new request
 * @reply_length: length of the reply in @message->reply in bytes; 0: there is no reply, or it was
 *         sent by write(2)
 * @buffer: memory for a request that fits no slot; NULL: leave such a request, with -EMSGSIZE
 * @size: size of @buffer in bytes, at least what read(2) would need
 * @ending: see cancellable()
 *
 * Return: 0 or a negative errno. -EINTR, -EAGAIN (of a descriptor with O_NONBLOCK), -EMSGSIZE: the
 *         reply was delivered. -EBADMSG: the reply was not valid. In each of these cases @message
 *         has no slot afterwards.
 */
int channel_next(struct channel *channel, struct message *message, uint32_t reply_length,
		 char *buffer, uint32_t size, atomic_int *ending)
{
	struct efuse_next next = {
		.slot = message->slot,
		.length = reply_length,
		.buffer = (uintptr_t)buffer,
		.size = size,
		.flags = buffer ? 0 : EFUSE_NEXT_SMALL,
	};

	message->slot = EFUSE_NO_SLOT;
	SLOTS_GIVEN(channel);
	if (cancellable(SYS_ioctl, channel->fd, EFUSE_IOC_NEXT, (uintptr_t)&next, ending))
		return -errno;
	SLOTS_TAKEN(channel);
	message->slot = next.slot;
	message->length = next.length;
	message->request = buffer;
	message->reply = NULL;
	if (next.slot != EFUSE_NO_SLOT) {
		char *slot = channel->memory + 2UL * next.slot * channel->slot_size;

		message->request = slot + channel->request_start;
		message->reply = slot + channel->slot_size;
	}
	return 0;
}

/**
 * channel_reply - deliver a reply without waiting for a request
 * @channel: the channel
 * @message: the request that the reply is to; has no slot afterwards
 * @reply_length: length of the reply in @message->reply in bytes; 0: there is no reply, or it was
 *         sent by write(2)
 *
 * Return: 0 or a negative errno; -EBADMSG if the reply was not valid
 */
int channel_reply(struct channel *channel, struct message *message, uint32_t reply_length)
{
	struct efuse_next next = {
		.slot = message->slot,
		.length = reply_length,
		.flags = EFUSE_NEXT_REPLY,
	};

	message->slot = EFUSE_NO_SLOT;
	return ioctl(channel->fd, EFUSE_IOC_NEXT, &next) ? -errno : 0;
}

/**
 * channel_reason - describe why there is no channel
 * @err: negative errno of channel_open()
 *
 * Return: the reason, for people to read
 */
const char *channel_reason(int err)
{
	switch (err) {
	case -ENOENT:
	case -ENXIO:
	case -ENODEV:
		return "the kernel has no eFuse";
	case -EINVAL:
		return "the mount is not of the type efuse";
	case -ENOTTY:
		return "the kernel's eFuse is older than channels";
	case -EBUSY:
		return "another process uses the mount's channels";
	default:
		return strerror(-err);
	}
}
