// SPDX-License-Identifier: GPL-2.0
/*
 * The path of a READ or WRITE. What is forced in sysfs goes first, then what the
 * program's select_path() says, then the direct path where the daemon mapped
 * extents, then the data cache. A path that cannot take a request leaves it to the
 * daemon.
 */
#include "efuse_i.h"

/* So many gaps in what the data cache has are filled; then all of the rest is. */
#define EFUSE_MAX_GAPS		4

static enum efuse_path efuse_path_default(const struct efuse_req *req, const struct efuse_ops *ops)
{
	if (xa_load(&req->ec->backed, req->args->nodeid))
		return EFUSE_PATH_DIRECT;
	return ops && ops->block && req->args->opcode == FUSE_READ ? EFUSE_PATH_CACHE :
								      EFUSE_PATH_DAEMON;
}

static enum efuse_path efuse_path_select(struct efuse_req *req)
{
	struct efuse_conn *ec = req->ec;
	u8 path = READ_ONCE(ec->forced_path);
	struct efuse_ops *ops;
	int chosen;

	if (path != EFUSE_PATH_AUTO)
		return path;
	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	chosen = ops && ops->select_path ? ops->select_path(req) : EFUSE_PATH_AUTO;
	if (chosen <= EFUSE_PATH_AUTO || chosen >= EFUSE_NR_PATHS) {
		if (chosen != EFUSE_PATH_AUTO)
			this_cpu_inc(ec->stats->garbage);
		chosen = efuse_path_default(req, ops);
	}
	rcu_read_unlock();
	return chosen;
}

/**
 * efuse_path_done - count a READ or WRITE by the path that answered it
 * @req: it, with its answer
 * @path: that answered
 * @start_ns: when it was begun, 0 if it is not timed
 */
void efuse_path_done(struct efuse_req *req, enum efuse_path path, u64 start_ns)
{
	const struct fuse_args *args = req->args;
	const struct fuse_write_out *out = args->out_args[0].value;
	u64 bytes = 0;

	if (!req->error)
		bytes = args->opcode == FUSE_READ ? args->out_args[0].size : out->size;
	efuse_count_path(req->ec, path, EFUSE_PATH_REQUESTS, 1);
	efuse_count_path(req->ec, path, EFUSE_PATH_BYTES, bytes);
	if (start_ns) {
		efuse_count_path(req->ec, path, EFUSE_PATH_NS, ktime_get_ns() - start_ns);
		efuse_count_path(req->ec, path, EFUSE_PATH_TIMED, 1);
	}
}

/**
 * efuse_path_direct - answer a READ or WRITE out of backing files
 * @req: it
 *
 * Context: process context, may sleep; not within io_srcu.
 * Return: whether it is answered; @req->reason says why not.
 */
bool efuse_path_direct(struct efuse_req *req)
{
	struct efuse_conn *ec = req->ec;
	struct efuse_changes ch;
	bool done;
	int idx;

	if (xa_empty(&ec->backed)) {
		req->reason = EFUSE_UNMAPPED;
		return false;
	}
	efuse_changes_issue(&ch, ec, req->fm, req->args);
	efuse_epoch_begin(ec, &ch);
	req->args->efuse.epoch = efuse_epoch_now(ec);
	idx = srcu_read_lock(&ec->io_srcu);
	done = req->args->opcode == FUSE_READ ? efuse_direct_read(req) : efuse_direct_write(req);
	srcu_read_unlock(&ec->io_srcu, idx);
	/* Also where it goes on to the daemon: some of it may be written. */
	efuse_epoch_end(ec, &ch, req->args->efuse.epoch);
	return done;
}

/*
 * A READ out of the data cache. What is missing there is filled in from backing files or
 * by the daemon; false if that is all of it, and the daemon's.
 */
static bool efuse_path_cache(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	size_t done = 0, size = args->out_args[0].size, gap;
	u64 pos = efuse_arg_offset(args);
	struct efuse_data data;
	bool eof = false;
	ssize_t ret;
	int gaps = 0;

	if (args->opcode != FUSE_READ || !efuse_blocks_allowed(req)) {
		req->reason = EFUSE_DECLINED;
		return false;
	}
	efuse_data_start(&data, args, ITER_DEST);
	for (;;) {
		done += efuse_blocks_read(req, &data, pos + done, &eof);
		if (eof || done == size)
			break;
		gap = gaps++ < EFUSE_MAX_GAPS ? efuse_blocks_missing(req, pos + done, size - done) :
						size - done;
		if (gap == size && !xa_load(&req->ec->backed, args->nodeid))
			return false;
		ret = efuse_ask_fill(req, done, gap);
		if (ret < 0)
			return false;
		efuse_data_skip(&data, ret);
		done += ret;
		eof = ret < gap;
	}
	if (gaps)
		efuse_count_path(req->ec, EFUSE_PATH_CACHE, EFUSE_PATH_PARTIAL, 1);
	efuse_data_end(args, done);
	args->out_args[0].size = done;
	req->ret = done;
	return true;
}

static bool efuse_path_try(struct efuse_req *req, enum efuse_path path)
{
	switch (path) {
	case EFUSE_PATH_DIRECT:
		return efuse_path_direct(req);
	case EFUSE_PATH_CACHE:
		return efuse_path_cache(req);
	default:
		return false;
	}
}

/**
 * efuse_path_take - answer a READ or WRITE in the kernel
 * @req: a request that its handler passed
 *
 * Context: process context, may sleep.
 * Return: whether it is answered; @req->ret is what the caller gets. It goes to the
 * daemon otherwise, @req->reason says why.
 */
bool efuse_path_take(struct efuse_req *req)
{
	u64 start_ns = efuse_timed(req->ec) ? ktime_get_ns() : 0;
	enum efuse_path path = efuse_path_select(req);

	efuse_count_path(req->ec, path, EFUSE_PATH_CHOSEN, 1);
	if (!efuse_path_try(req, path))
		return false;
	efuse_path_done(req, path, start_ns);
	return true;
}
