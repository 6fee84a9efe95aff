/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A channel: a descriptor of /dev/efuse whose requests and replies lie in shared memory. */
#ifndef EFUSE_CHANNEL_H
#define EFUSE_CHANNEL_H

#include <linux/efuse.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/**
 * struct channel - one CPU's
 * @fd: its descriptor; read(2) and write(2) work on it, too
 * @slot_size: bytes of a slot's room for a request, and of that for its reply
 * @request_start: where in its room a request begins: see EFUSE_REQUEST_START
 * @size: bytes of @memory
 * @memory: the slots
 */
struct channel {
	int fd;
	uint32_t slot_size;
	uint32_t request_start;
	size_t size;
	char *memory;
};

/**
 * struct message - a request that was brought
 * @slot: where it lies, or EFUSE_NO_SLOT
 * @length: of it in bytes
 * @request: it
 * @reply: where a reply of up to the channel's slot_size may be put; NULL without a slot
 */
struct message {
	uint32_t slot;
	uint32_t length;
	char *request;
	char *reply;
};

int channel_open(struct channel *channel, int device, unsigned int cpu, uint32_t slots,
		 uint32_t slot_size);
void channel_close(struct channel *channel);
int channel_next(struct channel *channel, struct message *message, uint32_t reply_length,
		 char *buffer, uint32_t size, atomic_int *ending);
int channel_reply(struct channel *channel, struct message *message, uint32_t reply_length);
const char *channel_reason(int err);

#endif
