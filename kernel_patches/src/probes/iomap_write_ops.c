// SPDX-License-Identifier: GPL-2.0
#include <linux/iomap.h>

static struct folio *probe(const struct iomap_write_ops *ops, struct iomap_iter *iter)
{
	return ops->get_folio(iter, 0, 1);
}
