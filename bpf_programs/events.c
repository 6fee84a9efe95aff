// SPDX-License-Identifier: GPL-2.0
/* Puts events into the ring `events`. Does nothing while there is no listener. */
#include "efuse.bpf.h"

static inline int event_wanted(void)
{
	int zero = 0;
	u32 *on = listening.lookup(&zero);

	return on && *on;
}

/* Emits an event if there is a listener. The arguments are the fields of struct efuse_event. */
static inline void event_emit(u32 kind, u16 opcode, u16 arg, u64 nodeid, u64 offset,
			      u64 length, u64 epoch)
{
	struct efuse_event *event;
	int zero = 0;
	u64 *dropped;

	if (!event_wanted())
		return;
	event = events.ringbuf_reserve(sizeof(*event));
	if (!event) {
		dropped = lost.lookup(&zero);
		if (dropped)
			lock_xadd(dropped, 1);
		return;
	}
	event->kind = kind;
	event->opcode = opcode;
	event->arg = arg;
	event->nodeid = nodeid;
	event->offset = offset;
	event->length = length;
	event->epoch = epoch;
	event->time_ns = bpf_ktime_get_ns();
	events.ringbuf_submit(event, 0);
}

/* A request has changed the data of a file. The range is known only of a WRITE. */
static inline int event_changed(struct efuse_req *req, u16 path)
{
	u64 nodeid, offset = 0, length = 0;
	u32 opcode;

	if (!event_wanted())
		return 0;
	nodeid = efuse_req_ended(req);
	if (!nodeid)
		return 0;
	opcode = efuse_req_opcode(req);
	if (opcode == FUSE_WRITE) {
		offset = efuse_req_offset(req);
		length = efuse_req_size(req);
	}
	event_emit(EFUSE_EVENT_EPOCH, opcode, path, nodeid, offset, length, efuse_req_epoch(req));
	return 0;
}

/* The daemon has carried out the request. */
int reply(struct efuse_reply_ctx *ctx)
{
	return event_changed(ctx->req, EFUSE_PATH_DAEMON);
}

/* The kernel has carried out the request, on backing files. */
int written(struct efuse_req *req)
{
	return event_changed(req, EFUSE_PATH_DIRECT);
}

/* The daemon has notified the kernel of a change. */
int notify(struct efuse_notify *n)
{
	if (event_wanted())
		event_emit(EFUSE_EVENT_EPOCH, 0, efuse_notify_code(n), efuse_notify_nodeid(n),
			   0, 0, efuse_notify_epoch(n));
	return 0;
}
