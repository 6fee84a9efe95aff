// SPDX-License-Identifier: GPL-2.0
/*
 * Iterators over the data of a READ or WRITE, which may be in pages, in a kernel buffer or in the
 * caller's own buffer.
 */
#include "cache_i.h"

/* READ: bytes of room for data. WRITE: bytes of data. */
static size_t efuse_data_size(const struct fuse_args *args)
{
	return args->opcode == FUSE_READ ? args->out_args[0].size : args->in_args[1].size;
}

static bool efuse_data_in_pages(const struct fuse_args *args)
{
	return args->in_pages || args->out_pages;
}

/**
 * efuse_data_start - set a position to the start of a request's data
 * @data: the position
 * @args: arguments of a READ or WRITE
 * @direction: ITER_DEST to copy into the data, ITER_SOURCE to copy from it
 */
void efuse_data_start(struct efuse_data *data, struct fuse_args *args, unsigned int direction)
{
	data->args = args;
	data->direction = direction;
	data->left = efuse_data_size(args);
	data->index = 0;
	data->skip = 0;
	if (args->efuse.iter)
		data->iter = *args->efuse.iter;
}

static void efuse_data_user(struct efuse_data *data, struct iov_iter *iter, size_t len)
{
	*iter = data->iter;
	iov_iter_truncate(iter, len);
	iov_iter_advance(&data->iter, len);
}

static void efuse_data_kvec(struct efuse_data *data, struct efuse_span *span,
			    struct iov_iter *iter, size_t len)
{
	struct fuse_args *args = data->args;
	void *base = args->opcode == FUSE_READ ? args->out_args[0].value :
						 (void *)args->in_args[1].value;

	span->kvec.iov_base = base + data->skip;
	span->kvec.iov_len = len;
	data->skip += len;
	iov_iter_kvec(iter, data->direction, &span->kvec, 1, len);
}

/**
 * efuse_data_next - get an iterator over the next bytes of a request's data
 * @data: the position; advanced by the bytes of @iter
 * @span: memory for the segments of @iter, which must stay as long as @iter is used
 * @iter: set to the next bytes: as many as @span can describe, at most @len
 * @len: bytes wanted; may be more than are left
 *
 * Return: number of bytes of @iter; 0 at the end of the data.
 */
size_t efuse_data_next(struct efuse_data *data, struct efuse_span *span, struct iov_iter *iter,
		       size_t len)
{
	struct fuse_args_pages *ap = container_of(data->args, struct fuse_args_pages, args);
	size_t bytes = 0;
	int nr = 0;

	len = min(len, data->left);
	if (!efuse_data_in_pages(data->args)) {
		if (data->args->efuse.iter)
			efuse_data_user(data, iter, len);
		else
			efuse_data_kvec(data, span, iter, len);
		data->left -= len;
		return len;
	}
	while (bytes < len && nr < EFUSE_DATA_PAGES && data->index < ap->num_folios) {
		const typeof(*ap->descs) *desc = &ap->descs[data->index];
		size_t part = min_t(size_t, desc->length - data->skip, len - bytes);

		efuse_page_bvec(&span->bvec[nr++], ap, data->index, part,
				desc->offset + data->skip);
		bytes += part;
		data->skip += part;
		if (data->skip == desc->length) {
			data->skip = 0;
			data->index++;
		}
	}
	iov_iter_bvec(iter, data->direction, span->bvec, nr, bytes);
	data->left -= bytes;
	return bytes;
}

/* Advance a position by @len bytes, or to the end of the data. */
void efuse_data_skip(struct efuse_data *data, size_t len)
{
	struct efuse_span span __uninitialized;
	struct iov_iter iter;

	size_t part;

	while (len && (part = efuse_data_next(data, &span, &iter, len)))
		len -= part;
}

/**
 * efuse_data_end - complete the data of a READ that may be shorter than its room
 * @args: arguments of the READ
 * @done: bytes of data that are valid
 *
 * In pages of the page cache, the rest is zeroed, as FUSE does it.
 */
void efuse_data_end(struct fuse_args *args, size_t done)
{
	struct efuse_data data;
	struct efuse_span span __uninitialized;
	struct iov_iter iter;
	size_t len;

	efuse_data_start(&data, args, ITER_DEST);
	if (args->page_zeroing && done < data.left) {
		efuse_data_skip(&data, done);
		while ((len = efuse_data_next(&data, &span, &iter, SIZE_MAX)))
			iov_iter_zero(len, &iter);
	}
}
