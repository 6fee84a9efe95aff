// SPDX-License-Identifier: LGPL-2.1-or-later
/* Whether a session is served over channels; where it is not, standard error says why. */
#include "session.h"
#include "channel.h"
#include "loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/**
 * session_served - serve a session over channels until it ends, if there are channels
 * @se: a mounted session
 * @max_workers: as for loop_channels()
 * @result: how it ended, as of loop_channels()
 *
 * EFUSE_CHANNELS=0 in the environment says that none are wanted.
 *
 * Return: whether it was served; if not it is as it was
 */
bool session_served(struct fuse_session *se, unsigned int max_workers, int *result)
{
	const char *wanted = getenv("EFUSE_CHANNELS");
	bool started;

	if (wanted && !strcmp(wanted, "0"))
		return false;
	if (!fuse_session_custom_io) {
		fprintf(stderr, "efuse: no channels: libfuse is older than 3.14\n");
		return false;
	}
	*result = loop_channels(se, max_workers, &started);
	if (!started)
		fprintf(stderr, "efuse: no channels: %s\n", channel_reason(*result));
	return started;
}
