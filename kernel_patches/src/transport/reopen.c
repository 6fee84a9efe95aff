// SPDX-License-Identifier: GPL-2.0
/*
 * Asks the present daemon to open a file: a successor of the one that had opened it, or a daemon
 * that was not asked when the kernel opened the file.
 */
#include "transport_i.h"

#include <linux/cred.h>

/* Flags of open(2) that have had their effect. */
#define EFUSE_OPENED	(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY)

/* What opening a file again must not change: how FUSE does reads, writes and seeks. */
#define EFUSE_OPEN_KEPT	(FOPEN_DIRECT_IO | FOPEN_NONSEEKABLE | FOPEN_STREAM | FOPEN_PASSTHROUGH)

static ssize_t efuse_handle_send(struct fuse_mount *fm, struct efuse_conn *ec,
				 struct efuse_handle *handle, u64 nodeid,
				 struct fuse_open_out *open, u32 incarnation)
{
	struct fuse_open_in in = { .flags = handle->flags & ~EFUSE_OPENED };
	struct fuse_args args = {
		.opcode = handle->dir ? FUSE_OPENDIR : FUSE_OPEN,
		.nodeid = nodeid,
		.in_numargs = 1,
		.out_numargs = 1,
		.efuse.early = true,
	};
	const struct cred *old;
	ssize_t ret;

	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	args.out_args[0].size = sizeof(*open);
	args.out_args[0].value = open;
	old = override_creds(handle->cred);
	ret = efuse_exchange(&invalid_mnt_idmap, fm, ec, &args, incarnation);
	revert_creds(old);
	if (!efuse_lost(ret)) {
		efuse_count(ec, args.opcode, EFUSE_REQUESTS);
		efuse_count(ec, args.opcode, EFUSE_MISS);
		efuse_count(ec, args.opcode, EFUSE_DAEMON);
		if (ret)
			efuse_count(ec, args.opcode, EFUSE_ERRORS);
	}
	return ret;
}

/* Gives a handle back to the daemon that is of no use. */
static void efuse_handle_return(struct fuse_mount *fm, struct efuse_conn *ec,
				const struct efuse_handle *handle, u64 nodeid, u64 fh,
				u32 incarnation)
{
	struct fuse_release_in in = { .fh = fh, .flags = handle->flags & ~EFUSE_OPENED };
	struct fuse_args args = {
		.opcode = handle->dir ? FUSE_RELEASEDIR : FUSE_RELEASE,
		.nodeid = efuse_nodeid_daemon(ec, nodeid, incarnation),
		.in_numargs = 1,
		.efuse.early = true,
		.efuse.serial = incarnation + 1,
	};

	args.in_args[0].size = sizeof(in);
	args.in_args[0].value = &in;
	/* If it is lost, so is the daemon that has the handle. */
	__fuse_simple_request(&invalid_mnt_idmap, fm, &args);
}

/**
 * efuse_handle_open - open a file at the present daemon
 * @fm: mount
 * @ec: connection
 * @number: number of the handle
 * @nodeid: the kernel's nodeid of the file; the daemon's is known
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; EFUSE_LOST_UNREAD if the daemon has ended
 */
ssize_t efuse_handle_open(struct fuse_mount *fm, struct efuse_conn *ec, u64 number, u64 nodeid)
{
	struct efuse_handle *handle = efuse_handle_find(ec, number);
	struct fuse_open_out open = {};
	u32 incarnation;
	ssize_t ret = 0;

	if (!handle)
		return -EIO;
	if (mutex_lock_killable(&handle->lock))
		return -EINTR;
	incarnation = READ_ONCE(ec->recovery.incarnation);
	if (handle->incarnation == incarnation)
		goto out;
	ret = efuse_handle_send(fm, ec, handle, nodeid, &open, incarnation);
	/* This daemon needs no OPEN, so any handle will do. */
	if (ret == -ENOSYS) {
		ret = 0;
	} else if (!ret && (open.open_flags ^ handle->open_flags) & EFUSE_OPEN_KEPT) {
		efuse_handle_return(fm, ec, handle, nodeid, open.fh, incarnation);
		ret = -EIO;
	}
	if (ret)
		goto out;
	handle->daemon = open.fh;
	/* Pairs with efuse_handle_daemon(). */
	smp_store_release(&handle->incarnation, incarnation);
out:
	mutex_unlock(&handle->lock);
	return efuse_lost(ret) ? EFUSE_LOST_UNREAD : ret;
}

/**
 * efuse_handle_ready - ask the daemon for a handle that a request of the background needs
 * @ec: connection
 * @fm: mount
 * @args: the request
 *
 * The sender waits, so that a slow OPEN holds up nothing but the reads of its file: unresolved.c
 * asks for one file after the other. A file that the daemon was not asked to open is open for
 * reading, and who reads can wait.
 *
 * Context: process context; may sleep if the daemon was not asked to open the file.
 * Return: 0 or a negative errno; 0 also if the daemon has ended: then unresolved.c asks the next
 */
int efuse_handle_ready(struct efuse_conn *ec, struct fuse_mount *fm, const struct fuse_args *args)
{
	u64 number;
	ssize_t ret;

	if (likely(!efuse_translates(ec)) || efuse_closes(args))
		return 0;
	number = efuse_arg_fh(args);
	if (!efuse_handle_unopened(ec, number))
		return 0;
	ret = efuse_handle_open(fm, ec, number, args->nodeid);
	return efuse_lost(ret) ? 0 : ret;
}
