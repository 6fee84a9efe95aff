// SPDX-License-Identifier: LGPL-2.1-or-later
/* See channel.h; the kernel's half is kernel_patches/src/channel.c. */
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
 * The kernel hands a slot from one worker to another, which ThreadSanitizer cannot see.
 * All slots pass for one here: that hides nothing, since a worker uses its own alone.
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
 * @channel: filled
 * @device: an open /dev/efuse that belongs to a mount
 * @cpu: whose requests it gets first; one that the machine may have
 * @slots: how many requests can be worked on at once, 1 to EFUSE_MAX_SLOTS
 * @slot_size: bytes; a multiple of the page size, two or more
 *
 * Return: 0 or a negative errno: -ENOTTY for a module without channels, -EBUSY if the
 *         CPU has one
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
 * channel_close - end a channel: what it brought and nobody answered fails
 * @channel: the channel; nobody may use it any more
 */
void channel_close(struct channel *channel)
{
	munmap(channel->memory, channel->size);
	close(channel->fd);
}

/**
 * channel_next - deliver a reply, and wait for a request
 * @channel: the channel
 * @message: what the reply is to, or one without a slot; then the request
 * @reply_length: bytes in @message->reply; 0: there is none, or it was sent by write(2)
 * @buffer: for a request that fits no slot; NULL: such a one is left with -EMSGSIZE
 * @size: of it in bytes, as large as read(2) would need
 * @ending: as of cancellable()
 *
 * Return: 0 or a negative errno. With -EINTR the reply was delivered, and with -EBADMSG
 *         it was none; @message has no slot then. -EAGAIN, of a descriptor with O_NONBLOCK,
 *         and -EMSGSIZE are as -EINTR.
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
 * channel_reply - deliver a reply, and no more
 * @channel: the channel
 * @message: what the reply is to; has no slot then
 * @reply_length: bytes in @message->reply; 0: there is none, or it was sent by write(2)
 *
 * Return: 0 or a negative errno; -EBADMSG: it was none
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
 * channel_reason - why there is no channel, in words
 * @err: what channel_open() has returned
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
		return "the mount's channels are taken";
	default:
		return strerror(-err);
	}
}
