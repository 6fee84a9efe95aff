/* SPDX-License-Identifier: GPL-2.0 */
/* The tracepoint efuse:efuse_request, which fires when a request is answered. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM efuse

#if !defined(_FS_FUSE_EFUSE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _FS_FUSE_EFUSE_TRACE_H

#include <linux/tracepoint.h>

#include "core_i.h"

#define EFUSE_SHOW_ANSWERED_BY(answered_by)				\
	__print_symbolic(answered_by,					\
			 { EFUSE_PATH_DAEMON, "daemon" },		\
			 { EFUSE_PATH_DIRECT, "direct" },		\
			 { EFUSE_PATH_CACHE, "cache" },			\
			 { EFUSE_PATH_DEVICE, "device" },		\
			 { EFUSE_ANSWERED_BY_HANDLER, "handler" },	\
			 { EFUSE_ANSWERED_BY_REFUSAL, "refusal" },	\
			 { EFUSE_ANSWERED_BY_KERNEL, "kernel" })

#define EFUSE_SHOW_REASON(reason)					\
	__print_symbolic(reason,					\
			 { 0, "-" },					\
			 { EFUSE_MISS, "miss" },			\
			 { EFUSE_STALE, "stale" },			\
			 { EFUSE_EXPIRED, "expired" },			\
			 { EFUSE_OTHER_UID, "other_uid" },		\
			 { EFUSE_NOT_ALIVE, "not_alive" },		\
			 { EFUSE_NO_HANDLER, "no_handler" },		\
			 { EFUSE_DECLINED, "declined" },		\
			 { EFUSE_INVALID_VERDICT, "invalid_verdict" },			\
			 { EFUSE_UNMAPPED, "unmapped" },		\
			 { EFUSE_FAILED, "failed" })

/*
 * @req: the request; @req->args->efuse has what answered it (@answered_by), and why it went to the
 *	 daemon (@reason)
 * @ret: result for the caller: bytes, 0 or a negative errno
 */
TRACE_EVENT(efuse_request,
	TP_PROTO(const struct efuse_req *req, ssize_t ret),

	TP_ARGS(req, ret),

	TP_STRUCT__entry(
		__field(u32,		connection)
		__field(u32,		opcode)
		__field(u64,		nodeid)
		__field(u64,		ns)
		__field(ssize_t,	ret)
		__field(u8,		answered_by)
		__field(u8,		reason)
	),

	TP_fast_assign(
		__entry->connection	= req->ec->id;
		__entry->opcode		= req->args->opcode;
		__entry->nodeid		= req->args->nodeid;
		/* 0 if the tracepoint was off when the request came. */
		__entry->ns		= req->args->efuse.begun_ns ?
					  ktime_get_ns() - req->args->efuse.begun_ns : 0;
		__entry->ret		= ret;
		__entry->answered_by	= req->args->efuse.answered_by;
		__entry->reason		= req->args->efuse.reason;
	),

	TP_printk("connection %u opcode %u nodeid %llu answered_by %s reason %s ret %zd ns %llu",
		  __entry->connection, __entry->opcode, __entry->nodeid,
		  EFUSE_SHOW_ANSWERED_BY(__entry->answered_by),
		  EFUSE_SHOW_REASON(__entry->reason), __entry->ret, __entry->ns)
);

#endif /* _FS_FUSE_EFUSE_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH efuse/core
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
