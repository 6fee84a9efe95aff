// SPDX-License-Identifier: GPL-2.0
/* The way of a request: through its handler, or else to the daemon and back. */
#include "efuse_i.h"
#include "core/trace.h"

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

/* Counts and traces a RELEASE or FLUSH of a file that the kernel opened itself. */
void efuse_released(struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args)
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
 * No handler answered the request. A READ or WRITE may still be answered by a path in the kernel,
 * and so may an IOCTL that the daemon does not implement; then true. False: it goes to the daemon,
 * and the reason is counted.
 */
bool efuse_passed(struct efuse_req *req, enum efuse_counter reason)
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
	if (efuse_terminal_unknown(req)) {
		req->ret = EFUSE_NOT_IMPLEMENTED;
		req->args->efuse.answered_by = EFUSE_ANSWERED_BY_KERNEL;
		efuse_count(ec, opcode, EFUSE_HITS);
		return true;
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
			this_cpu_inc(ec->stats->invalid_verdicts);
		if ((opcode == FUSE_OPEN || opcode == FUSE_OPENDIR) &&
		    !efuse_handle_later(ec, req->args)) {
			req->replied = false;
			return efuse_passed(req, EFUSE_DECLINED);
		}
		req->args->efuse.answered_by = EFUSE_ANSWERED_BY_HANDLER;
		efuse_count(ec, opcode, EFUSE_HITS);
		return true;
	}
	if (!verdict || !efuse_verdict_counts(req->args))
		return efuse_passed(req, req->reason ?: EFUSE_MISS);
	if (verdict < 0 && verdict >= -EFUSE_MAX_ERRNO && verdict != EFUSE_NOT_IMPLEMENTED) {
		req->ret = verdict;
		req->args->efuse.answered_by = EFUSE_ANSWERED_BY_REFUSAL;
		efuse_count(ec, opcode, EFUSE_REFUSED);
		return true;
	}
	this_cpu_inc(ec->stats->invalid_verdicts);
	return efuse_passed(req, EFUSE_INVALID_VERDICT);
}

/*
 * Is this the RELEASE of a file that the kernel opened itself? The daemon does not know its handle
 * and need not see the RELEASE. But if a flock was taken through the file, the daemon has that
 * lock, and only the RELEASE tells it that the lock ends. It must see the RELEASE, too, if it was
 * asked for a handle since.
 */
bool efuse_local_release(struct efuse_conn *ec, const struct fuse_args *args)
{
	const struct fuse_release_in *in;

	if ((args->opcode != FUSE_RELEASE && args->opcode != FUSE_RELEASEDIR) ||
	    !args->efuse.local)
		return false;
	in = efuse_req_in(args, sizeof(*in));
	if (in && in->release_flags & FUSE_RELEASE_FLOCK_UNLOCK)
		return false;
	return !efuse_translates(ec) || efuse_handle_drop(ec, efuse_arg_fh(args));
}

/*
 * Is this the FLUSH of a file that the daemon does not know to be open? Nothing was written to it,
 * and the daemon keeps no locks: see efuse_opens_later().
 */
static bool efuse_local_flush(struct efuse_conn *ec, const struct fuse_args *args)
{
	return args->opcode == FUSE_FLUSH && args->efuse.local && efuse_translates(ec) &&
	       efuse_connected(ec->fc) && efuse_handle_unopened(ec, efuse_arg_fh(args));
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
	if (start && req->replied)
		efuse_count_hit_time(ec, args->opcode, ktime_get_ns() - start);
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
	if (efuse_local_release(ec, args) || efuse_local_flush(ec, args)) {
		efuse_begin(args);
		efuse_count(ec, args->opcode, EFUSE_REQUESTS);
		efuse_released(ec, fm, args);
		return 0;
	}
	if (efuse_answer_now(&req, ec, fm, args))
		return req.ret;

	/* A FORGET sent as a request: for a READDIRPLUS entry that was not used. */
	if (args->opcode == FUSE_FORGET)
		efuse_forget_request(ec, args->nodeid);
	if (args->opcode == FUSE_GETXATTR || args->opcode == FUSE_LISTXATTR ||
	    args->opcode == FUSE_READLINK)
		efuse_version_issue(&req);
	if (efuse_is_io(args) && efuse_split_needed(&req))
		efuse_split_all(&req);
	else
		efuse_send(&req, idmap);
	if (efuse_is_io(args))
		efuse_path_done(&req, EFUSE_PATH_DAEMON);
	trace_efuse_request(&req, req.ret);
	return req.ret;
}
