// SPDX-License-Identifier: GPL-2.0
/* Instantiates the trace events that trace.h declares. */
#include "core_i.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* Traces a request that got its answer @ret without a struct efuse_req. */
void efuse_trace(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args, ssize_t ret)
{
	struct efuse_req req __uninitialized;

	efuse_req_init(&req, ec, fm, args);
	trace_efuse_request(&req, ret);
}
