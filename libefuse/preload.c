// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into an unmodified libfuse daemon, this library makes its session loop use channels.
 *
 * All of libfuse's multi-threaded loops call one function. A daemon that asks for a single thread
 * keeps libfuse's own loop, because it may not support several threads.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "next.h"
#include "session.h"

#include <pthread.h>
#include <stdlib.h>

/* libfuse's default, which does not tell how many threads the daemon supports. */
#define DEFAULT_THREADS	10

/* A daemon that sets more than libfuse allows does not mean to limit them. */
#define MAX_THREADS	100000

int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config);
int efuse_loop_of_version(struct fuse_session *se, struct fuse_loop_config *config);

/* The number of threads that the daemon has set for a configuration, which is opaque. */
struct limit {
	const struct fuse_loop_config *config;
	unsigned int threads;
	struct limit *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct limit *limits;
static bool lost; /* one could not be stored */

static struct limit **limit_of(const struct fuse_loop_config *config)
{
	struct limit **at = &limits;

	while (*at && (*at)->config != config)
		at = &(*at)->next;
	return at;
}

EXPORT void fuse_loop_cfg_set_max_threads(struct fuse_loop_config *config, unsigned int value)
{
	struct limit **at;

	pthread_mutex_lock(&lock);
	at = limit_of(config);
	if (!*at)
		*at = calloc(1, sizeof(**at));
	if (*at) {
		(*at)->config = config;
		(*at)->threads = value;
	} else {
		lost = true;
	}
	pthread_mutex_unlock(&lock);
	NEXT_OF(fuse_loop_cfg_set_max_threads, __builtin_return_address(0))(config, value);
}

EXPORT void fuse_loop_cfg_destroy(struct fuse_loop_config *config)
{
	struct limit **at, *gone;

	pthread_mutex_lock(&lock);
	at = limit_of(config);
	gone = *at;
	if (gone)
		*at = gone->next;
	pthread_mutex_unlock(&lock);
	free(gone);
	NEXT_OF(fuse_loop_cfg_destroy, __builtin_return_address(0))(config);
}

/* The most threads that a daemon supports, as far as it has told; 0: any number. */
static unsigned int max_threads(const struct fuse_loop_config *config)
{
	const struct limit *limit;
	unsigned int threads = DEFAULT_THREADS;

	pthread_mutex_lock(&lock);
	limit = *limit_of(config);
	if (limit)
		threads = limit->threads;
	else if (lost)
		threads = 1;
	pthread_mutex_unlock(&lock);
	if (threads == DEFAULT_THREADS || threads > MAX_THREADS)
		return 0;
	return threads ? threads : 1; /* libfuse's first thread is there with a maximum of 0, too */
}

static int loop(struct fuse_session *se, struct fuse_loop_config *config, const void *caller)
{
	int result;

	if (session_served(se, max_threads(config), &result))
		return result;
	return NEXT_OF(fuse_session_loop_mt_312, caller)(se, config);
}

EXPORT int fuse_session_loop_mt_312(struct fuse_session *se, struct fuse_loop_config *config)
{
	return loop(se, config, __builtin_return_address(0));
}

/*
 * The same function under the symbol version that programs compiled for libfuse 3.12 and later use.
 */
EXPORT __attribute__((symver("fuse_session_loop_mt@@FUSE_3.12")))
int efuse_loop_of_version(struct fuse_session *se, struct fuse_loop_config *config)
{
	return loop(se, config, __builtin_return_address(0));
}
