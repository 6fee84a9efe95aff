// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into an unmodified libfuse daemon, this library makes its session loop use channels, or
 * rings of io_uring (see rings.c).
 *
 * All of libfuse's multi-threaded loops call one function. A daemon that asks for a single thread
 * keeps libfuse's own loop, because it may not support several threads.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "next.h"
#include "rings.h"
#include "session.h"

#include <stdatomic.h>

/* libfuse's default, which does not tell how many threads the daemon supports. */
#define DEFAULT_THREADS	10

int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config);
int efuse_loop_of_version(struct fuse_session *se, struct fuse_loop_config *config);

/*
 * The number of threads that the daemon set last, and the configuration it was for, which is
 * opaque.
 */
static _Atomic(struct fuse_loop_config *) configured;
static atomic_uint max_threads;

EXPORT void fuse_loop_cfg_set_max_threads(struct fuse_loop_config *config, unsigned int value)
{
	atomic_store(&configured, config);
	atomic_store(&max_threads, value);
	NEXT(fuse_loop_cfg_set_max_threads)(config, value);
}

EXPORT int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config)
{
	unsigned int threads = 0;
	int result;

	if (config && atomic_load(&configured) == config)
		threads = atomic_load(&max_threads);
	if (threads == DEFAULT_THREADS)
		threads = 0;
	if (!rings_taken(se, threads) && session_served(se, threads, &result))
		return result;
	return NEXT(fuse_session_loop_mt_312)(se, config);
}

/*
 * The same function under the symbol version that programs compiled for libfuse 3.12 and later use.
 */
EXPORT __attribute__((symver("fuse_session_loop_mt@@FUSE_3.12")))
int efuse_loop_of_version(struct fuse_session *se, struct fuse_loop_config *config)
{
	return fuse_session_loop_mt_312(se, config);
}
