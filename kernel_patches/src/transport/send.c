// SPDX-License-Identifier: GPL-2.0
/* Sends a request to the daemon, and handles its reply. */
#include "transport_i.h"
#include "../core/trace.h"

/* Accounts for a request that is about to be sent to the daemon. */
static void efuse_issue(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			struct efuse_changes *ch)
{
	efuse_changes_begin(ch, ec, fm, args);
	args->efuse.answered_by = EFUSE_PATH_DAEMON;
	args->efuse.start_ns = efuse_timed(ec) ? ktime_get_ns() : 0;
	efuse_count(ec, args->opcode, EFUSE_DAEMON);
}

/*
 * CREATE opened a file that was made by another client, and may have truncated it. That is known
 * only now. In exclusive mode such a file is in memory, since another client can only have given a
 * known file the name.
 */
static void efuse_created_over(struct efuse_req *req)
{
	const struct fuse_entry_out *entry = efuse_out_entry(req->args);

	if (req->args->opcode != FUSE_CREATE || req->error || !entry ||
	    !(efuse_arg_flags(req->args) & O_TRUNC) ||
	    (READ_ONCE(req->ec->consistency) == EFUSE_EXCLUSIVE &&
	     !efuse_inode_present(req->fm, entry->nodeid)))
		return;
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_CONTENT));
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_ATTR));
	req->ended = entry->nodeid;
	req->ended_epoch = efuse_epoch_now(req->ec);
}

/* Handles the daemon's reply before the caller sees it. */
void efuse_replied(struct efuse_req *req, struct efuse_changes *ch)
{
	struct efuse_conn *ec = req->ec;
	struct fuse_args *args = req->args;
	struct efuse_ops *ops;
	bool blocks;

	if (efuse_changes_cancelled(args, req->error)) {
		efuse_epoch_cancel(ec, ch);
		ch->nr = 0;
		ch->nr_blocks = 0;
		req->ended = 0;
	} else {
		efuse_changes_end(ch, ec, req->fm, args, !req->error);
		req->ended = ch->content;
		req->ended_epoch = ch->epoch;
	}
	efuse_created_over(req);
	/* The VFS will look the name up again, and must not find what it has now. */
	if (req->error == -ESTALE)
		efuse_epoch_bump(ec, efuse_bucket_inode(args->nodeid, EFUSE_KIND_IDENTITY));
	if (args->efuse.revalidate && !req->error)
		efuse_timeouts_expire_attrs(req->fm, args->nodeid);

	if (req->error)
		efuse_count(ec, args->opcode, EFUSE_ERRORS);
	efuse_terminal_replied(req);
	if (args->efuse.start_ns)
		efuse_count_daemon_time(ec, args->opcode, ktime_get_ns() - args->efuse.start_ns);

	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	if (ops && ops->reply)
		ops->reply(req, req->error);
	efuse_learn(req, ops, ch);
	blocks = ops && ops->block && efuse_is_io(args);
	rcu_read_unlock();
	if (blocks)
		efuse_blocks_learn(req, ch);
}

/* A daemon that may have a successor has opened, locked or closed a file. */
static void efuse_handles_follow(struct efuse_req *req)
{
	const struct fuse_args *args = req->args;
	/* Otherwise no daemon has got it, or one whose ids are FUSE's. */
	bool done = !req->error && args->efuse.serial;

	if (done && efuse_out_open(args))
		efuse_handle_add(req->ec, args, args->efuse.serial - 1);
	switch (args->opcode) {
	case FUSE_SETLK:
	case FUSE_SETLKW:
		if (done)
			efuse_locked(req);
		break;
	case FUSE_FLUSH:
		efuse_locks_end(req->ec, args);
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		efuse_locks_end(req->ec, args);
		efuse_handle_released(req->ec, efuse_arg_fh(args));
		break;
	}
}

/**
 * efuse_send - send a request to the daemon and wait for its answer
 * @req: the request; @req->ret and @req->error hold the answer afterwards
 * @idmap: the mount's idmap, for __fuse_simple_request()
 *
 * Context: process context, may sleep.
 */
void efuse_send(struct efuse_req *req, struct mnt_idmap *idmap)
{
	struct efuse_changes ch __uninitialized;

	efuse_issue(req->ec, req->fm, req->args, &ch);
	req->ret = efuse_ask_daemon(idmap, req->fm, req->args);
	if (unlikely(efuse_lost(req->ret)))
		req->ret = efuse_send_again(req, idmap, req->ret);
	req->error = min_t(ssize_t, req->ret, 0);
	efuse_strip(req->args);
	efuse_replied(req, &ch);
	efuse_timeouts_extend(req, &ch);
	efuse_part_callers(req);
	if (unlikely(efuse_translates(req->ec)))
		efuse_handles_follow(req);
}

/**
 * efuse_background_send - send a request to the daemon without waiting for the answer
 * @ec: connection
 * @fm: mount
 * @args: the request
 * @gfp_flags: for the request's memory
 *
 * Return: 0 or a negative errno; args->end() is called only after 0
 */
int efuse_background_send(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			  gfp_t gfp_flags)
{
	struct efuse_changes ch __uninitialized;
	int err;

	err = efuse_handle_ready(ec, fm, args);
	if (err)
		return err;
	args->efuse.fm = fm;
	efuse_issue(ec, fm, args, &ch);
	if (unlikely(efuse_translates(ec)))
		efuse_background_issued(ec, args);
	err = __fuse_simple_background(fm, args, gfp_flags);
	/* Not sent, so efuse_background_end() will not be called. */
	if (err) {
		efuse_epoch_cancel(ec, &ch);
		if (trace_efuse_request_enabled())
			efuse_trace(ec, fm, args, err);
	}
	return err;
}
