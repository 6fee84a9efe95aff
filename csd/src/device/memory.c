// SPDX-License-Identifier: GPL-2.0
/*
 * A device's memory: pages by their number; a page that does not exist counts as zeroes.
 *
 * A page that was found may be used until rcu_read_unlock(), even if it is removed meanwhile: a
 * discard frees it after that. Bytes written to it then are lost, as if the write had come before
 * the discard.
 */
#include "device_i.h"

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

/* Adds a page, unless it was added meanwhile. */
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

/* Address of the byte at @pos, or NULL if its page does not exist. Under rcu_read_lock(). */
static void *csd_memory_find(struct xarray *memory, u64 pos)
{
	struct page *page = xa_load(memory, pos >> PAGE_SHIFT);

	RCU_LOCKDEP_WARN(!rcu_read_lock_held(), "csd: a page may be freed while it is used");
	return page ? page_address(page) + offset_in_page(pos) : NULL;
}

/**
 * csd_memory_block - get the bytes at a position without copying them
 * @memory: memory of a device
 * @pos: position in bytes
 *
 * Context: rcu_read_lock() must be held as long as the bytes are used.
 * Return: address of the bytes from @pos to the end of the page; zeroes if nothing was written
 *         there
 */
const void *csd_memory_block(struct xarray *memory, u64 pos)
{
	return csd_memory_find(memory, pos) ?: page_address(ZERO_PAGE(0)) + offset_in_page(pos);
}

/**
 * csd_memory_read - copy from a device's memory
 * @memory: memory of a device
 * @pos: position in the memory, bytes
 * @to: destination
 * @len: number of bytes
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
 * @memory: memory of a device
 * @pos: position in the memory, bytes
 * @from: source
 * @len: number of bytes
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno; a part may have been written then
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
 * csd_memory_zero - zero a part of a device's memory; whole pages are freed
 * @memory: memory of a device
 * @pos: position in the memory, bytes
 * @len: number of bytes
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
 * csd_memory_truncate - free all pages from a position on
 * @memory: memory of a device
 * @pos: position in the memory in bytes, the start of a page
 *
 * Context: process context, may sleep.
 */
void csd_memory_truncate(struct xarray *memory, u64 pos)
{
	csd_pages_drop(memory, pos >> PAGE_SHIFT, ULONG_MAX);
}
