// SPDX-License-Identifier: GPL-2.0
/*
 * The handles of a daemon that may be replaced, or that was not asked for them yet (`lazy_open`),
 * with what is needed to open the file.
 *
 * FUSE gets a number in place of the daemon's handle. It has the number for as long as the file is
 * open, whatever the present daemon's handle is. Two daemons may use the same handle for different
 * files, so the numbers are the kernel's own.
 *
 * Files that were opened before `recovery` was set have the handle of the first daemon, and end
 * with it.
 */
#include "transport_i.h"

#include <linux/cred.h>

static bool efuse_opens_directory(const struct fuse_args *args)
{
	return args->opcode == FUSE_OPENDIR;
}

/**
 * efuse_handle_add - the daemon has opened a file: give FUSE a number for the handle
 * @ec: connection
 * @args: the OPEN, OPENDIR, CREATE or TMPFILE, with its reply
 * @incarnation: number of the daemon; EFUSE_NOT_OPENED if no daemon has opened the file
 *
 * Without memory FUSE gets the daemon's handle, and the file ends with the daemon.
 *
 * Context: process context, may sleep.
 * Return: whether there was memory
 */
bool efuse_handle_add(struct efuse_conn *ec, const struct fuse_args *args, u32 incarnation)
{
	struct fuse_open_out *open = efuse_out_open(args);
	struct efuse_handle *handle = kzalloc(sizeof(*handle), GFP_KERNEL_ACCOUNT);

	if (!handle)
		return false;
	mutex_init(&handle->lock);
	handle->number = atomic64_inc_return(&ec->recovery.next_handle);
	handle->daemon = open->fh;
	handle->incarnation = incarnation;
	handle->flags = efuse_arg_flags(args);
	handle->open_flags = open->open_flags;
	handle->dir = efuse_opens_directory(args);
	if (xa_err(xa_store(&ec->recovery.handles, handle->number, handle, GFP_KERNEL_ACCOUNT))) {
		kfree(handle);
		return false;
	}
	handle->cred = get_current_cred();
	open->fh = handle->number;
	return true;
}

/**
 * efuse_handle_later - give FUSE a number for a handle that the daemon was not asked for
 * @ec: connection
 * @args: an OPEN or OPENDIR that was answered in the kernel, see efuse_answer_grant()
 *
 * The daemon is asked when a request needs the handle: see efuse_ids_find().
 *
 * Context: process context, may sleep.
 * Return: false if there is no memory: then the daemon has to be asked now
 */
bool efuse_handle_later(struct efuse_conn *ec, const struct fuse_args *args)
{
	return efuse_out_open(args)->fh || efuse_handle_add(ec, args, EFUSE_NOT_OPENED);
}

/**
 * efuse_handle_unopened - was the daemon never asked to open a file that FUSE has open?
 * @ec: connection
 * @number: FUSE's handle
 */
bool efuse_handle_unopened(struct efuse_conn *ec, u64 number)
{
	const struct efuse_handle *handle = efuse_handle_find(ec, number);

	return handle && READ_ONCE(handle->incarnation) == EFUSE_NOT_OPENED;
}

/**
 * efuse_handle_find - get an open file of the daemon
 * @ec: connection
 * @number: FUSE's handle
 *
 * Return: the file, valid as long as it is open; NULL for a handle of the first daemon
 */
struct efuse_handle *efuse_handle_find(struct efuse_conn *ec, u64 number)
{
	return number ? xa_load(&ec->recovery.handles, number) : NULL;
}

/* Does the daemon serve files that it was not asked to open? Then FUSE's handle is 0. */
static bool efuse_needs_no_handle(const struct fuse_conn *fc, u64 number)
{
	return !number && (fc->no_open || fc->no_opendir);
}

/**
 * efuse_handle_daemon - get a daemon's handle for a number that FUSE has
 * @ec: connection
 * @number: the number, or a handle of the first daemon
 * @incarnation: number of the daemon
 * @fh: set to the handle
 *
 * A request of an open file keeps its handle, so the handle is not freed meanwhile.
 *
 * Context: any.
 * Return: enum efuse_found
 */
enum efuse_found efuse_handle_daemon(struct efuse_conn *ec, u64 number, u32 incarnation, u64 *fh)
{
	const struct efuse_handle *handle = efuse_handle_find(ec, number);

	if (!handle) {
		*fh = number;
		return !incarnation || efuse_needs_no_handle(ec->fc, number) ? EFUSE_FOUND :
									       EFUSE_FOUND_NEVER;
	}
	/* Pairs with efuse_handle_open(): the handle is this daemon's. */
	if (smp_load_acquire(&handle->incarnation) != incarnation)
		return EFUSE_FOUND_LATER;
	*fh = handle->daemon;
	return EFUSE_FOUND;
}

/**
 * efuse_handle_listing - get how far an open directory has been listed
 * @ec: connection
 * @number: number of the handle
 *
 * Return: the listing, valid as long as the directory is open; NULL for a handle of the first
 *	   daemon
 */
struct efuse_listing *efuse_handle_listing(struct efuse_conn *ec, u64 number)
{
	struct efuse_handle *handle = efuse_handle_find(ec, number);

	return handle ? &handle->listing : NULL;
}

static void efuse_handle_free(struct efuse_handle *handle)
{
	efuse_listing_free(&handle->listing);
	put_cred(handle->cred);
	kfree_rcu(handle, rcu);
}

/**
 * efuse_handle_released - a file is closed, and its RELEASE has ended
 * @ec: connection
 * @number: number of the handle
 *
 * Context: that of fuse_request_end(), or process context.
 */
void efuse_handle_released(struct efuse_conn *ec, u64 number)
{
	struct efuse_handle *handle = xa_erase(&ec->recovery.handles, number);

	if (handle)
		efuse_handle_free(handle);
}

/**
 * efuse_handle_drop - the kernel closes a file that it has opened itself
 * @ec: connection
 * @number: FUSE's handle
 *
 * Context: any.
 * Return: false if the daemon was asked for a handle since: then it needs the RELEASE
 */
bool efuse_handle_drop(struct efuse_conn *ec, u64 number)
{
	const struct efuse_handle *handle = efuse_handle_find(ec, number);

	if (!handle)
		return true;
	if (READ_ONCE(handle->incarnation) != EFUSE_NOT_OPENED)
		return false;
	efuse_handle_released(ec, number);
	return true;
}

/* Prepares the handles of a new connection. */
void efuse_handles_add(struct efuse_conn *ec)
{
	xa_init(&ec->recovery.handles);
	/* No daemon can guess a number, and have a handle that is mistaken for it. */
	atomic64_set(&ec->recovery.next_handle, get_random_u64() >> 2);
}

/* Frees the handles of a connection after the last reference to it is gone. */
void efuse_handles_free(struct efuse_conn *ec)
{
	struct efuse_handle *handle;
	unsigned long index;

	xa_for_each(&ec->recovery.handles, index, handle)
		efuse_handle_free(handle);
	xa_destroy(&ec->recovery.handles);
}
