/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A channel: a descriptor of /dev/efuse whose requests and replies are in shared memory. */
#ifndef EFUSE_CHANNEL_H
#define EFUSE_CHANNEL_H

#include <linux/efuse.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/**
 * struct channel - the channel of one CPU
 * @fd: the descriptor; read(2) and write(2) work on it too
 * @slot_size: bytes in a slot for a request, and as many for its reply
 * @request_start: offset of a request in the slot, in bytes; see EFUSE_REQUEST_START
 * @size: size of @memory in bytes
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
 * struct message - a request that was received
 * @slot: its slot, or EFUSE_NO_SLOT
 * @length: length of the request in bytes
 * @request: the request
 * @reply: room for a reply of at most the channel's slot_size bytes; NULL without a slot
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
