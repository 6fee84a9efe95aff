/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libefuse: a libfuse 3 daemon that gets its requests through eFuse's channels.
 *
 *	cc daemon.c $(pkg-config --cflags --libs libefuse)
 */
#ifndef LIBEFUSE_EFUSE_H
#define LIBEFUSE_EFUSE_H

#ifdef __cplusplus
extern "C" {
#endif

struct fuse_session;

/**
 * efuse_session_loop_mt - handle a session's requests with several threads until it ends
 * @se: a mounted session
 * @max_threads: the most threads; 0: 10 as in libfuse, but with channels at least one per CPU
 *
 * Use it instead of fuse_session_loop_mt(). The mount may have the type efuse or any other type. If
 * there are no channels, the reason is printed to standard error and libfuse's own loop runs. Set
 * EFUSE_CHANNELS=0 in the environment to do without channels.
 *
 * With channels, these things differ from libfuse:
 *
 * * Each CPU has a thread that stays on it. Threads started by a handler inherit that CPU, unless
 *   the handler is init().
 * * There is no splicing: fuse_conn_info's capable has no FUSE_CAP_SPLICE_* flags.
 * * The library uses the session's fuse_session_custom_io() itself.
 *
 * Call it in the process that serves the mount, after fuse_daemonize(). All else is as in libfuse:
 * handlers run in several threads at the same time, may block, and may reply later or from any
 * thread.
 *
 * Return: what fuse_session_loop_mt() returns: 0, a negative errno, or the number of the signal
 *         that ended the session
 */
__attribute__((visibility("default")))
int efuse_session_loop_mt(struct fuse_session *se, unsigned int max_threads);

#ifdef __cplusplus
}
#endif

#endif /* LIBEFUSE_EFUSE_H */
