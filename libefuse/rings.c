// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Lets libfuse 3.18 or later take requests by io_uring, where libfuse and the module have it.
 *
 * Whether libfuse asks for rings is decided when the session is created, but its rings have a
 * thread for each CPU, and whether the daemon supports several threads shows only in the loop that
 * it calls. So libfuse is told to ask, and the handler of INIT takes that back unless the loop has
 * said before that the rings are right. This is done for the first session of a process only.
 */
#define _GNU_SOURCE
#include "rings.h"
#include "next.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* libfuse looks at this variable, and at the option io_uring. */
#define VARIABLE	"FUSE_URING_ENABLE"
#define OPTION		"io_uring"

/* FUSE_CAP_OVER_IO_URING of libfuse 3.18. */
#define OVER_IO_URING	(1UL << 31)

#ifndef SWITCH
#define SWITCH	"/sys/module/efuse/parameters/enable_uring"
#endif

/* Since libfuse 3.17. */
__attribute__((weak))
void fuse_unset_feature_flag(struct fuse_conn_info *conn, uint64_t flag);

static const struct fuse_session *session;
static void (*daemons_init)(void *userdata, struct fuse_conn_info *conn);
static atomic_bool asked, taken;

static void init(void *userdata, struct fuse_conn_info *conn)
{
	if (daemons_init)
		daemons_init(userdata, conn);
	if (!atomic_load(&taken))
		fuse_unset_feature_flag(conn, OVER_IO_URING);
}

/* Does the module let daemons use io_uring? */
static bool switched_on(void)
{
	int fd = open(SWITCH, O_RDONLY | O_CLOEXEC);
	char value = 'N';

	if (fd < 0)
		return false;
	if (read(fd, &value, 1) != 1)
		value = 'N';
	close(fd);
	return value == 'Y';
}

/* Was libfuse built with io_uring? Then its library is there. */
static bool built_in(void)
{
	void *library = dlopen("liburing.so.2", RTLD_LAZY | RTLD_NOLOAD);

	if (library)
		dlclose(library);
	return library && fuse_unset_feature_flag;
}

/* Have the user or the daemon chosen? */
static bool chosen(const struct fuse_args *args)
{
	int i;

	for (i = 0; i < args->argc; i++)
		if (strstr(args->argv[i], OPTION))
			return true;
	return getenv(VARIABLE);
}

EXPORT struct fuse_session *fuse_session_new_versioned(struct fuse_args *args,
						       const struct fuse_lowlevel_ops *op,
						       size_t op_size,
						       struct libfuse_version *version,
						       void *userdata)
{
	union {
		struct fuse_lowlevel_ops ops;
		char bytes[2048]; /* of a newer libfuse */
	} own;
	struct fuse_session *se;

	if (op_size < sizeof(own.ops.init) || op_size > sizeof(own) || chosen(args) ||
	    !built_in() || !switched_on() || atomic_exchange(&asked, true))
		return NEXT(fuse_session_new_versioned)(args, op, op_size, version, userdata);
	memcpy(own.bytes, op, op_size);
	daemons_init = op->init;
	own.ops.init = init;
	setenv(VARIABLE, "1", 1);
	se = NEXT(fuse_session_new_versioned)(args, &own.ops, op_size, version, userdata);
	unsetenv(VARIABLE);
	session = se;
	return se;
}

/**
 * rings_taken - serve a session by rings, if libfuse was told to ask for them
 * @se: a mounted session, before its INIT
 * @max_workers: the most threads that the daemon supports, 0: any number
 *
 * Return: true if libfuse's own loop will have rings, unless the kernel refuses them
 */
bool rings_taken(const struct fuse_session *se, unsigned int max_workers)
{
	if (!se || se != session ||
	    (max_workers && max_workers < (unsigned long)sysconf(_SC_NPROCESSORS_CONF)))
		return false;
	atomic_store(&taken, true);
	return true;
}
