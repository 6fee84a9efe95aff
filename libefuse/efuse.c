// SPDX-License-Identifier: LGPL-2.1-or-later
/* libefuse.so: the functions for daemons that are linked with it; see efuse.h. */
#define _GNU_SOURCE
#include "session.h"
#include "efuse.h"

#include <errno.h>

int efuse_session_loop_mt(struct fuse_session *se, unsigned int max_threads)
{
	struct fuse_loop_config *config;
	int result;

	if (session_served(se, max_threads, &result))
		return result;
	config = fuse_loop_cfg_create();
	if (!config)
		return -ENOMEM;
	if (max_threads)
		fuse_loop_cfg_set_max_threads(config, max_threads);
	result = fuse_session_loop_mt(se, config);
	fuse_loop_cfg_destroy(config);
	return result;
}
