// SPDX-License-Identifier: GPL-2.0
/*
 * How much of a directory one READDIR or READDIRPLUS asks for. FUSE asks for a page,
 * which holds some 25 names with their attributes.
 */
#include "efuse_i.h"

#include <linux/gfp.h>
#include <linux/pagemap.h>

/* A mount without programs is plain FUSE; the daemon may say that it takes less. */
static u32 efuse_readdir_bytes(const struct fuse_conn *fc)
{
	const struct efuse_conn *ec = efuse_conn_get(fc);

	if (!ec || !rcu_access_pointer(ec->ops))
		return PAGE_SIZE;
	return max_t(u32, min(READ_ONCE(ec->max_readdir), ec->daemon_read), PAGE_SIZE);
}

/**
 * efuse_readdir_folio - room for the answer of a READDIR or READDIRPLUS
 * @fc: the connection
 * @length: set to the bytes to ask for
 *
 * Where memory is short or in pieces it is less: at least a page.
 *
 * Context: process context, may sleep.
 * Return: a folio of at least @length bytes in the kernel's own mapping, or NULL.
 */
struct folio *efuse_readdir_folio(struct fuse_conn *fc, unsigned int *length)
{
	u32 bytes = efuse_readdir_bytes(fc);
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
