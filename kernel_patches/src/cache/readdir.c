// SPDX-License-Identifier: GPL-2.0
/*
 * The size of a READDIR or READDIRPLUS. In Linux 6.12 FUSE asks for one page, which holds about 25
 * names with their attributes. In 7.3 it asks for as much as its caller.
 */
#include "cache_i.h"

#include <linux/gfp.h>
#include <linux/pagemap.h>

/*
 * The bytes to ask for. A mount without programs is plain FUSE: @plain. Otherwise max_readdir, but
 * not more than a READ of the daemon.
 */
static size_t efuse_readdir_bytes(const struct fuse_conn *fc, size_t plain)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec || !rcu_access_pointer(ec->ops))
		return plain;
	return max_t(size_t, min(READ_ONCE(ec->max_readdir), ec->daemon_read), PAGE_SIZE);
}

/*
 * The buffer for the answer is contiguous. If no such memory is free, the request becomes smaller.
 */
#ifdef EFUSE_HAS_CHAN
/**
 * efuse_readdir_size - get the size of a READDIR or READDIRPLUS
 * @fc: the connection
 * @plain: bytes that FUSE would ask for
 *
 * Return: bytes to ask for; with programs, at least a page
 */
size_t efuse_readdir_size(const struct fuse_conn *fc, size_t plain)
{
	return efuse_readdir_bytes(fc, plain);
}

/**
 * efuse_readdir_pages - allocate contiguous pages for the answer
 * @pages: filled with the pages; the caller frees each one separately
 * @nr: number of pages wanted
 *
 * Context: process context, may sleep.
 * Return: number of pages allocated; 0 if there is no memory
 */
unsigned int efuse_readdir_pages(struct page **pages, unsigned int nr)
{
	unsigned int order = get_order(nr * PAGE_SIZE), i;
	struct page *first;

	while (!(first = alloc_pages(order ? GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN :
				     GFP_KERNEL_ACCOUNT, order)) && order)
		order--;
	if (!first)
		return 0;
	if (order)
		split_page(first, order);
	for (i = 0; i < 1U << order; i++) {
		if (i < nr)
			pages[i] = first + i;
		else
			__free_page(first + i);
	}
	return min(nr, 1U << order);
}
#else
/**
 * efuse_readdir_folio - allocate a folio for the answer of a READDIR or READDIRPLUS
 * @fc: the connection
 * @length: set to the bytes to ask for
 *
 * Context: process context, may sleep.
 * Return: a folio of at least @length bytes, not in high memory; or NULL.
 */
struct folio *efuse_readdir_folio(struct fuse_conn *fc, unsigned int *length)
{
	size_t bytes = efuse_readdir_bytes(fc, PAGE_SIZE);
	struct folio *folio = NULL;
	unsigned int order;

	for (order = get_order(bytes); order && !folio; order--)
		folio = folio_alloc(GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN, order);
	if (!folio)
		folio = folio_alloc(GFP_KERNEL_ACCOUNT, 0);
	if (folio)
		*length = min_t(size_t, bytes, folio_size(folio));
	return folio;
}
#endif
