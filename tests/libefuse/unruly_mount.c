// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Preloaded after libefuse-preload.so, this library mounts plain FUSE in place of eFuse. UNRULY says
 * what happens as soon as that is mounted: "covered" by another FUSE mount, or a directory above it
 * "renamed". If HIDDEN is set, the connection of a descriptor cannot be read, as before Linux 6.17.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static int mounted(const char *target, int device)
{
	char options[64];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	return (int)syscall(SYS_mount, "x", target, "fuse", 0UL, options);
}

int mount(const char *source, const char *target, const char *type, unsigned long flags,
	  const void *data)
{
	const char *how = getenv("UNRULY");
	int device, other;

	if (strncmp(type, "efuse", 5))
		return (int)syscall(SYS_mount, source, target, type, flags, data);
	if (sscanf(data, "fd=%d", &device) != 1 || mounted(target, device))
		return -1;
	if (!strcmp(how, "covered")) {
		other = open("/dev//fuse", O_RDWR);
		return other < 0 || mounted(target, other);
	}
	if (!strcmp(how, "renamed"))
		return rename(getenv("ABOVE"), getenv("RENAMED"));
	return 0;
}

FILE *fopen(const char *path, const char *mode)
{
	FILE *(*next)(const char *, const char *) =
		(FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");

	if (getenv("HIDDEN") && strstr(path, "/fdinfo/")) {
		errno = ENOENT;
		return NULL;
	}
	return next(path, mode);
}
