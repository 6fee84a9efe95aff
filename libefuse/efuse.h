/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libefuse: a libfuse 3 daemon whose requests come through eFuse's channels.
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
 * efuse_session_loop_mt - handle a session's requests by several threads until it ends
 * @se: a mounted session
 * @max_threads: the most threads; 0: 10 as in libfuse, or with channels one for each CPU if
 *               those are more
 *
 * In the place of fuse_session_loop_mt(). The session may be of a mount of the type efuse,
 * or any other: where there are no channels, standard error says why, and libfuse's own loop
 * runs. EFUSE_CHANNELS=0 in the environment says that none are wanted.
 *
 * With channels, what differs from libfuse:
 *
 * * Each CPU has a thread that stays there. A thread that a handler starts inherits that,
 *   unless the handler is init().
 * * There is no splicing: FUSE_CAP_SPLICE_* are not among fuse_conn_info's capable.
 * * fuse_session_custom_io() of the session is the library's.
 *
 * Call it in the process that serves, that is after fuse_daemonize(). All else is as ever:
 * handlers run in several threads at once, may block, and may reply later or from any thread.
 *
 * Return: as of fuse_session_loop_mt(): 0, a negative errno, or the number of the signal that
 *         ended it
 */
__attribute__((visibility("default")))
int efuse_session_loop_mt(struct fuse_session *se, unsigned int max_threads);

#ifdef __cplusplus
}
#endif

#endif /* LIBEFUSE_EFUSE_H */
