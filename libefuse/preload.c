// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into an unmodified libfuse daemon, this puts its mount on eFuse.
 *
 * libfuse opens /dev/fuse and mounts the type "fuse" or "fuse.<subtype>"; here
 * both become eFuse's. All else is as it was: the protocol is the same. Works
 * for daemons that mount as root and reach libc dynamically.
 *
 * EFUSE_REPORT_FD may name a socket: it is sent the path of what was mounted.
 */
#define _GNU_SOURCE
#include "next.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

static const char *device(const char *path)
{
	return path && !strcmp(path, "/dev/fuse") ? "/dev/efuse" : path;
}

/* The mode that open() was given behind flags, if it takes one. */
#define MODE(flags) \
	({ \
		mode_t mode_ = 0; \
		if ((flags) & (O_CREAT | __O_TMPFILE)) { \
			va_list ap_; \
			va_start(ap_, flags); \
			mode_ = (mode_t)va_arg(ap_, int); \
			va_end(ap_); \
		} \
		mode_; \
	})

EXPORT int open(const char *path, int flags, ...)
{
	mode_t mode = MODE(flags);

	return NEXT(open)(device(path), flags, mode);
}

EXPORT int open64(const char *path, int flags, ...)
{
	mode_t mode = MODE(flags);

	return NEXT(open64)(device(path), flags, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
	mode_t mode = MODE(flags);

	return NEXT(openat)(dir, device(path), flags, mode);
}

EXPORT int openat64(int dir, const char *path, int flags, ...)
{
	mode_t mode = MODE(flags);

	return NEXT(openat64)(dir, device(path), flags, mode);
}

EXPORT int __open_2(const char *path, int flags)
{
	return NEXT(__open_2)(device(path), flags);
}

EXPORT int __open64_2(const char *path, int flags)
{
	return NEXT(__open64_2)(device(path), flags);
}

EXPORT int __openat_2(int dir, const char *path, int flags)
{
	return NEXT(__openat_2)(dir, device(path), flags);
}

EXPORT int __openat64_2(int dir, const char *path, int flags)
{
	return NEXT(__openat64_2)(dir, device(path), flags);
}

/* Tell `efuse run` what was mounted, once. */
static void report(const char *path)
{
	const char *text = getenv("EFUSE_REPORT_FD");

	if (text && path) {
		send(atoi(text), path, strlen(path), MSG_NOSIGNAL);
		unsetenv("EFUSE_REPORT_FD");
	}
}

EXPORT int mount(const char *source, const char *target, const char *type,
		 unsigned long flags, const void *data)
{
	char ours[256];
	char *path;
	int result;
	int saved;

	if (!type || (strcmp(type, "fuse") && strncmp(type, "fuse.", 5)))
		return NEXT(mount)(source, target, type, flags, data);
	if (snprintf(ours, sizeof(ours), "e%s", type) >= (int)sizeof(ours)) {
		errno = EINVAL;
		return -1;
	}
	/* Before the mount: behind it, the path would lead to this very daemon. */
	path = realpath(target, NULL);
	result = NEXT(mount)(source, target, ours, flags, data);
	saved = errno;
	if (!result)
		report(path);
	free(path);
	errno = saved;
	return result;
}
