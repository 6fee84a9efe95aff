/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The functions of libfuse that libefuse uses. All are weak, for two reasons: the library is
 * preloaded into every program that a daemon starts, and most of these have no libfuse and never
 * call it; and a libfuse older than 3.14 does not have all of the functions.
 *
 * A library that was compiled with the headers of one libfuse may meet another one at run time.
 */
#ifndef EFUSE_SESSION_H
#define EFUSE_SESSION_H

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <stdbool.h>

#pragma weak fuse_log
#pragma weak fuse_session_exit
#pragma weak fuse_session_exited
#pragma weak fuse_session_fd
#pragma weak fuse_session_loop
#pragma weak fuse_session_mount
#pragma weak fuse_session_process_buf

/* Since libfuse 3.17: fuse_session_custom_io() with the size of *io. */
__attribute__((weak))
int fuse_session_custom_io_317(struct fuse_session *se, const struct fuse_custom_io *io,
			       size_t op_size, int fd);

/* fuse_session_custom_io() of libfuse 3.14 to 3.16. In the headers of 3.17 this is another one. */
__attribute__((weak))
int session_custom_io_314(struct fuse_session *se, const struct fuse_custom_io *io, int fd)
	__asm__("fuse_session_custom_io");

/* Whether libfuse is 3.14 or later. */
static inline bool session_has_custom_io(void)
{
	return fuse_session_custom_io_317 || session_custom_io_314;
}

static inline int session_custom_io(struct fuse_session *se, const struct fuse_custom_io *io,
				    int fd)
{
	if (fuse_session_custom_io_317)
		return fuse_session_custom_io_317(se, io, sizeof(*io), fd);
	return session_custom_io_314(se, io, fd);
}

bool session_served(struct fuse_session *se, unsigned int max_workers, int *result);

#endif
