/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* FUSE over io_uring for unmodified daemons whose loop has several threads. */
#ifndef EFUSE_RINGS_H
#define EFUSE_RINGS_H

#include "session.h"

struct libfuse_version;

/* Since libfuse 3.17. */
struct fuse_session *fuse_session_new_versioned(struct fuse_args *args,
						const struct fuse_lowlevel_ops *op, size_t op_size,
						struct libfuse_version *version, void *userdata);

bool rings_taken(const struct fuse_session *se, unsigned int max_workers);

#endif
