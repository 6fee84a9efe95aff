// SPDX-License-Identifier: GPL-2.0
/* The data of a READ or WRITE, wherever its request keeps it, as an iterator. */
#include "efuse_i.h"

/* Bytes of data that the request has room for, or brings. */
static size_t efuse_data_size(const struct fuse_args *args)
{
	return args->opcode == FUSE_READ ? args->out_args[0].size : args->in_args[1].size;
}

static bool efuse_data_in_pages(const struct fuse_args *args)
{
	return args->in_pages || args->out_pages;
}

/**
 * efuse_data_start - the start of a request's data
 * @data: set to it
 * @args: a READ's or WRITE's
 * @direction: ITER_DEST to put bytes there, ITER_SOURCE to take them
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
 * efuse_data_next - the next bytes of a request's data
 * @data: where; moved on
 * @span: room for what @iter goes over
 * @iter: set to as many of them as @span has room for, and to @len at most
 * @len: bytes; more than are left is cut
 *
 * Return: how many bytes @iter has; 0 at the end.
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

void efuse_data_skip(struct efuse_data *data, size_t len)
{
	struct efuse_span span __uninitialized;
	struct iov_iter iter;

	size_t part;

	while (len && (part = efuse_data_next(data, &span, &iter, len)))
		len -= part;
}

/**
 * efuse_data_end - a READ is answered with what was put into its data so far
 * @args: its
 * @done: bytes from the data's start
 *
 * Pages of the page cache become zeros behind that, as FUSE has it.
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
