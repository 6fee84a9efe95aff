// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A library to preload into passthrough_ll. In each reply it sets st_mtim to the time when the
 * daemon began to answer, by CLOCK_MONOTONIC: so fstat(2) tells how long the request waited.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <time.h>

typedef int status_fn(int dir, const char *path, struct stat *st, int flags);

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
	static status_fn *next;
	struct timespec begun;
	int result;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	/* Threads may race here: all of them store the same value. */
	if (!__atomic_load_n(&next, __ATOMIC_RELAXED))
		__atomic_store_n(&next, (status_fn *)dlsym(RTLD_NEXT, "fstatat"), __ATOMIC_RELAXED);
	result = next(dir, path, st, flags);
	if (!result)
		st->st_mtim = begun;
	return result;
}

/* The name in programs built with _FILE_OFFSET_BITS=64. On x86-64 both functions are the same. */
int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return fstatat(dir, path, (struct stat *)st, flags);
}
