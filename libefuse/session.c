// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into an unmodified libfuse daemon, this gives its session's loop channels.
 *
 * All of libfuse's multi-threaded loops end in one of these. A daemon that asks for a
 * single thread keeps libfuse's own loop: it need not bear more than one. Where there are
 * no channels libfuse's loop goes on, and standard error says why.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "next.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libfuse's own default. */
#define MAX_WORKERS	10

int fuse_session_loop_mt_31(struct fuse_session *se, int clone_fd);
int fuse_session_loop_mt_32(struct fuse_session *se, struct fuse_loop_config *config);
int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config);

/* Returns whether the session was served; @result: how it ended. */
static bool served(struct fuse_session *se, int *result)
{
	const char *wanted = getenv("EFUSE_CHANNELS");
	bool started;

	if (wanted && !strcmp(wanted, "0"))
		return false;
	if (!fuse_session_custom_io) {
		fprintf(stderr, "efuse: no channels: libfuse is older than 3.14\n");
		return false;
	}
	*result = loop_channels(se, MAX_WORKERS, &started);
	if (!started)
		fprintf(stderr, "efuse: no channels: %s\n", strerror(-*result));
	return started;
}

EXPORT int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config)
{
	int result;

	return served(se, &result) ? result : NEXT(fuse_session_loop_mt_312)(se, config);
}

EXPORT int fuse_session_loop_mt_32(struct fuse_session *se, struct fuse_loop_config *config)
{
	int result;

	return served(se, &result) ? result : NEXT(fuse_session_loop_mt_32)(se, config);
}

EXPORT int fuse_session_loop_mt_31(struct fuse_session *se, int clone_fd)
{
	int result;

	return served(se, &result) ? result : NEXT(fuse_session_loop_mt_31)(se, clone_fd);
}
