/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libfuse's session loop over channels. */
#ifndef EFUSE_LOOP_H
#define EFUSE_LOOP_H

#include <stdbool.h>

struct fuse_session;

int loop_channels(struct fuse_session *se, unsigned int max_workers, bool *started);
int loop_unpinned(int (*start)(void *arg), void *arg);
void loop_unpin(void);

#endif
