/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The functions of libfuse that libefuse uses. All are weak, for two reasons: the library is
 * preloaded into every program that a daemon starts, and most of these have no libfuse and never
 * call it; and a libfuse older than 3.14 does not have all of the functions.
 */
#ifndef EFUSE_SESSION_H
#define EFUSE_SESSION_H

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <stdbool.h>

#pragma weak fuse_log
#pragma weak fuse_session_custom_io
#pragma weak fuse_session_exit
#pragma weak fuse_session_exited
#pragma weak fuse_session_fd
#pragma weak fuse_session_loop
#pragma weak fuse_session_mount
#pragma weak fuse_session_process_buf

bool session_served(struct fuse_session *se, unsigned int max_workers, int *result);

#endif
