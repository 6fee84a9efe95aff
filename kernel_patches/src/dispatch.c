// SPDX-License-Identifier: GPL-2.0
/* The way of a request: through its handler, or else to the daemon and back. */
#include "efuse_i.h"
#include "trace.h"

typedef int (*efuse_handler_t)(struct efuse_req *req);

static efuse_handler_t efuse_handler(const struct efuse_ops *ops, u32 opcode)
{
	switch (opcode) {
	case FUSE_LOOKUP:		return ops->lookup;
	case FUSE_GETATTR:		return ops->getattr;
	case FUSE_SETATTR:		return ops->setattr;
	case FUSE_ACCESS:		return ops->access;
	case FUSE_READLINK:		return ops->readlink;
	case FUSE_GETXATTR:		return ops->getxattr;
	case FUSE_SETXATTR:		return ops->setxattr;
	case FUSE_LISTXATTR:		return ops->listxattr;
	case FUSE_REMOVEXATTR:		return ops->removexattr;
	case FUSE_OPEN:			return ops->open;
	case FUSE_RELEASE:		return ops->release;
	case FUSE_OPENDIR:		return ops->opendir;
	case FUSE_RELEASEDIR:		return ops->releasedir;
	case FUSE_READDIR:		return ops->readdir;
	case FUSE_READDIRPLUS:		return ops->readdirplus;
	case FUSE_READ:			return ops->read;
	case FUSE_WRITE:		return ops->write;
	case FUSE_FLUSH:		return ops->flush;
	case FUSE_FSYNC:		return ops->fsync;
	case FUSE_LSEEK:		return ops->lseek;
	case FUSE_FALLOCATE:		return ops->fallocate;
	case FUSE_COPY_FILE_RANGE:
	case EFUSE_COPY_FILE_RANGE_64:	return ops->copy_file_range;
	case FUSE_STATFS:		return ops->statfs;
	case FUSE_CREATE:		return ops->create;
	case FUSE_MKNOD:		return ops->mknod;
	case FUSE_MKDIR:		return ops->mkdir;
	case FUSE_SYMLINK:		return ops->symlink;
	case FUSE_LINK:			return ops->link;
	case FUSE_UNLINK:		return ops->unlink;
	case FUSE_RMDIR:		return ops->rmdir;
	case FUSE_RENAME:
	case FUSE_RENAME2:		return ops->rename;
	case FUSE_IOCTL:		return ops->ioctl;
	default:			return ops->request;
	}
}

static bool efuse_is_io(const struct fuse_args *args)
{
	return args->opcode == FUSE_READ || args->opcode == FUSE_WRITE;
}

static void efuse_req_init(struct efuse_req *req, struct efuse_conn *ec,
			   struct fuse_mount *fm, struct fuse_args *args)
{
	req->ec = ec;
	req->fm = fm;
	req->args = args;
	req->sent = NULL;
	req->caller = 0;
	req->error = 0;
	req->ret = 0;
	req->reason = 0;
	req->replied = false;
	req->at_device = false;
	req->stop = EFUSE_STOP_ALL;
	req->appended = 0;
	req->racy = false;
	req->lesson = NULL;
	req->block = NULL;
	if (efuse_is_io(args))
		memset(&req->path, 0, sizeof(req->path));
	req->ended = 0;
	req->ended_epoch = 0;
}

/* Initialises what is noted about a request for its trace event. */
static void efuse_begin(struct fuse_args *args)
{
	args->efuse.begun_ns = trace_efuse_request_enabled() ? ktime_get_ns() : 0;
	args->efuse.by = EFUSE_BY_KERNEL;
	args->efuse.reason = 0;
}

/* Traces a request that got its answer @ret without a struct efuse_req. */
static noinline void efuse_trace(struct efuse_conn *ec, struct fuse_mount *fm,
				 struct fuse_args *args, ssize_t ret)
{
	struct efuse_req req __uninitialized;

	efuse_req_init(&req, ec, fm, args);
	trace_efuse_request(&req, ret);
}

/* Counts and traces a RELEASE of a file that the kernel opened itself. */
static void efuse_released(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
{
	efuse_count(ec, args->opcode, EFUSE_HITS);
	if (trace_efuse_request_enabled())
		efuse_trace(ec, fm, args, 0);
}

/*
 * May the handler's verdict end the request? The daemon must see the RELEASE of everything that it
 * opened.
 */
static bool efuse_verdict_counts(const struct fuse_args *args)
{
	return !args->force || args->opcode == FUSE_FLUSH;
}

/*
 * Counts a request that goes on to the next way. A READ or WRITE that is tried before FUSE makes
 * requests of it is not counted here: if it is not answered, FUSE's requests are counted.
 */
static void efuse_count_passed(const struct efuse_req *req, enum efuse_counter reason)
{
	if (!req->args->efuse.iter)
		efuse_count(req->ec, req->args->opcode, reason);
}

/*
 * No handler answered the request. A READ or WRITE may still be answered by a path in the kernel;
 * then true. False: it goes to the daemon, and the reason is counted.
 */
static bool efuse_passed(struct efuse_req *req, enum efuse_counter reason)
{
	struct efuse_conn *ec = req->ec;
	u32 opcode = req->args->opcode;

	if (efuse_is_io(req->args)) {
		if (efuse_path_take(req)) {
			req->replied = true;
			efuse_count(ec, opcode, EFUSE_HITS);
			return true;
		}
		reason = req->reason ?: reason;
	}
	req->args->efuse.reason = reason;
	efuse_count_passed(req, reason);
	return false;
}

/*
 * Asks the request's handler. True: the request is answered or refused, and req->ret is what the
 * caller gets. False: it goes to the daemon, and the reason is counted.
 */
static bool efuse_handled(struct efuse_req *req)
{
	struct efuse_conn *ec = req->ec;
	u32 opcode = req->args->opcode;
	efuse_handler_t handler;
	struct efuse_ops *ops;
	int verdict = 0;

	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	handler = ops ? efuse_handler(ops, opcode) : NULL;
	if (handler)
		verdict = handler(req);
	rcu_read_unlock();

	if (!handler)
		return efuse_passed(req, EFUSE_NO_HANDLER);
	/*
	 * A LOOKUP's answer has taken a lookup count already, so the answer is given whatever the
	 * verdict.
	 */
	if (req->replied) {
		if (verdict != EFUSE_REPLIED)
			this_cpu_inc(ec->stats->garbage);
		req->args->efuse.by = EFUSE_BY_HANDLER;
		efuse_count(ec, opcode, EFUSE_HITS);
		return true;
	}
	if (!verdict || !efuse_verdict_counts(req->args))
		return efuse_passed(req, req->reason ?: EFUSE_MISS);
	if (verdict < 0 && verdict >= -EFUSE_MAX_ERRNO && verdict != EFUSE_NOT_IMPLEMENTED) {
		req->ret = verdict;
		req->args->efuse.by = EFUSE_BY_REFUSAL;
		efuse_count(ec, opcode, EFUSE_REFUSED);
		return true;
	}
	this_cpu_inc(ec->stats->garbage);
	return efuse_passed(req, EFUSE_GARBAGE);
}

/*
 * Is this the RELEASE of a file that the kernel opened itself? The daemon does not know its handle
 * and need not see the RELEASE. But if a flock was taken through the file, the daemon has that
 * lock, and only the RELEASE tells it that the lock ends.
 */
static bool efuse_local_release(const struct fuse_args *args)
{
	const struct fuse_release_in *in;

	if ((args->opcode != FUSE_RELEASE && args->opcode != FUSE_RELEASEDIR) ||
	    !args->efuse.local)
		return false;
	in = efuse_req_in(args, sizeof(*in));
	return !(in && in->release_flags & FUSE_RELEASE_FLOCK_UNLOCK);
}

/* Accounts for a request that is about to be sent to the daemon. */
static void efuse_issue(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args,
			struct efuse_changes *ch)
{
	/* A FORGET sent as a request: for a READDIRPLUS entry that was not used. */
	if (args->opcode == FUSE_FORGET)
		efuse_forget_request(ec, args->nodeid);
	efuse_changes_issue(ch, ec, fm, args);
	efuse_epoch_begin(ec, ch);
	args->efuse.epoch = efuse_epoch_now(ec);
	args->efuse.by = EFUSE_PATH_DAEMON;
	args->efuse.start_ns = efuse_timed(ec) ? ktime_get_ns() : 0;
	efuse_count(ec, args->opcode, EFUSE_DAEMON);
}

/*
 * CREATE opened a file that was made by another client, and may have truncated it. That is known
 * only now. In exclusive mode there is no other client.
 */
static void efuse_created_over(struct efuse_req *req)
{
	const struct fuse_entry_out *entry = efuse_out_entry(req->args);

	if (req->args->opcode != FUSE_CREATE || req->error || !entry ||
	    !(efuse_arg_flags(req->args) & O_TRUNC) ||
	    READ_ONCE(req->ec->consistency) == EFUSE_EXCLUSIVE)
		return;
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_WHOLE));
	efuse_epoch_bump(req->ec, efuse_bucket_inode(entry->nodeid, EFUSE_KIND_ATTR));
	req->ended = entry->nodeid;
	req->ended_epoch = efuse_epoch_now(req->ec);
}

/* Handles the daemon's reply before the caller sees it. */
static void efuse_replied(struct efuse_req *req, struct efuse_changes *ch)
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
		efuse_epoch_end(ec, ch, args->efuse.epoch);
		req->ended = ch->content;
		req->ended_epoch = ch->epoch;
	}
	efuse_created_over(req);
	/* The VFS will look the name up again, and must not find what it has now. */
	if (req->error == -ESTALE)
		efuse_epoch_bump(ec, efuse_bucket_inode(args->nodeid, EFUSE_KIND_LIFE));
	if (args->efuse.revalidate && !req->error)
		efuse_lower_attrs(req->fm, args->nodeid);

	if (req->error)
		efuse_count(ec, args->opcode, EFUSE_ERRORS);
	if (args->efuse.start_ns) {
		efuse_count_n(ec, args->opcode, EFUSE_DAEMON_NS,
			      ktime_get_ns() - args->efuse.start_ns);
		efuse_count(ec, args->opcode, EFUSE_DAEMON_TIMED);
	}

	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	if (ops && ops->reply)
		ops->reply(req, req->error);
	if (ops && ops->learn)
		efuse_learn(req, ops, ch);
	blocks = ops && ops->block && efuse_is_io(args);
	rcu_read_unlock();
	if (blocks)
		efuse_blocks_learn(req, ch);
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
	req->ret = __fuse_simple_request(idmap, req->fm, req->args);
	req->error = min_t(ssize_t, req->ret, 0);
	efuse_strip(req->args);
	efuse_replied(req, &ch);
	efuse_raise(req, &ch);
	efuse_part_callers(req);
}

/**
 * efuse_answer_now - answer or refuse a request in the kernel
 * @req: initialised here; @req->ret is what the caller gets if true is returned
 * @ec: connection
 * @fm: mount
 * @args: the request
 *
 * Context: process context, may sleep.
 * Return: true if the request is answered; otherwise it goes to the daemon
 */
bool efuse_answer_now(struct efuse_req *req, struct efuse_conn *ec, struct fuse_mount *fm,
		      struct fuse_args *args)
{
	u64 start;

	efuse_req_init(req, ec, fm, args);
	efuse_begin(args);
	efuse_count_passed(req, EFUSE_REQUESTS);
	/* Before INIT is answered, and without a daemon, FUSE decides what the caller gets. */
	if (!READ_ONCE(efuse_chan(fm->fc)->initialized) || !efuse_connected(fm->fc)) {
		args->efuse.reason = EFUSE_NO_HANDLER;
		efuse_count_passed(req, EFUSE_NO_HANDLER);
		return false;
	}
	start = efuse_timed(ec) ? ktime_get_ns() : 0;
	if (!efuse_handled(req))
		return false;
	if (args->efuse.iter)
		efuse_count(ec, args->opcode, EFUSE_REQUESTS);
	if (start && req->replied) {
		efuse_count_n(ec, args->opcode, EFUSE_HIT_NS, ktime_get_ns() - start);
		efuse_count(ec, args->opcode, EFUSE_HIT_TIMED);
	}
	trace_efuse_request(req, req->ret);
	return true;
}

/**
 * efuse_simple_request - carry out a request whose caller waits for the answer
 * @idmap: the mount's idmap, for __fuse_simple_request()
 * @fm: mount
 * @args: the request
 *
 * Context: process context, may sleep.
 * Return: what __fuse_simple_request() returns: 0, a size or a negative errno
 */
ssize_t efuse_simple_request(struct mnt_idmap *idmap, struct fuse_mount *fm,
			     struct fuse_args *args)
{
	struct efuse_conn *ec = efuse_conn_get(fm->fc);
	struct efuse_req req __uninitialized;

	if (!ec)
		return __fuse_simple_request(idmap, fm, args);
	if (efuse_local_release(args)) {
		efuse_begin(args);
		efuse_count(ec, args->opcode, EFUSE_REQUESTS);
		efuse_released(ec, fm, args);
		return 0;
	}
	if (efuse_answer_now(&req, ec, fm, args))
		return req.ret;

	if (efuse_is_io(args) && efuse_ask_in_parts(&req))
		efuse_ask_all(&req);
	else
		efuse_send(&req, idmap);
	if (efuse_is_io(args))
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	trace_efuse_request(&req, req.ret);
	return req.ret;
}

/*
 * Tries to carry out a background READ or WRITE in the kernel, if its sender may sleep. Returns
 * whether args->end() was or will be called.
 */
static bool efuse_background_taken(struct efuse_conn *ec, struct fuse_mount *fm,
				   struct fuse_args *args, gfp_t gfp_flags)
{
	struct efuse_req req __uninitialized;

	if (gfp_flags != GFP_KERNEL || !efuse_is_io(args) ||
	    !READ_ONCE(efuse_chan(fm->fc)->initialized) || !efuse_connected(fm->fc)) {
		args->efuse.reason = EFUSE_NO_HANDLER;
		efuse_count(ec, args->opcode, EFUSE_NO_HANDLER);
		return false;
	}
	efuse_req_init(&req, ec, fm, args);
	if (!efuse_passed(&req, EFUSE_NO_HANDLER)) {
		/* The parts are waited for, so only a request that is too large is split. */
		if (efuse_arg_size(args) <= efuse_daemon_limit(&req))
			return efuse_ask_in_parts(&req) && efuse_ask_behind(&req);
		efuse_ask_all(&req);
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	}
	trace_efuse_request(&req, req.ret);
	efuse_args_end(fm, args, min_t(ssize_t, req.ret, 0));
	return true;
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

	args->efuse.fm = fm;
	efuse_issue(ec, fm, args, &ch);
	err = __fuse_simple_background(fm, args, gfp_flags);
	/* Not sent, so efuse_background_end() will not be called. */
	if (err) {
		efuse_epoch_cancel(ec, &ch);
		if (trace_efuse_request_enabled())
			efuse_trace(ec, fm, args, err);
	}
	return err;
}

/**
 * efuse_background_now - carry out a background request that efuse_later() took
 * @ec: connection
 * @fm: mount
 * @args: the request; may be freed once args->end() was called
 *
 * Context: process context, may sleep, but memory reclaim must not enter a file system.
 */
void efuse_background_now(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
{
	int err;

	if (efuse_background_taken(ec, fm, args, GFP_KERNEL))
		return;
	err = efuse_background_send(ec, fm, args, GFP_NOFS | __GFP_NOFAIL);
	if (err)
		efuse_args_end(fm, args, err);
}

/**
 * fuse_simple_background - start a request whose answer is passed to args->end()
 * @fm: mount
 * @args: the request; must stay valid until args->end()
 * @gfp_flags: for the request's memory; GFP_KERNEL also tells that the sender may sleep
 *
 * Return: 0 or a negative errno; args->end() is called only after 0
 */
int fuse_simple_background(struct fuse_mount *fm, struct fuse_args *args, gfp_t gfp_flags)
{
	struct efuse_conn *ec = efuse_conn_get(fm->fc);

	if (!ec)
		return __fuse_simple_background(fm, args, gfp_flags);

	efuse_begin(args);
	efuse_count(ec, args->opcode, EFUSE_REQUESTS);
	if (efuse_local_release(args)) {
		efuse_released(ec, fm, args);
		efuse_args_end(fm, args, 0);
		return 0;
	}

	if (efuse_later(ec, fm, args, gfp_flags) ||
	    efuse_background_taken(ec, fm, args, gfp_flags))
		return 0;
	return efuse_background_send(ec, fm, args, gfp_flags);
}

/**
 * efuse_background_end - handle the answer of a background request
 * @freq: the request
 * @error: the daemon's answer, 0 or a negative errno
 *
 * Context: that of fuse_request_end(): the daemon's write(2), or the task that aborts
 */
void efuse_background_end(struct fuse_req *freq, int error)
{
	struct fuse_args *args = freq->args;
	struct efuse_conn *ec = efuse_conn_get(efuse_sent_on(freq));
	struct efuse_changes ch __uninitialized;
	struct efuse_req req __uninitialized;

	/* INIT is not issued by eFuse, which joins the connection later. */
	if (!ec || !args->efuse.epoch)
		return;
	efuse_req_init(&req, ec, args->efuse.fm, args);
	req.sent = &freq->in.h;
	req.error = error;
	efuse_changes_of(&ch, args);
	efuse_replied(&req, &ch);
	if (efuse_is_io(args))
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	trace_efuse_request(&req, error);
}
