// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into passthrough_ll: st_mtim of each file is when the daemon began to answer, by
 * CLOCK_MONOTONIC. So whoever asks with fstat(2) learns how long the request waited to be taken.
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
	/* Whoever comes first: all find the same. */
	if (!__atomic_load_n(&next, __ATOMIC_RELAXED))
		__atomic_store_n(&next, (status_fn *)dlsym(RTLD_NEXT, "fstatat"), __ATOMIC_RELAXED);
	result = next(dir, path, st, flags);
	if (!result)
		st->st_mtim = begun;
	return result;
}

/* Its name in programs that were compiled with _FILE_OFFSET_BITS=64: on x86-64 both are the same. */
int fstatat64(int dir, const char *path, struct stat64 *st, int flags)
{
	return fstatat(dir, path, (struct stat *)st, flags);
}
