// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded into an unmodified libfuse daemon, this library makes its mount an eFuse mount.
 *
 * libfuse opens /dev/fuse and mounts the type "fuse" or "fuse.<subtype>"; both are replaced by
 * those of eFuse. All else stays the same, because the protocol is the same. This works for daemons
 * that mount as root and call libc dynamically.
 *
 * The type fuseblk has no counterpart in eFuse and is not changed.
 *
 * EFUSE_REPORT_FD may name a socket. Each mount is reported there. Each program that the daemon
 * starts has that socket too, so the reader checks the sender. A program that mounts the type
 * "efuse" itself knows eFuse: its mounts are reported as its own.
 */
#define _GNU_SOURCE
#include "next.h"
#include "own_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The type of a report of a mount by a program that knows eFuse. */
#define OWN	"own"

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

static const char *device(const char *path)
{
	return path && !strcmp(path, "/dev/fuse") ? "/dev/efuse" : path;
}

/* The mode argument of open() after the flags, if the flags require one. */
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

/*
 * EFUSE_REPORT_FD is FD:INODE. The daemon may have closed the descriptor and reused its number for
 * something else, which has another inode.
 */
static int report_fd(void)
{
	const char *text = getenv("EFUSE_REPORT_FD");
	unsigned long long inode;
	struct stat found;
	int fd;

	if (!text || sscanf(text, "%d:%llu", &fd, &inode) != 2)
		return -1;
	if (fstat(fd, &found) || !S_ISSOCK(found.st_mode) || found.st_ino != inode)
		return -1;
	return fd;
}

/*
 * Reports a mount to `efuse run`: its type or "own", its unique number, and the path on which it was
 * mounted. A mount that cannot be told from another one is not reported as the daemon's, because
 * `efuse run` would attach its handlers to the other one. It then finds the mount by itself.
 */
static void report(int fd, const char *type, uint64_t number, const char *path)
{
	char *text;
	int length;

	if (!path || (!number && strcmp(type, OWN)))
		return;
	length = asprintf(&text, "%s %llu %s", type, (unsigned long long)number, path);
	if (length < 0)
		return;
	send(fd, text, (size_t)length, MSG_NOSIGNAL);
	free(text);
}

/* The descriptor in the options of a mount, or -1. */
static int device_of(const char *options)
{
	const char *found = options;
	int fd;

	while (found && strncmp(found, "fd=", 3)) {
		found = strchr(found, ',');
		found = found ? found + 1 : NULL;
	}
	return found && sscanf(found, "fd=%d", &fd) == 1 ? fd : -1;
}

/*
 * The kernel's FUSE accepts only /dev/fuse, but the daemon has opened /dev/efuse. Puts an open
 * /dev/fuse under the same descriptor number.
 */
static void make_plain(const char *options)
{
	int fd = device_of(options), plain, flags;
	struct stat given, ours;

	if (fd < 0 || fstat(fd, &given) || stat("/dev/efuse", &ours) ||
	    !S_ISCHR(given.st_mode) || given.st_rdev != ours.st_rdev)
		return;
	flags = fcntl(fd, F_GETFD);
	plain = NEXT(open)("/dev/fuse", fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
	if (plain < 0)
		return;
	dup3(plain, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	close(plain);
}

/* Whether a mount at @path can hide from this process what /proc shows of it. */
static bool hides_proc(const char *path)
{
	return !strncmp(path, "/proc", 5) && (!path[5] || path[5] == '/');
}

static bool is_of_type(const char *type, const char *name)
{
	size_t length = strlen(name);

	return type && !strncmp(type, name, length) && (!type[length] || type[length] == '.');
}

EXPORT int mount(const char *source, const char *target, const char *type,
		 unsigned long flags, const void *data)
{
	const char *wanted = type, *told = type;
	char ours[256];
	char *path;
	int result, saved, place = -1, fd;
	uint64_t last = 0;

	if (is_of_type(type, "fuse")) {
		if (snprintf(ours, sizeof(ours), "e%s", type) >= (int)sizeof(ours)) {
			errno = EINVAL;
			return -1;
		}
		wanted = told = ours;
	} else if (is_of_type(type, "fuseblk")) {
		make_plain(data);
	} else if (is_of_type(type, "efuse")) {
		told = OWN;
	} else {
		return NEXT(mount)(source, target, type, flags, data);
	}
	/* Resolve the path before the mount: afterwards it would lead to this daemon. */
	fd = report_fd();
	path = fd < 0 ? NULL : realpath(target, NULL);
	if (path && hides_proc(path)) {
		/* own_mount_number() and `efuse run` read there, and would wait for this daemon. */
		fprintf(stderr, "efuse: %s cannot be mounted on: efuse run reads /proc (EBUSY)\n", path);
		free(path);
		errno = EBUSY;
		return -1;
	}
	if (path) {
		place = NEXT(open)(path, O_PATH | O_CLOEXEC);
		last = own_mount_last();
	}
	result = NEXT(mount)(source, target, wanted, flags, data);
	saved = errno;
	if (!result && path)
		report(fd, told, own_mount_number(last, place, device_of(data)), path);
	if (place >= 0)
		close(place);
	free(path);
	errno = saved;
	return result;
}

/* fusermount3 looks for a mount of the type fuse before it unmounts a dead daemon's mount. */
EXPORT struct mntent *getmntent(FILE *file)
{
	struct mntent *found = NEXT(getmntent)(file);

	if (found && is_of_type(found->mnt_type, "efuse"))
		found->mnt_type++;
	return found;
}
