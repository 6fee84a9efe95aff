/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The functions that efuse/fs/channel.py calls. They make the session of pyfuse3 get its requests
 * through a channel. A process has at most one such session at a time. The thread that opens the
 * channel must be the one that runs pyfuse3's loop.
 */
#ifndef EFUSE_PYTHON_H
#define EFUSE_PYTHON_H

#define EXPORT __attribute__((visibility("default")))

EXPORT int efuse_python_watch(const char *extension);
EXPORT void efuse_python_unwatch(void);
EXPORT int efuse_python_open(void);
EXPORT int efuse_python_look(void);
EXPORT void efuse_python_rested(void);
EXPORT void efuse_python_close(void);
EXPORT const char *efuse_python_reason(int err);

#endif
