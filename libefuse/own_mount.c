// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Finds the mount that this process has just made, as efuse/fs/own_mount.py does.
 *
 * A path does not identify it: another mount may cover it, and a directory above it may be renamed,
 * as soon as it is mounted. So the mount is one of those that are new, and the connection that the
 * device serves tells which one. Kernels before 6.17 do not show the connection. There it is the
 * only new FUSE mount at the place, which is a descriptor and follows a rename.
 */
#define _GNU_SOURCE
#include "own_mount.h"

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __NR_statmount
#define __NR_statmount	457
#define __NR_listmount	458
#endif

#define ROOT		(~0ULL)		/* LSMT_ROOT */
#define WANTED		(1 | 0x10 | 0x20)	/* STATMOUNT_SB_BASIC, _MNT_POINT, _FS_TYPE */
#define MOST_LISTED	64
#define PATH_BYTES	4096

/* struct mnt_id_req */
struct request {
	uint32_t size, spare;
	uint64_t number, param;
};

/* struct statmount; members that are not used have no names. */
struct described {
	uint32_t size;
	uint32_t : 32;
	uint64_t mask;
	uint32_t major, minor;
	uint32_t before_type[3];
	uint32_t type;
	uint32_t before_point[17];
	uint32_t point;
	char before_text[400];
	char text[PATH_BYTES + 256];
};

_Static_assert(offsetof(struct described, major) == 16, "offset in struct statmount");
_Static_assert(offsetof(struct described, type) == 36, "offset in struct statmount");
_Static_assert(offsetof(struct described, point) == 108, "offset in struct statmount");
_Static_assert(offsetof(struct described, text) == 512, "offset in struct statmount");

/* Lists mounts with higher numbers than @after. Returns how many, or -1. */
static long list(uint64_t after, uint64_t found[MOST_LISTED])
{
	struct request request = { .size = sizeof(request), .number = ROOT, .param = after };

	return syscall(__NR_listmount, &request, found, (size_t)MOST_LISTED, 0UL);
}

static bool describe(uint64_t number, struct described *found)
{
	struct request request = { .size = sizeof(request), .number = number, .param = WANTED };

	return !syscall(__NR_statmount, &request, found, sizeof(*found), 0UL) &&
	       (found->mask & WANTED) == WANTED;
}

/**
 * own_mount_last - remember which mounts there are before the own one
 *
 * Return: the highest number of a mount that this process sees, for own_mount_number(); 0 if the
 * kernel does not list mounts
 */
uint64_t own_mount_last(void)
{
	uint64_t found[MOST_LISTED], last = 0;
	long count;

	while ((count = list(last, found)) > 0)
		last = found[count - 1];
	return count < 0 ? 0 : last;
}

static bool is_of_fuse(const char *type)
{
	return !strcmp(type, "efuse") || !strcmp(type, "fuse") || !strcmp(type, "fuseblk");
}

/* The connection that a descriptor serves, or -1 if the kernel does not show it. */
static long long connection_of(int device)
{
	long long connection = -1;
	char path[64], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", device);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (connection < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "fuse_connection: %lld", &connection) != 1)
			connection = -1;
	fclose(file);
	return connection;
}

/* The present path of the directory that was mounted on. */
static bool path_of(int place, char path[PATH_BYTES])
{
	char link[64];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", place);
	length = readlink(link, path, PATH_BYTES);
	if (length <= 0 || length == PATH_BYTES)
		return false;
	path[length] = 0;
	return true;
}

/* Whether the file system that the descriptor serves is mounted, and not aborted. */
static bool is_served(int device)
{
	struct pollfd polled = { .fd = device };

	return poll(&polled, 1, 0) >= 0 && !(polled.revents & (POLLERR | POLLNVAL));
}

/**
 * own_mount_number - find the mount that a device serves
 * @last: result of own_mount_last() before the mount
 * @place: O_PATH descriptor of the directory that was mounted on, opened before the mount; or -1
 * @device: descriptor that serves the mount
 *
 * Does not ask the daemon.
 *
 * Return: the unique number of the mount, which is never used for another one; 0 if it cannot be
 * told which mount it is
 */
uint64_t own_mount_number(uint64_t last, int place, int device)
{
	long long connection = connection_of(device), first = connection, here;
	uint64_t found[MOST_LISTED], number = 0;
	struct described seen;
	char path[PATH_BYTES];
	long count, i;

	if (!last || device < 0 || (connection < 0 && !path_of(place, path)))
		return 0;
	while ((count = list(last, found)) > 0) {
		for (i = 0; i < count; i++) {
			if (!describe(found[i], &seen) || !is_of_fuse(seen.text + seen.type))
				continue;
			if (connection < 0 && strcmp(seen.text + seen.point, path))
				continue;
			here = (long long)seen.major << 20 | seen.minor;
			if (!number && (connection < 0 || here == connection)) {
				/* Propagation and bind mounts make copies later. */
				number = found[i];
				first = here;
			} else if (connection < 0 && here != first) {
				return 0;
			}
		}
		last = found[count - 1];
	}
	/* Checked last: if it is served now, no other connection had its number until now. */
	return count == 0 && is_served(device) ? number : 0;
}
