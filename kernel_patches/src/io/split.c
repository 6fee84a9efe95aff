// SPDX-License-Identifier: GPL-2.0
/*
 * Splits a READ or WRITE into parts, each with a request of its own: because the daemon takes less
 * than the whole in one request, or because the data cache has the rest.
 *
 * If the request's data lies in the caller's own pages, a part may get pages of the kernel instead.
 * The data cache must keep what the daemon saw, and the caller could change its pages while they
 * are copied.
 */
#include "io_i.h"

/**
 * struct efuse_part - a part of a READ or WRITE
 * @io: the part's arguments, in and out
 * @req: the part as handlers see it; its args are those in @io
 * @whole: the arguments of the whole request if the part's end ends it, NULL if a caller waits for
 *         the part
 * @bounced: the part's pages belong to it and are freed with it
 */
struct efuse_part {
	struct efuse_io io;
	struct efuse_req req;
	struct fuse_args *whole;
	bool bounced;
};

static bool efuse_ops_keep_blocks(const struct efuse_req *req)
{
	const struct efuse_ops *ops;
	bool keep;

	rcu_read_lock();
	ops = rcu_dereference(req->ec->ops);
	keep = ops && ops->block && ops->learn;
	rcu_read_unlock();
	return keep && efuse_blocks_allowed(req);
}

static bool efuse_bounced(const struct efuse_req *req)
{
	const struct fuse_args *args = req->args;

	/* A request without pages has its data in a flat buffer or in the caller's iterator. */
	if (!args->in_pages && !args->out_pages)
		return true;
	return args->user_pages && efuse_ops_keep_blocks(req) &&
	       (args->opcode == FUSE_READ || efuse_arg_size(args) <= EFUSE_KEPT_WRITE);
}

/* The most bytes of a READ or WRITE that the daemon takes in one request. */
size_t efuse_daemon_limit(const struct efuse_req *req)
{
	const struct efuse_conn *ec = req->ec;

	return req->args->opcode == FUSE_READ ? ec->daemon_read : ec->daemon_write;
}

/**
 * efuse_split_needed - must a request be split?
 * @req: a READ or WRITE
 *
 * Return: true if the request is too large for the daemon, or needs pages of the kernel
 */
bool efuse_split_needed(const struct efuse_req *req)
{
	return efuse_arg_size(req->args) > efuse_daemon_limit(req) ||
	       (req->args->user_pages && efuse_bounced(req));
}

static void efuse_part_free(struct efuse_part *part)
{
	unsigned int i;

	if (part->bounced)
		for (i = 0; i < part->io.ap.num_folios; i++)
			put_page(efuse_page(&part->io.ap, i));
	efuse_pages_free(&part->io.ap);
	kfree(part);
}

/*
 * Gives a part pages of the kernel, laid out as in the page cache. With zero copy the daemon tells
 * how many bytes it has put there, and the caller gets them: they must not be old ones of the
 * kernel.
 */
static int efuse_part_bounce(struct efuse_part *part, u64 pos, size_t len)
{
	struct fuse_args_pages *ap = &part->io.ap;
	gfp_t gfp = GFP_KERNEL_ACCOUNT | (efuse_zero_copy(&ap->args) ? __GFP_ZERO : 0);
	unsigned int offset = offset_in_page(pos);

	if (!efuse_pages_alloc(ap, DIV_ROUND_UP(offset + len, PAGE_SIZE)))
		return -ENOMEM;
	part->bounced = true;
	while (len) {
		typeof(*ap->descs) *desc = &ap->descs[ap->num_folios];
		struct page *page = alloc_page(gfp);

		if (!page)
			return -ENOMEM;
		efuse_page_set(ap, ap->num_folios++, page);
		desc->offset = offset;
		desc->length = min_t(size_t, len, PAGE_SIZE - offset);
		len -= desc->length;
		offset = 0;
	}
	return 0;
}

/* Gives a part the pages that the whole has at @data. Moves @data on. */
static int efuse_part_share(struct efuse_part *part, struct efuse_data *data, size_t len)
{
	struct fuse_args_pages *whole = container_of(data->args, struct fuse_args_pages, args);
	struct fuse_args_pages *ap = &part->io.ap;

	if (!efuse_pages_alloc(ap, whole->num_folios - data->index))
		return -ENOMEM;
	ap->args.user_pages = data->args->user_pages;
	ap->args.is_pinned = data->args->is_pinned;
	ap->args.page_zeroing = data->args->page_zeroing;
	while (len && data->index < whole->num_folios) {
		const typeof(*whole->descs) *from = &whole->descs[data->index];
		typeof(*ap->descs) *desc = &ap->descs[ap->num_folios];

		efuse_page_set(ap, ap->num_folios++, efuse_page(whole, data->index));
		desc->offset = from->offset + data->skip;
		desc->length = min_t(size_t, len, from->length - data->skip);
		len -= desc->length;
		data->skip += desc->length;
		if (data->skip == from->length) {
			data->skip = 0;
			data->index++;
		}
	}
	return 0;
}

static void efuse_part_args(struct efuse_part *part, const struct fuse_args *whole, u64 pos,
			    size_t len)
{
	struct efuse_io *io = &part->io;
	struct fuse_args *args = &io->ap.args;

	args->opcode = whole->opcode;
	args->nodeid = whole->nodeid;
	args->efuse.uncached = whole->efuse.uncached;
	args->efuse.path = whole->efuse.path;
	args->efuse.asked = whole->efuse.asked;
	args->efuse.version = whole->efuse.version;
	args->efuse.settled = whole->efuse.settled;
	args->efuse.fresh = whole->efuse.fresh;
	/* Traced if the part covers the whole request. */
	args->efuse.begun_ns = whole->efuse.begun_ns;
	args->efuse.reason = whole->efuse.reason;
	/* The daemon gets at no more of a page than the part has of it. */
	efuse_zero_copy_set(args, efuse_zero_copy(whole));
	if (whole->opcode == FUSE_READ) {
		io->read = *(const struct fuse_read_in *)whole->in_args[0].value;
		args->out_pages = true;
	} else {
		memcpy(&io->write, whole->in_args[0].value,
		       min_t(size_t, whole->in_args[0].size, sizeof(io->write)));
		args->in_pages = true;
	}
	efuse_io_complete(io, pos, len);
	/* An old protocol version has a shorter argument. */
	args->in_args[0].size = whole->in_args[0].size;
}

/*
 * Copies up to @len bytes between a part and the place @whole in its request: to the request if it
 * is a READ, else to the part. Returns the bytes copied.
 */
static size_t efuse_part_copy(struct efuse_part *part, struct efuse_data whole, size_t len)
{
	bool read = part->io.ap.args.opcode == FUSE_READ;
	size_t done = 0;
	unsigned int i;

	whole.direction = read ? ITER_DEST : ITER_SOURCE;
	for (i = 0; i < part->io.ap.num_folios && done < len; i++) {
		const typeof(*part->io.ap.descs) *desc = &part->io.ap.descs[i];
		struct page *page = efuse_page(&part->io.ap, i);
		size_t want = min_t(size_t, desc->length, len - done), at = 0;
		struct efuse_span span __uninitialized;
		struct iov_iter iter;

		while (at < want) {
			size_t n = efuse_data_next(&whole, &span, &iter, want - at);
			size_t moved = read ?
				copy_page_to_iter(page, desc->offset + at, n, &iter) :
				copy_page_from_iter(page, desc->offset + at, n, &iter);

			if (!n || moved < n)
				return done;
			at += n;
			done += n;
		}
	}
	return done;
}

/*
 * Makes a part of [pos, pos + len) of a request. @data is the place of these bytes in the request,
 * and is moved past them.
 */
static struct efuse_part *efuse_part_new(struct efuse_req *req, struct efuse_data *data, u64 pos,
					 size_t len)
{
	struct efuse_part *part = kzalloc(sizeof(*part), GFP_KERNEL_ACCOUNT);
	struct efuse_data from = *data;
	int err;

	if (!part)
		return NULL;
	part->req = *req;
	part->req.args = &part->io.ap.args;
	part->req.replied = false;
	efuse_part_args(part, req->args, pos, len);
	if (efuse_bounced(req)) {
		efuse_data_skip(data, len);
		err = efuse_part_bounce(part, pos, len);
		if (!err && req->args->opcode == FUSE_WRITE &&
		    efuse_part_copy(part, from, len) < len)
			err = -EFAULT;
	} else {
		err = efuse_part_share(part, data, len);
		data->left -= len;
	}
	if (err) {
		efuse_part_free(part);
		return NULL;
	}
	return part;
}

/* Sends a part to the daemon. Returns the bytes it moved, or a negative errno. */
static ssize_t efuse_part_send(struct efuse_part *part)
{
	struct fuse_args *args = &part->io.ap.args;

	efuse_send(&part->req, &invalid_mnt_idmap);
	if (part->req.ret < 0)
		return part->req.ret;
	if (args->opcode == FUSE_READ)
		return args->out_args[0].size;
	return part->io.written.size <= part->io.write.size ? part->io.written.size : -EIO;
}

/* Ends a request that one part covers. Called in the context of the daemon's reply. */
static EFUSE_END(efuse_part_end)
{
	struct efuse_part *part = container_of(args, struct efuse_part, io.ap.args);
	struct fuse_mount *sent = part->req.fm;
	struct fuse_args *whole = part->whole;
	size_t got = args->out_args[0].size;
	struct efuse_data data;

	if (!error && args->opcode == FUSE_READ) {
		efuse_data_start(&data, whole, ITER_DEST);
		if (efuse_part_copy(part, data, got) < got)
			error = -EFAULT;
		whole->out_args[0].size = got;
	} else if (!error) {
		*(struct fuse_write_out *)whole->out_args[0].value = part->io.written;
	}
	efuse_part_free(part);
	efuse_args_end(sent, whole, error);
}

/* Fills a part from backing files if they have all of it, else by the daemon. */
static ssize_t efuse_part_fill(struct efuse_part *part)
{
	struct efuse_req *req = &part->req;

	req->args->efuse.attr_version = fuse_get_attr_version(req->fm->fc);
	if (efuse_path_direct(req)) {
		efuse_blocks_learn(req, NULL);
		return req->ret;
	}
	return efuse_part_send(part);
}

static ssize_t efuse_split_part(struct efuse_req *req, struct efuse_data *data, u64 pos, size_t len,
				ssize_t (*carry_out)(struct efuse_part *part))
{
	struct efuse_data at = *data;
	struct efuse_part *part;
	ssize_t ret;

	part = efuse_part_new(req, data, pos, len);
	if (!part)
		return -ENOMEM;
	ret = carry_out(part);
	req->racy |= part->req.racy;
	if (ret > 0 && part->bounced && req->args->opcode == FUSE_READ &&
	    efuse_part_copy(part, at, ret) < ret)
		ret = -EFAULT;
	efuse_part_free(part);
	return ret;
}

/*
 * Carries out part by part until one is short. Adds the bytes moved to @done. Returns 0 or a
 * negative errno.
 */
static int efuse_split_range(struct efuse_req *req, size_t at, size_t len,
			     ssize_t (*carry_out)(struct efuse_part *part), size_t *done)
{
	size_t limit = efuse_daemon_limit(req);
	u64 pos = efuse_arg_offset(req->args) + at;
	struct efuse_data data;

	efuse_data_start(&data, req->args, ITER_DEST);
	efuse_data_skip(&data, at);
	while (*done < len) {
		size_t want = min(len - *done, limit);
		ssize_t ret = efuse_split_part(req, &data, pos + *done, want, carry_out);

		if (ret < 0)
			return ret;
		*done += ret;
		if (ret < want)
			break;
	}
	return 0;
}

/**
 * efuse_split_fill - fill in a part of a READ
 * @req: the READ
 * @at: start of the part in the READ's data, bytes
 * @len: size of the part, bytes
 *
 * Context: process context, may sleep.
 * Return: bytes filled in, fewer than @len only at the end of the file; or a negative errno
 */
ssize_t efuse_split_fill(struct efuse_req *req, size_t at, size_t len)
{
	size_t done = 0;

	return efuse_split_range(req, at, len, efuse_part_fill, &done) ?: done;
}

/**
 * efuse_split_background - send a background request to the daemon with pages of the kernel
 * @req: a READ or WRITE that the daemon takes in one request
 *
 * Context: process context, may sleep.
 * Return: true if the request is sent; args->end() will be called then
 */
bool efuse_split_background(struct efuse_req *req)
{
	struct fuse_args *whole = req->args;
	struct efuse_data data;
	struct efuse_part *part;

	efuse_data_start(&data, whole, ITER_DEST);
	part = efuse_part_new(req, &data, efuse_arg_offset(whole), efuse_arg_size(whole));
	if (!part)
		return false;
	part->whole = whole;
	part->io.ap.args.end = efuse_part_end;
	if (!efuse_background_send(req->ec, req->fm, &part->io.ap.args, GFP_KERNEL))
		return true;
	efuse_part_free(part);
	return false;
}

/**
 * efuse_split_all - send a READ or WRITE to the daemon in parts
 * @req: the request; @req->ret and @req->error hold the answer afterwards
 *
 * A WRITE that fails after some bytes were written is a short WRITE, not a failed one. A READ
 * fails: a short READ would mean the end of the file. A short write-back fails too, because FUSE
 * does not look at how much of it was written.
 *
 * Context: process context, may sleep.
 */
void efuse_split_all(struct efuse_req *req)
{
	size_t done = 0, size = efuse_arg_size(req->args);
	struct fuse_args *args = req->args;
	struct fuse_write_out *out = args->out_args[0].value;
	bool write_back = efuse_is_write_back(args);
	int err;

	err = efuse_split_range(req, 0, size, efuse_part_send, &done);
	if (!err && write_back && done < size)
		err = -EIO;
	if (err && (args->opcode == FUSE_READ || write_back || !done)) {
		req->ret = err;
		req->error = err;
		return;
	}
	if (args->opcode == FUSE_READ) {
		efuse_data_end(args, done);
		args->out_args[0].size = done;
		req->ret = done;
	} else {
		memset(out, 0, sizeof(*out));
		out->size = done;
		req->ret = 0;
	}
}
