/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What efuse/fs/channel.py calls: the session that pyfuse3 makes gets its requests through a
 * channel. A process has one such session at a time, and the thread that opens the channel is
 * the one that runs pyfuse3's loop.
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
