// SPDX-License-Identifier: GPL-2.0
/* Counts READs and WRITEs and their times, by the path that answered them. */
#include "io_i.h"

/* Counts how well the time of a request was predicted, and calls path_done(). */
static void efuse_path_measured(struct efuse_req *req, u64 ns)
{
	const struct efuse_args *args = &req->args->efuse;
	struct efuse_conn *ec = req->ec;
	struct efuse_ops *ops;

	if (args->predicted_ns) {
		efuse_count_path(ec, args->path, EFUSE_PATH_PREDICTED, 1);
		efuse_count_path(ec, args->path, EFUSE_PATH_PREDICTED_NS, args->predicted_ns);
		efuse_count_path(ec, args->path, EFUSE_PATH_ACTUAL_NS, ns);
		efuse_count_path(ec, args->path, EFUSE_PATH_ERROR_NS,
				 abs_diff(ns, args->predicted_ns));
	}
	req->path.path = args->path;
	req->path.note = args->note;
	req->path.elapsed_ns = ns;
	rcu_read_lock();
	ops = rcu_dereference(ec->ops);
	if (ops && ops->path_done)
		ops->path_done(req);
	rcu_read_unlock();
}

/**
 * efuse_path_done - count a READ or WRITE by the path that answered it
 * @req: the request with its answer
 * @path: the path that answered
 *
 * Context: process context.
 */
void efuse_path_done(struct efuse_req *req, enum efuse_path path)
{
	const struct fuse_args *args = req->args;
	const struct fuse_write_out *out = args->out_args[0].value;
	/* If no path was selected, there is only the time of issue. */
	u64 start_ns = args->efuse.path_start_ns ?: args->efuse.start_ns;
	u64 ns, bytes = 0;

	req->args->efuse.answered_by = path;
	if (!req->error)
		bytes = args->opcode == FUSE_READ ? args->out_args[0].size : out->size;
	efuse_count_path(req->ec, path, EFUSE_PATH_REQUESTS, 1);
	efuse_count_path(req->ec, path, EFUSE_PATH_BYTES, bytes);
	if (!start_ns)
		return;
	ns = ktime_get_ns() - start_ns;
	efuse_count_path_time(req->ec, path, ns);
	if (args->efuse.measured) {
		req->path.missed |= path != args->efuse.path;
		efuse_path_measured(req, ns);
	}
}
