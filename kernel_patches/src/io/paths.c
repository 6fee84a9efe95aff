// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses the path of a READ or WRITE: the path forced in sysfs; else the one that the program's
 * select_path() returns; else the direct path if the daemon mapped extents of the file; else, for a
 * READ, the data cache. A request that its path cannot carry out goes to the daemon, except that a
 * request of the device path goes to the direct path first.
 */
#include "io_i.h"

/* After this many gaps of the data cache were filled one by one, all of the rest is fetched. */
#define EFUSE_MAX_GAPS		4

/*
 * Did the daemon map any of the file? FUSE's page cache is bypassed (efuse.iter) only where it did.
 */
static bool efuse_path_mapped(const struct efuse_req *req)
{
	return req->args->efuse.iter || xa_load(&req->ec->backed, req->args->nodeid);
}

static enum efuse_path efuse_path_default(const struct efuse_req *req, const struct efuse_ops *ops)
{
	if (efuse_path_mapped(req))
		return EFUSE_PATH_DIRECT;
	return ops && ops->block && req->args->opcode == FUSE_READ ? EFUSE_PATH_CACHE :
								      EFUSE_PATH_DAEMON;
}

/* A bit 1 << EFUSE_PATH_* for each path that may take the request. */
static u32 efuse_path_eligible(const struct efuse_req *req)
{
	const struct efuse_ops *ops = rcu_dereference(req->ec->ops);
	u32 eligible = 1 << EFUSE_PATH_DAEMON;

	if (efuse_path_mapped(req)) {
		eligible |= 1 << EFUSE_PATH_DIRECT;
		if (READ_ONCE(req->ec->on_device) && req->args->opcode == FUSE_READ)
			eligible |= 1 << EFUSE_PATH_DEVICE;
	}
	if (ops && ops->block && req->args->opcode == FUSE_READ && efuse_blocks_allowed(req))
		eligible |= 1 << EFUSE_PATH_CACHE;
	return eligible;
}

/**
 * efuse_path_describe - fill in what select_path() and path_done() may know
 * @req: the request that the member was called for
 *
 * Context: within rcu_read_lock().
 * Return: the filled-in @req->path
 */
const struct efuse_path_info *efuse_path_describe(struct efuse_req *req)
{
	struct efuse_path_info *info = &req->path;

	info->eligible = efuse_path_eligible(req);
	info->depth = atomic_read(&raw_cpu_ptr(req->ec->stats)->depth);
	info->round = READ_ONCE(req->ec->round);
	info->probes = READ_ONCE(req->ec->probes);
	return info;
}

/* The path that the program chooses, or EFUSE_PATH_AUTO. */
static enum efuse_path efuse_path_ask(struct efuse_req *req, const struct efuse_ops *ops)
{
	struct efuse_args *args = &req->args->efuse;
	u32 choice, path;

	if (!ops || !ops->select_path)
		return EFUSE_PATH_AUTO;
	choice = ops->select_path(req);
	path = choice & ~(EFUSE_PATH_MEASURE | EFUSE_PATH_PROBE);
	if (path >= EFUSE_NR_PATHS) {
		this_cpu_inc(req->ec->stats->invalid_verdicts);
		return EFUSE_PATH_AUTO;
	}
	args->measured = choice & EFUSE_PATH_MEASURE;
	if (choice & EFUSE_PATH_PROBE)
		efuse_count_path(req->ec, path, EFUSE_PATH_PROBES, 1);
	return path;
}

static void efuse_path_select(struct efuse_req *req)
{
	struct efuse_args *args = &req->args->efuse;
	struct efuse_conn *ec = req->ec;
	struct efuse_ops *ops;

	args->measured = false;
	args->predicted_ns = 0;
	args->note = 0;
	args->path = READ_ONCE(ec->forced_path);
	if (args->path == EFUSE_PATH_AUTO) {
		rcu_read_lock();
		ops = rcu_dereference(ec->ops);
		args->path = efuse_path_ask(req, ops) ?: efuse_path_default(req, ops);
		rcu_read_unlock();
	}
	args->path_start_ns = args->measured || efuse_timed(ec) ? ktime_get_ns() : 0;
	efuse_count_path(ec, args->path, EFUSE_PATH_CHOSEN, 1);
}

/*
 * Answers a READ from the data cache. Bytes missing there are filled in from backing files or by
 * the daemon. False: the READ is to go another way, for @req->reason.
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
		if (gap == size && !xa_load(&req->ec->backed, args->nodeid)) {
			/* block() gives no reason for a block that it does not find. */
			req->reason = req->reason ?: EFUSE_MISS;
			return false;
		}
		ret = efuse_split_fill(req, done, gap);
		if (ret < 0) {
			req->reason = EFUSE_FAILED;
			req->stop = ret == -EFAULT ? EFUSE_STOP_FAULT : EFUSE_STOP_ERROR;
			return false;
		}
		efuse_data_skip(&data, ret);
		done += ret;
		eof = ret < gap;
	}
	if (gaps) {
		efuse_count_path(req->ec, EFUSE_PATH_CACHE, EFUSE_PATH_PARTIAL, 1);
		req->path.missed = 1;
	}
	efuse_direct_shown(req);
	req->stop = eof ? EFUSE_STOP_EOF : EFUSE_STOP_ALL;
	efuse_data_end(args, done);
	args->out_args[0].size = done;
	req->ret = done;
	return true;
}

static bool efuse_path_device(struct efuse_req *req)
{
	bool done;

	req->at_device = req->args->opcode == FUSE_READ;
	done = req->at_device && efuse_path_direct(req);
	req->at_device = false;
	return done;
}

/* Tries a path. @path is set to the one that was tried last. */
static bool efuse_path_try(struct efuse_req *req, enum efuse_path *path)
{
	switch (*path) {
	case EFUSE_PATH_DEVICE:
		if (efuse_path_device(req))
			return true;
		*path = EFUSE_PATH_DIRECT;
		req->reason = 0;
		fallthrough;
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
 * Return: true if the request is answered: @req->ret is what the caller gets. Otherwise it goes to
 *         the daemon: @req->reason tells why
 */
bool efuse_path_take(struct efuse_req *req)
{
	enum efuse_path path;

	efuse_path_select(req);
	path = req->args->efuse.path;
	if (!efuse_path_try(req, &path))
		return false;
	efuse_path_done(req, path);
	return true;
}
