// SPDX-License-Identifier: GPL-2.0
/*
 * What a device remembers: pages by their number, and zeroes where there is none.
 *
 * Whoever has found a page may use it until rcu_read_unlock(), even if it is taken out: a
 * discard frees it after that. What is then written to it is lost, as if the write had come
 * before the discard.
 */
#include "csd_i.h"

static void csd_page_free(struct rcu_head *head)
{
	__free_page(container_of(head, struct page, rcu_head));
}

static void csd_page_drop(struct xarray *memory, unsigned long index)
{
	struct page *page = xa_erase(memory, index);

	if (page)
		call_rcu(&page->rcu_head, csd_page_free);
}

/* Have a page there, unless it has come meanwhile. */
static int csd_page_add(struct xarray *memory, unsigned long index)
{
	struct page *page = alloc_page(GFP_NOIO | __GFP_ZERO);
	int err;

	if (!page)
		return -ENOMEM;
	err = xa_insert(memory, index, page, GFP_NOIO);
	if (err)
		__free_page(page);
	return err == -EBUSY ? 0 : err;
}

/* Bytes from @pos to the end of its page, @len at most. */
static u32 csd_page_rest(u64 pos, u64 len)
{
	return min_t(u64, len, PAGE_SIZE - offset_in_page(pos));
}

/* Where the bytes at @pos are, or NULL. */
static void *csd_memory_find(struct xarray *memory, u64 pos)
{
	struct page *page = xa_load(memory, pos >> PAGE_SHIFT);

	RCU_LOCKDEP_WARN(!rcu_read_lock_held(), "csd: a page may be freed while it is used");
	return page ? page_address(page) + offset_in_page(pos) : NULL;
}

/**
 * csd_memory_block - bytes where they are
 * @memory: of a device
 * @pos: where
 *
 * Context: rcu_read_lock() is held for as long as they are used.
 * Return: the bytes from there to the end of the page; zeroes where nothing was written
 */
const void *csd_memory_block(struct xarray *memory, u64 pos)
{
	return csd_memory_find(memory, pos) ?: page_address(ZERO_PAGE(0)) + offset_in_page(pos);
}

/**
 * csd_memory_read - copy from a device's memory
 * @memory: of a device
 * @pos: from where
 * @to: to where
 * @len: bytes
 */
void csd_memory_read(struct xarray *memory, u64 pos, void *to, u32 len)
{
	u32 part;

	for (; len; pos += part, to += part, len -= part) {
		part = csd_page_rest(pos, len);
		rcu_read_lock();
		memcpy(to, csd_memory_block(memory, pos), part);
		rcu_read_unlock();
	}
}

/**
 * csd_memory_write - copy to a device's memory
 * @memory: of a device
 * @pos: to where
 * @from: from where
 * @len: bytes
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; part of it may have been written then
 */
int csd_memory_write(struct xarray *memory, u64 pos, const void *from, u32 len)
{
	void *to;
	u32 part;
	int err;

	while (len) {
		part = csd_page_rest(pos, len);
		rcu_read_lock();
		to = csd_memory_find(memory, pos);
		if (to)
			memcpy(to, from, part);
		rcu_read_unlock();
		if (!to) {
			err = csd_page_add(memory, pos >> PAGE_SHIFT);
			if (err)
				return err;
			continue;
		}
		pos += part;
		from += part;
		len -= part;
	}
	return 0;
}

static void csd_memory_clear(struct xarray *memory, u64 pos, u32 len)
{
	void *to;

	rcu_read_lock();
	to = csd_memory_find(memory, pos);
	if (to)
		memset(to, 0, len);
	rcu_read_unlock();
}

static void csd_pages_drop(struct xarray *memory, unsigned long first, unsigned long last)
{
	struct page *page;
	unsigned long i;

	xa_for_each_range(memory, i, page, first, last) {
		csd_page_drop(memory, i);
		cond_resched();
	}
}

/**
 * csd_memory_zero - make a part of a device's memory zeroes; whole pages are freed
 * @memory: of a device
 * @pos: from where
 * @len: bytes
 *
 * Context: process context, may sleep.
 */
void csd_memory_zero(struct xarray *memory, u64 pos, u64 len)
{
	u64 end = pos + len;
	u32 part;

	if (offset_in_page(pos) && len) {
		part = csd_page_rest(pos, len);
		csd_memory_clear(memory, pos, part);
		pos += part;
	}
	if (offset_in_page(end) && pos < end) {
		part = offset_in_page(end);
		end -= part;
		csd_memory_clear(memory, end, part);
	}
	if (pos < end)
		csd_pages_drop(memory, pos >> PAGE_SHIFT, (end >> PAGE_SHIFT) - 1);
}

/**
 * csd_memory_truncate - forget all from a place on
 * @memory: of a device
 * @pos: of a page
 *
 * Context: process context, may sleep.
 */
void csd_memory_truncate(struct xarray *memory, u64 pos)
{
	csd_pages_drop(memory, pos >> PAGE_SHIFT, ULONG_MAX);
}
