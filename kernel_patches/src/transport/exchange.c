// SPDX-License-Identifier: GPL-2.0
/*
 * Requests with the nodeids and handles of the present daemon instead of the kernel's: see
 * nodeids.c and handles.c.
 *
 * A request is translated for one daemon. If that ends before the request is queued, the queue
 * refuses it (efuse_args.serial), and it is translated for the next one.
 */
#include "transport_i.h"

/* Gives a file the ids of a daemon. If one is not known, @missing is set to what is. */
static enum efuse_found efuse_file_translate(struct efuse_conn *ec, struct efuse_file_id *file,
					     u32 incarnation, struct efuse_file_id *missing)
{
	u64 kernel = file->nodeid;

	*missing = *file;
	if (!kernel)
		return EFUSE_FOUND;
	file->nodeid = efuse_nodeid_daemon(ec, kernel, incarnation);
	if (!file->nodeid) {
		missing->open = false;
		return EFUSE_FOUND_LATER;
	}
	if (!file->open)
		return EFUSE_FOUND;
	/* Otherwise it is the first daemon's handle, from before `recovery` was set. */
	if (file->handle == kernel && READ_ONCE(ec->no_open)) {
		/* The kernel has opened the file itself. */
		file->handle = file->nodeid;
		return EFUSE_FOUND;
	}
	return efuse_handle_daemon(ec, file->handle, incarnation, &file->handle);
}

/**
 * efuse_ids_get - get the nodeids and handles of a request
 * @args: the request
 * @ids: set to them; all is 0 where the request has none
 */
void efuse_ids_get(struct fuse_args *args, struct efuse_file_ids *ids)
{
	const u64 *handle = efuse_place_fh(args);
	const u64 *other = efuse_place_other(args);
	const u64 *other_handle = efuse_place_other_fh(args);

	ids->file.nodeid = args->nodeid;
	ids->file.open = handle;
	ids->file.handle = handle ? *handle : 0;
	ids->other.nodeid = other ? *other : 0;
	ids->other.open = other_handle;
	ids->other.handle = other_handle ? *other_handle : 0;
}

/**
 * efuse_ids_set - give a request other nodeids and handles
 * @args: the request
 * @ids: what efuse_ids_get() has got, or the daemon's for it
 */
void efuse_ids_set(struct fuse_args *args, const struct efuse_file_ids *ids)
{
	u64 *handle = efuse_place_fh(args);
	u64 *other = efuse_place_other(args);
	u64 *other_handle = efuse_place_other_fh(args);

	args->nodeid = ids->file.nodeid;
	if (handle)
		*handle = ids->file.handle;
	if (other)
		*other = ids->other.nodeid;
	if (other_handle)
		*other_handle = ids->other.handle;
}

/**
 * efuse_ids_translate - get the present daemon's nodeids and handles for the kernel's
 * @ec: connection
 * @ids: the kernel's; set to the daemon's if all are known
 * @incarnation: number of the daemon
 * @missing: set to one that is not known
 *
 * Context: any.
 * Return: enum efuse_found
 */
enum efuse_found efuse_ids_translate(struct efuse_conn *ec, struct efuse_file_ids *ids,
				     u32 incarnation, struct efuse_file_id *missing)
{
	struct efuse_file_ids daemon = *ids;
	enum efuse_found found;

	found = efuse_file_translate(ec, &daemon.file, incarnation, missing);
	if (found == EFUSE_FOUND)
		found = efuse_file_translate(ec, &daemon.other, incarnation, missing);
	if (found == EFUSE_FOUND)
		*ids = daemon;
	return found;
}

/**
 * efuse_exchange - send a request to a daemon that is known to know its nodeids and handles
 * @idmap: the mount's idmap, for __fuse_simple_request()
 * @fm: mount
 * @ec: connection
 * @args: the request, with the kernel's nodeids and handles; its reply has the daemon's
 * @incarnation: number of the daemon
 *
 * Context: process context, may sleep.
 * Return: what __fuse_simple_request() returns; EFUSE_LOST_UNREAD also if the daemon is not the
 *	   present one any more
 */
ssize_t efuse_exchange(struct mnt_idmap *idmap, struct fuse_mount *fm, struct efuse_conn *ec,
		       struct fuse_args *args, u32 incarnation)
{
	struct efuse_file_ids kernel, daemon;
	struct efuse_file_id missing;
	ssize_t ret;

	efuse_ids_get(args, &kernel);
	daemon = kernel;
	if (efuse_ids_translate(ec, &daemon, incarnation, &missing) != EFUSE_FOUND)
		return EFUSE_LOST_UNREAD;
	args->efuse.serial = incarnation + 1;
	efuse_ids_set(args, &daemon);
	ret = __fuse_simple_request(idmap, fm, args);
	efuse_ids_set(args, &kernel);
	return ret;
}
