// SPDX-License-Identifier: GPL-2.0
/*
 * Stores to FUSE's pages, by a write(2) and through maps. The rest of such a page is written back
 * together with the stored bytes. So the page must not be void, and no WRITE may change the backing
 * file under it meanwhile.
 */
#include "cache_i.h"

#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/wait_bit.h>

#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
#include <linux/iomap.h>
#endif

/*
 * A clean void page is dropped before bytes are stored to it, since its old bytes would be written
 * back with the stored ones. It is read again then. The inode's epoch does not tell that the new
 * page is true, since other pages of the file are still void. So a dropped page has an entry in
 * efuse_pages.dropped until it is written back: the epoch before the drop. If changes go on, the
 * page is read again until a READ crosses no change; the task can be killed. A page that direct
 * I/O stores to counts as dirty: it is written back as a whole anyway.
 *
 * A change that is in flight does not matter here: its end voids what is read before.
 */

/*
 * Is a locked folio clean and void? Sets @now to an epoch from before the look. If the bucket notes
 * no changes, a page is true that was read after a drop: no later change can be known.
 */
static bool efuse_folio_void(const struct efuse_conn *ec, struct inode *inode, struct folio *folio,
			     pgoff_t index, u64 *now)
{
	struct fuse_inode *fi = get_fuse_inode(inode);
	u16 bucket = efuse_pages_bucket(inode);
	bool closed;
	void *entry;
	u64 last;

	*now = efuse_epoch_now(ec);
	last = efuse_epoch_last(ec, bucket);
	closed = efuse_epoch_closed(ec, bucket);
	if (likely(last <= READ_ONCE(fi->efuse_epoch) && !closed) || efuse_folio_stored(folio))
		return false;
	entry = xa_load(&fi->efuse_pages.dropped, index);
	return !entry || (last > xa_to_value(entry) && !closed);
}

/* Drop a void folio, which is locked. The next one is true since @now. Returns 0 or -ENOMEM. */
static int efuse_folio_discard(struct inode *inode, struct folio *folio, pgoff_t index, u64 now)
{
	struct xarray *dropped = &get_fuse_inode(inode)->efuse_pages.dropped;
	int err = xa_err(xa_store(dropped, index, xa_mk_value(now), GFP_NOFS));

	if (!err)
		efuse_folio_remove(inode->i_mapping, folio);
	return err;
}

/* A write(2) to the pages of a write-back mount, which makes each page dirty as a whole. */

/* Wait for the WRITEs of a folio that are under way. Returns 0, or a negative errno if killed. */
static int efuse_folio_wait(struct inode *inode, struct folio *folio)
{
	int err = folio_wait_writeback_killable(folio);

	return err ?: efuse_copy_wait(inode, folio->index, folio_next_index(folio) - 1);
}

/*
 * Unlock, release and drop a void folio. If a WRITE of the folio is under way, wait for that, and
 * leave the drop to the next call: the folio's old bytes would be written over the new content
 * together with the bytes that the caller writes. Where FUSE waits for the WRITE of a true folio as
 * well, wait here: the folio may be void afterwards.
 *
 * Returns 0 if the folio is to be used, and is still locked; -EAGAIN if the caller is to get the
 * folio again; -ENOMEM; or another negative errno if the caller is being killed.
 */
static int efuse_folio_renew(struct folio *folio)
{
	struct inode *inode = folio->mapping->host;
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	bool is_void;
	int err;
	u64 now;

	if (!ec)
		return 0;
	is_void = folio_test_uptodate(folio) &&
		  efuse_folio_void(ec, inode, folio, folio->index, &now);
	if ((is_void || efuse_write_waits()) && efuse_folio_writes(inode, folio)) {
		folio_unlock(folio);
		err = efuse_folio_wait(inode, folio);
	} else if (is_void) {
		err = efuse_folio_discard(inode, folio, folio->index, now);
		folio_unlock(folio);
	} else {
		return 0;
	}
	folio_put(folio);
	return err ?: -EAGAIN;
}

/* Get a folio that a write(2) fills: locked, and not of a void content unless it is dirty. */
static struct folio *efuse_folio_get(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio;
	int err;

	do {
		folio = __filemap_get_folio(mapping, index, FGP_WRITEBEGIN,
					    mapping_gfp_mask(mapping));
		err = IS_ERR(folio) ? 0 : efuse_folio_renew(folio);
	} while (err == -EAGAIN);
	return err ? ERR_PTR(err) : folio;
}

/*
 * Lock the folio that holds the last byte of the file. Returns NULL if there is none; or an
 * ERR_PTR() if the caller is being killed.
 */
static struct folio *efuse_lock_tail(struct address_space *mapping, loff_t end)
{
	struct folio *folio;
	int err;

	for (;;) {
		folio = filemap_get_folio(mapping, end >> PAGE_SHIFT);
		if (IS_ERR(folio))
			return NULL;
		err = folio_lock_killable(folio);
		if (!err && folio->mapping == mapping && !efuse_copy_unsent(folio))
			return folio;
		if (!err) {
			folio_unlock(folio);
			err = folio_wait_writeback_killable(folio);
		}
		folio_put(folio);
		if (err)
			return ERR_PTR(err);
	}
}

/*
 * A write(2) at @pos makes the file longer. Bytes that were stored behind its end, through a map,
 * must not come into it. A WRITE that is under way ends where the file ended when it was issued.
 */
static int efuse_tail_zero(struct inode *inode, loff_t pos)
{
	loff_t end = i_size_read(inode);
	struct folio *folio;

	if (likely(pos <= end) || !offset_in_page(end) || !efuse_conn_get(get_fuse_conn(inode)))
		return 0;
	folio = efuse_lock_tail(inode->i_mapping, end);
	if (IS_ERR_OR_NULL(folio))
		return PTR_ERR_OR_ZERO(folio);
	folio_zero_segment(folio, offset_in_folio(folio, end), folio_size(folio));
	folio_unlock(folio);
	folio_put(folio);
	return 0;
}

#ifdef EFUSE_HAS_IOMAP_WRITE_OPS

/**
 * efuse_write_folio - the folio that a buffered write of a write-back mount goes to
 * @iter: the write, see iomap_write_ops::get_folio()
 * @pos: position in the file of the first byte that is written
 * @len: bytes that are written, at most
 *
 * Context: process context, under the inode's lock.
 * Return: the folio, locked, and not of a void content unless it is dirty; or an ERR_PTR(),
 *         -EINTR or -ERESTARTSYS if the caller is being killed.
 */
struct folio *efuse_write_folio(struct iomap_iter *iter, loff_t pos, unsigned int len)
{
	int err = efuse_tail_zero(iter->inode, pos);
	struct folio *folio;

	if (err)
		return ERR_PTR(err);
	do {
		folio = iomap_get_folio(iter, pos, len);
		err = IS_ERR(folio) ? 0 : efuse_folio_renew(folio);
	} while (err == -EAGAIN);
	return err ? ERR_PTR(err) : folio;
}

#else

/**
 * efuse_write_folio - the folio that a buffered write of a write-back mount goes to
 * @mapping: of the file
 * @pos: position in the file of the first byte that is written
 *
 * Context: process context, under the inode's lock.
 * Return: the folio, locked, and not of a void content unless it is dirty; or an ERR_PTR(),
 *         -EINTR or -ERESTARTSYS if the caller is being killed.
 */
struct folio *efuse_write_folio(struct address_space *mapping, loff_t pos)
{
	int err = efuse_tail_zero(mapping->host, pos);

	return err ? ERR_PTR(err) : efuse_folio_get(mapping, pos >> PAGE_SHIFT);
}

#endif

/* A write(2) to a part of a page that is absent: FUSE reads the page first. */

static u64 efuse_fill_begin(struct inode *inode)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	return ec ? efuse_epoch_now(ec) : 0;
}

/* Has no change crossed a READ that was sent after efuse_fill_begin()? */
static bool efuse_fill_true(struct inode *inode, u64 epoch)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));

	return !ec || efuse_epoch_last(ec, efuse_pages_bucket(inode)) <= epoch;
}

#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
/**
 * efuse_fill_folio - read a folio that a write(2) changes a part of
 * @file: the file
 * @folio: the folio, locked
 * @off: in the folio, of the first byte
 * @len: in bytes
 * @fill: reads
 *
 * A READ that has crossed a change may have brought the bytes from before. The folio becomes dirty,
 * and they would be written back over the new content. So it is read again.
 *
 * Return: 0; a negative errno of @fill; or -EINTR if the caller is being killed.
 */
int efuse_fill_folio(struct file *file, struct folio *folio, size_t off, size_t len,
		     int (*fill)(struct file *file, struct folio *folio, size_t off, size_t len))
{
	struct inode *inode = folio->mapping->host;
	u64 epoch;
	int err;

	do {
		epoch = efuse_fill_begin(inode);
		err = fill(file, folio, off, len);
		if (err || likely(efuse_fill_true(inode, epoch)))
			return err;
	} while (!fatal_signal_pending(current));
	return -EINTR;
}
#else
/**
 * efuse_fill_page - read a page that a write(2) changes a part of
 * @file: the file
 * @page: the page, locked
 * @fill: reads
 *
 * A READ that has crossed a change may have brought the bytes from before. The page becomes dirty,
 * and they would be written back over the new content. So it is read again.
 *
 * Return: 0; a negative errno of @fill; or -EINTR if the caller is being killed.
 */
int efuse_fill_page(struct file *file, struct page *page,
		    int (*fill)(struct file *file, struct page *page))
{
	struct inode *inode = page_folio(page)->mapping->host;
	u64 epoch;
	int err;

	do {
		epoch = efuse_fill_begin(inode);
		err = fill(file, page);
		if (err || likely(efuse_fill_true(inode, epoch)))
			return err;
	} while (!fatal_signal_pending(current));
	return -EINTR;
}
#endif

/*
 * Stores through maps, while a WRITE of the same pages is carried out.
 *
 * A page fault does not wait for the lock of the backing file: the task may hold that lock, because
 * it writes to the backing file from a map of this file. So while a WRITE goes past the page cache,
 * pages may come into it with the bytes from before. No task stores to such a page meanwhile, and
 * the pages are dropped when the WRITE is done.
 *
 * While a WRITE goes through FUSE's pages, they hold its bytes, and stay. No task stores to them
 * meanwhile: write-back of the store could overtake the WRITE.
 */

/* How long a page fault waits before it returns to be taken again. It may hold the mmap_lock. */
#define EFUSE_STORE_JIFFIES	msecs_to_jiffies(10)

/* What a store to a locked folio has to do. */
enum efuse_store {
	EFUSE_STORE_NOW,
	EFUSE_STORE_WAITS,	/* for a WRITE that goes past the folio */
	EFUSE_STORE_FOLLOWS,	/* a WRITE that goes through the folio */
	EFUSE_STORE_READS,	/* the folio, which was dropped */
	EFUSE_STORE_READS_AGAIN,
	EFUSE_STORE_NO_MEMORY,
};

static enum efuse_store efuse_folio_store(struct inode *inode, struct folio *folio, pgoff_t index)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;
	bool again;
	u64 now;

	if (unlikely(efuse_folio_in(&pages->past, folio)))
		return EFUSE_STORE_WAITS;
	if (!ec)
		return EFUSE_STORE_NOW;
	if (unlikely(efuse_folio_in(&pages->through, folio)))
		return EFUSE_STORE_FOLLOWS;
	if (likely(!efuse_folio_void(ec, inode, folio, index, &now)) ||
	    efuse_folio_writes(inode, folio))
		return EFUSE_STORE_NOW;
	again = xa_load(&pages->dropped, index);
	if (efuse_folio_discard(inode, folio, index, now))
		return EFUSE_STORE_NO_MEMORY;
	return again ? EFUSE_STORE_READS_AGAIN : EFUSE_STORE_READS;
}

/* Wait until no WRITE covers the folio, or for a moment. Returns whether none does. */
static bool efuse_store_wait(struct efuse_pages *pages, const struct efuse_range *range,
			     struct folio *folio)
{
	return wait_var_event_timeout(pages, !efuse_folio_in(range, folio), EFUSE_STORE_JIFFIES);
}

/*
 * Does the task give up its store, in place of taking the fault again? A task that ends has taken
 * its signal already, so none could end its faults. It stores, too: it releases its robust futexes.
 * So it reads the page again, unless the page was read for a store before.
 */
static bool efuse_store_ends(enum efuse_store store, bool followed)
{
	return fatal_signal_pending(current) ||
	       (current->flags & PF_EXITING && (followed || store != EFUSE_STORE_READS));
}

/**
 * efuse_page_mkwrite - a page is about to be stored to through a map
 * @vmf: the fault, its page locked
 *
 * The store waits for a WRITE that goes past the page, because the page would be written back over
 * the WRITE's bytes, and for a WRITE that goes through the page, which could be carried out after
 * the write-back of the store. A void page is dropped, because its old bytes would be written back
 * over the new content.
 *
 * Context: process context, sleeps if such a WRITE is under way.
 * Return: VM_FAULT_LOCKED, or, with the page unlocked, VM_FAULT_NOPAGE to take the fault again,
 *         VM_FAULT_OOM, or VM_FAULT_SIGBUS if the caller is being killed or ends.
 */
vm_fault_t efuse_page_mkwrite(struct vm_fault *vmf)
{
	struct inode *inode = file_inode(vmf->vma->vm_file);
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;
	struct folio *folio = page_folio(vmf->page);
	enum efuse_store store = efuse_folio_store(inode, folio, vmf->pgoff);
	bool followed = store == EFUSE_STORE_FOLLOWS;

	/* The lock is kept, so that the next WRITE of the same page comes after the store. */
	if (unlikely(followed) &&
	    efuse_store_wait(pages, &pages->through, folio))
		store = efuse_folio_store(inode, folio, vmf->pgoff);
	if (likely(store == EFUSE_STORE_NOW)) {
		folio_set_checked(folio);
		/* The store need not reach the daemon. */
		efuse_version_mixed(inode);
		return VM_FAULT_LOCKED;
	}
	folio_unlock(folio);
	if (store == EFUSE_STORE_NO_MEMORY)
		return VM_FAULT_OOM;
	if (efuse_store_ends(store, followed))
		return VM_FAULT_SIGBUS;
	if (store == EFUSE_STORE_WAITS)
		efuse_store_wait(pages, &pages->past, folio);
	return fatal_signal_pending(current) ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

/* A write(2) whose bytes go to FUSE's pages and immediately to the daemon. */

#ifdef EFUSE_HAS_FOLIOS
/**
 * efuse_fresh_folio - get a folio for bytes of a write(2) through FUSE's pages
 * @mapping: of the file
 * @index: of the folio
 *
 * A void folio is dropped first: its other bytes would be shown until the daemon has answered.
 *
 * Context: process context, under the inode's lock.
 * Return: the folio, locked; or an ERR_PTR(), -EINTR or -ERESTARTSYS if the caller is being killed.
 */
struct folio *efuse_fresh_folio(struct address_space *mapping, pgoff_t index)
{
	return efuse_folio_get(mapping, index);
}
#else
/**
 * efuse_fresh_page - get a page for bytes of a write(2) through FUSE's pages
 * @mapping: of the file
 * @index: of the page
 *
 * A void page is dropped first: its other bytes would be shown until the daemon has answered.
 *
 * Context: process context, under the inode's lock.
 * Return: the page, locked; or NULL if there is no memory, or the caller is being killed.
 */
struct page *efuse_fresh_page(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = efuse_folio_get(mapping, index);

	return IS_ERR(folio) ? NULL : folio_page(folio, 0);
}
#endif

/**
 * efuse_notify_copy - a notification stores bytes of the daemon to a page
 * @cs: from where the bytes are copied
 * @page: the page, locked
 * @offset: of the first byte in the page
 * @len: number of the bytes
 *
 * Bytes that a WRITE takes from the page are not replaced.
 *
 * Return: 0 or a negative errno.
 */
int efuse_notify_copy(struct fuse_copy_state *cs, struct efuse_notify_target **page,
		      unsigned int offset, unsigned int len)
{
	struct folio *folio = efuse_page_folio(*page);
	size_t end = offset + len, kept, kept_end;
	struct efuse_notify_target *none = NULL;
	int err;

	efuse_version_mixed(folio->mapping->host);
	kept = efuse_folio_kept(folio->mapping->host, folio, offset, end, &kept_end);
	if (likely(kept == kept_end))
		return efuse_copy_page(cs, page, offset, len);
	err = efuse_copy_page(cs, page, offset, kept - offset);
	err = err ?: efuse_copy_page(cs, &none, 0, kept_end - kept);
	return err ?: efuse_copy_page(cs, page, kept_end, end - kept_end);
}

/**
 * efuse_fault_in - make the buffer of a write(2) through FUSE's pages present
 * @filled: pages that the next WRITE has already
 * @iter: the buffer
 * @bytes: of the buffer, for one page more
 * @most: of the buffer, for the whole WRITE
 *
 * A store waits for the WRITE of its page, perhaps with the caller's mmap_lock. A fault may need
 * that lock. So the buffer is faulted in before the WRITE has pages, and not between them. The
 * first bytes come last: there may be no memory for all.
 *
 * Context: process context, may sleep.
 * Return: how many of the first @bytes are not present.
 */
size_t efuse_fault_in(unsigned int filled, const struct iov_iter *iter, size_t bytes, size_t most)
{
	size_t left;

	if (!filled) {
		if (most > bytes)
			fault_in_iov_iter_readable(iter, min(most, iov_iter_count(iter)));
		return fault_in_iov_iter_readable(iter, bytes);
	}
	pagefault_disable();
	left = fault_in_iov_iter_readable(iter, bytes);
	pagefault_enable();
	return left;
}

/*
 * Wait for the WRITEs of pages of a range. Returns 1 if there were any, 0 if there were none, or a
 * negative errno if the caller is being killed.
 */
static int efuse_pages_wait(struct inode *inode, pgoff_t first, pgoff_t last)
{
	bool waits = efuse_copy_pending(inode, first, last);
	int err = waits ? efuse_copy_wait(inode, first, last) : 0;
	struct folio_batch batch;
	pgoff_t next = first;
	unsigned int i;

	folio_batch_init(&batch);
	while (!err && filemap_get_folios_tag(inode->i_mapping, &next, last,
					      PAGECACHE_TAG_WRITEBACK, &batch)) {
		waits = true;
		for (i = 0; !err && i < folio_batch_count(&batch); i++)
			err = folio_wait_writeback_killable(batch.folios[i]);
		folio_batch_release(&batch);
	}
	return err ?: waits;
}

/*
 * Drop the clean pages of a range, also those that are being written back. Returns 1 if a page is
 * left, 0 if none is, or a negative errno if the caller is being killed.
 */
static int efuse_pages_drop_clean(struct inode *inode, loff_t pos, size_t len)
{
	int waited;

	do {
		if (efuse_pages_drop(inode, pos, len))
			return 0;
		if (fatal_signal_pending(current))
			return -EINTR;
		waited = efuse_pages_wait(inode, pos >> PAGE_SHIFT, (pos + len - 1) >> PAGE_SHIFT);
	} while (waited > 0);
	return waited ?: 1;
}

/**
 * efuse_pages_behind - a write(2) through FUSE's pages makes the file longer
 * @file: the file, its inode locked
 * @pos: of the first byte that is written, behind the end that FUSE knows
 *
 * Bytes that were stored between must not come into the file. In exclusive mode, the end is asked
 * for if a notification has ended it. In the other modes the end may be older than the backing
 * file, and bytes of the file may lie behind it: clean pages are dropped, and read again.
 *
 * Context: process context, may sleep, as truncate_pagecache_range().
 * Return: 0; or a negative errno, -EINTR if the caller is being killed.
 */
int efuse_pages_behind(struct file *file, loff_t pos)
{
	struct inode *inode = file_inode(file);
	struct fuse_conn *fc = get_fuse_conn(inode);
	const struct efuse_conn *ec = efuse_conn_get(fc);
	int err = efuse_append_update(file);
	loff_t end = i_size_read(inode);

	if (err || pos <= end)
		return err;
	if (ec && !fc->writeback_cache && READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE) {
		err = efuse_pages_drop_clean(inode, end, pos - end);
		if (err <= 0)
			return err;
	}
	truncate_pagecache_range(inode, end, pos - 1);
	return 0;
}
