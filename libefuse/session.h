/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What libefuse uses of libfuse. All of it is weak: the library is preloaded into whatever
 * program a daemon starts, most of which have no libfuse and never come here.
 */
#ifndef EFUSE_SESSION_H
#define EFUSE_SESSION_H

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#pragma weak fuse_session_custom_io
#pragma weak fuse_session_exit
#pragma weak fuse_session_exited
#pragma weak fuse_session_fd
#pragma weak fuse_session_process_buf
#pragma weak fuse_session_reset

#endif
