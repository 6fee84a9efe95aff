// SPDX-License-Identifier: LGPL-2.1-or-later
/* Serves a session over channels. If that is not possible, prints the reason to standard error. */
#include "session.h"
#include "channel.h"
#include "loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/**
 * session_served - serve a session over channels until it ends, if there are channels
 * @se: a mounted session
 * @max_workers: the most threads, for loop_channels()
 * @result: set to the result of loop_channels()
 *
 * EFUSE_CHANNELS=0 in the environment turns channels off.
 *
 * Return: true if the session was served; otherwise it is unchanged
 */
bool session_served(struct fuse_session *se, unsigned int max_workers, int *result)
{
	const char *wanted = getenv("EFUSE_CHANNELS");
	bool started;

	if (wanted && !strcmp(wanted, "0"))
		return false;
	if (!session_has_custom_io()) {
		fprintf(stderr, "efuse: no channels: the program has no libfuse 3.14 or later\n");
		return false;
	}
	*result = loop_channels(se, max_workers, &started);
	if (!started)
		fprintf(stderr, "efuse: no channels: %s\n", channel_reason(*result));
	return started;
}
