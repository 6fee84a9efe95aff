// SPDX-License-Identifier: GPL-2.0
/*
 * How much of a directory one READDIR or READDIRPLUS asks for. FUSE asks for as much as
 * its caller, formerly for a page, which holds some 25 names with their attributes.
 */
#include "efuse_i.h"

#include <linux/gfp.h>
#include <linux/pagemap.h>

/* A mount without programs is plain FUSE; the daemon may say that it takes less. */
static size_t efuse_readdir_bytes(const struct fuse_conn *fc, size_t plain)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec || !rcu_access_pointer(ec->ops))
		return plain;
	return max_t(size_t, min(READ_ONCE(ec->max_readdir), ec->daemon_read), PAGE_SIZE);
}

/* What it is answered into lies in one piece; where memory is short or in pieces it is less. */
#ifdef EFUSE_HAS_CHAN
/**
 * efuse_readdir_size - how much a READDIR or READDIRPLUS asks for
 * @fc: the connection
 * @plain: what FUSE would ask for
 *
 * Return: bytes, a page at least
 */
size_t efuse_readdir_size(const struct fuse_conn *fc, size_t plain)
{
	return efuse_readdir_bytes(fc, plain);
}

/**
 * efuse_readdir_pages - pages for the answer, each of which is freed for itself
 * @pages: to be set
 * @nr: how many are wanted
 *
 * Context: process context, may sleep.
 * Return: how many there are; 0: not one
 */
unsigned int efuse_readdir_pages(struct page **pages, unsigned int nr)
{
	unsigned int order = get_order(nr * PAGE_SIZE), i;
	struct page *first;

	while (!(first = alloc_pages(order ? GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN :
				     GFP_KERNEL, order)) && order)
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
 * efuse_readdir_folio - room for the answer of a READDIR or READDIRPLUS
 * @fc: the connection
 * @length: set to the bytes to ask for
 *
 * Context: process context, may sleep.
 * Return: a folio of at least @length bytes in the kernel's own mapping, or NULL.
 */
struct folio *efuse_readdir_folio(struct fuse_conn *fc, unsigned int *length)
{
	size_t bytes = efuse_readdir_bytes(fc, PAGE_SIZE);
	struct folio *folio = NULL;
	unsigned int order;

	for (order = get_order(bytes); order && !folio; order--)
		folio = folio_alloc(GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN, order);
	if (!folio)
		folio = folio_alloc(GFP_KERNEL, 0);
	if (folio)
		*length = min_t(size_t, bytes, folio_size(folio));
	return folio;
}
#endif
