// SPDX-License-Identifier: GPL-2.0
/* Which blocks of a file the page cache has. */
#include "run_i.h"

#include <linux/fs.h>
#include <linux/pagemap.h>

/**
 * csd_resident - count the blocks of a file that the page cache has
 * @file: the file
 * @position: offset of the first block in the file, in bytes
 * @blocks: number of blocks to check
 *
 * Context: process context.
 * Return: number of these blocks in the page cache; blocks that are still being read do not count
 */
u32 csd_resident(const struct file *file, u64 position, u32 blocks)
{
	XA_STATE(xas, &file->f_mapping->i_pages, position >> PAGE_SHIFT);
	pgoff_t first = position >> PAGE_SHIFT, last = first + blocks - 1;
	struct folio *folio;
	u32 resident = 0;

	rcu_read_lock();
	xas_for_each(&xas, folio, last) {
		if (xas_retry(&xas, folio) || xa_is_value(folio))
			continue;
		if (folio_test_uptodate(folio))
			resident += min(folio_next_index(folio) - 1, last) -
				    max(folio->index, first) + 1;
		if (folio_next_index(folio) > last)
			break;
	}
	rcu_read_unlock();
	return min(resident, blocks);
}
