// SPDX-License-Identifier: GPL-2.0
/* Asks the present daemon for the nodeids and handles that a request needs. */
#include "transport_i.h"

/**
 * efuse_ids_find - ask the daemon for a nodeid or a handle
 * @fm: mount
 * @ec: connection
 * @found: what efuse_ids_translate() has returned
 * @missing: what it has set
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; EFUSE_LOST_UNREAD if the daemon has ended
 */
ssize_t efuse_ids_find(struct fuse_mount *fm, struct efuse_conn *ec, enum efuse_found found,
		       const struct efuse_file_id *missing)
{
	if (found == EFUSE_FOUND_NEVER)
		return -EIO;
	if (missing->open)
		return efuse_handle_open(fm, ec, missing->handle, missing->nodeid);
	return efuse_nodeid_resolve(fm, ec, missing->nodeid);
}

/* Does a request end something that the daemon has opened or locked, and nothing else? */
static bool efuse_ends(const struct fuse_args *args)
{
	return args->opcode == FUSE_RELEASE || args->opcode == FUSE_RELEASEDIR ||
	       args->opcode == FUSE_FLUSH;
}

/**
 * efuse_ids_ready - make sure that the present daemon knows what a request is about
 * @fm: mount
 * @ec: connection
 * @args: the request
 * @must: the daemon may have what the request ends, although it has not opened the file
 * @incarnation: set to the number of the daemon
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; EFUSE_LOST_UNREAD if the daemon has ended; EFUSE_NOTHING_TO_TELL
 *	   if the request would end something that this daemon has not opened
 */
ssize_t efuse_ids_ready(struct fuse_mount *fm, struct efuse_conn *ec, struct fuse_args *args,
			bool must, u32 *incarnation)
{
	struct efuse_file_id missing;
	struct efuse_file_ids ids;
	enum efuse_found found;
	ssize_t ret;

	for (;;) {
		*incarnation = READ_ONCE(ec->recovery.incarnation);
		efuse_ids_get(args, &ids);
		found = efuse_ids_translate(ec, &ids, *incarnation, &missing);
		if (found == EFUSE_FOUND)
			return 0;
		if (efuse_ends(args) && !must)
			return EFUSE_NOTHING_TO_TELL;
		ret = efuse_ids_find(fm, ec, found, &missing);
		if (ret)
			return efuse_ends(args) && !efuse_lost(ret) ? EFUSE_NOTHING_TO_TELL : ret;
	}
}
