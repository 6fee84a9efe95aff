// SPDX-License-Identifier: GPL-2.0
/*
 * FUSE's pages of a file whose bytes are also read and written past the page cache: which of them
 * are void, and how these are dropped. See page_stores.c for stores to pages.
 *
 * Pages are void when the epoch of the file's pages has moved since they were known to be true
 * (kept.c). A void page is dropped before it is used. A page stays if it is dirty, or if a write(2)
 * has filled it and its WRITE is under way: its bytes are not yet where a READ would find them.
 *
 * A page is filled, written back and stored to under its own lock, which may be held while the
 * daemon works. A task that waits for a page here can be killed. No page is written back under its
 * lock: the WRITE may wait for the lock of the backing file, whose holder may fault in that very
 * page.
 */
#include "cache_i.h"

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/wait_bit.h>
#include <linux/writeback.h>

/* Has FUSE's page cache of the file not been bypassed by a change since its epoch? */
bool efuse_pages_true(const struct efuse_conn *ec, struct inode *inode)
{
	return efuse_epoch_valid(ec, efuse_pages_bucket(inode),
				 READ_ONCE(get_fuse_inode(inode)->efuse_epoch));
}

/* The bucket of what is known of FUSE's pages of a file. */
u16 efuse_pages_bucket(struct inode *inode)
{
	return efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES);
}

/* The pages of a WRITE that a write(2) has begun. The inode's lock is held. */

/* Does a WRITE cover a byte of the pages from @first to before @next? */
static bool efuse_range_covers(const struct efuse_range *range, pgoff_t first, pgoff_t next)
{
	return READ_ONCE(range->pos) >> PAGE_SHIFT < (loff_t)next &&
	       (loff_t)first <= (READ_ONCE(range->end) - 1) >> PAGE_SHIFT;
}

/* Does a WRITE cover a byte of this locked folio? */
bool efuse_folio_in(const struct efuse_range *range, struct folio *folio)
{
	smp_mb(); /* Pairs with efuse_past_begin(): the folio is in the page cache. */
	return efuse_range_covers(range, folio->index, folio_next_index(folio));
}

static void efuse_range_set(struct efuse_range *range, loff_t pos, loff_t end)
{
	WRITE_ONCE(range->pos, pos);
	smp_wmb(); /* No byte before @pos is in the range. */
	WRITE_ONCE(range->end, end);
}

static void efuse_range_end(struct inode *inode, struct efuse_range *range)
{
	/* What the WRITE has changed, and the pages that were dropped for it, are seen before. */
	smp_store_release(&range->end, 0);
	smp_mb(); /* Pairs with prepare_to_wait(): wake_up_var() looks without a lock. */
	wake_up_var(&get_fuse_inode(inode)->efuse_pages);
}

/**
 * efuse_past_begin - a WRITE begins that goes past the page cache
 * @inode: the file, locked
 * @pos: of the first byte
 * @len: of the range, at least one byte
 *
 * No store to these pages begins until efuse_past_end(). A store that has begun holds the lock of
 * its page, or has made the page dirty.
 */
void efuse_past_begin(struct inode *inode, loff_t pos, size_t len)
{
	efuse_range_set(&get_fuse_inode(inode)->efuse_pages.past, pos, pos + len);
	smp_mb(); /* Pairs with efuse_folio_in(): the caller looks for pages next. */
}

/**
 * efuse_past_end - the WRITE has been carried out, and the pages that it covers are dropped
 * @inode: the file, locked
 */
void efuse_past_end(struct inode *inode)
{
	efuse_range_end(inode, &get_fuse_inode(inode)->efuse_pages.past);
}

/*
 * A WRITE takes bytes from the folio, or has done so. FUSE does not use this flag. A folio in the
 * range of a WRITE that has not got it has come in place of one that was cut off. The flag stays:
 * a later WRITE whose range the folio is in takes bytes from it, too.
 */
static void efuse_folio_take(struct folio *folio)
{
	folio_set_mappedtodisk(folio);
}

static bool efuse_folio_taken(const struct folio *folio)
{
	return folio_test_mappedtodisk(folio);
}

/**
 * efuse_through_begin - a folio of FUSE's page cache holds bytes of a WRITE that is to be sent
 * @folio: the folio, locked, its inode locked; after the earlier folios of this WRITE
 * @pos: position in the file of the first of these bytes
 * @len: their number
 *
 * FUSE unlocks the folio before the daemon has answered, and the WRITE takes its bytes from the
 * folio. Until efuse_through_end() the folio is not dropped, these bytes are not zeroed, and no map
 * stores to the folio: the store might be written back first, and the WRITE would undo it.
 */
void efuse_through_begin(struct folio *folio, loff_t pos, size_t len)
{
	struct fuse_inode *fi = get_fuse_inode(folio->mapping->host);
	struct efuse_range *through = &fi->efuse_pages.through;

	/* A task that was late may have set it when the last WRITE had ended. */
	if (!through->end)
		WRITE_ONCE(fi->efuse_pages.refused, false);
	efuse_folio_take(folio);
	efuse_version_mixed(&fi->inode);
	efuse_range_set(through, through->end ? through->pos : pos, pos + len);
	if (efuse_conn_get(get_fuse_conn(&fi->inode)) && folio_mkclean(folio))
		folio_mark_dirty(folio);
}

/* A page of the WRITE that is under way is to be dropped: the file's pages become void. */
static void efuse_through_refuse(struct efuse_conn *ec, struct inode *inode)
{
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;

	/* Pairs with the release below: the file's pages are void. */
	if (smp_load_acquire(&pages->refused))
		return;
	efuse_epoch_bump(ec, efuse_pages_bucket(inode));
	/* Pairs with the acquire above. */
	smp_store_release(&pages->refused, true);
}

/*
 * Does a WRITE through FUSE's pages hold the folio, which is locked and is to be dropped? Then it
 * is void, and is dropped when the WRITE has been answered. What takes its place before is void,
 * too: a READ that is sent meanwhile may overtake the WRITE.
 *
 * The first such folio of a WRITE makes the file's pages void, before a store that waits for the
 * WRITE gets the folio's lock. efuse_through_end() makes them void once more, since they may have
 * become true meanwhile.
 */
static bool efuse_folio_refused(struct inode *inode, struct folio *folio)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;

	if (likely(!efuse_folio_in(&pages->through, folio)) || !ec)
		return false;
	xa_erase(&pages->dropped, folio->index);
	efuse_through_refuse(ec, inode);
	/* Its barrier pairs with efuse_range_end(), after which efuse_through_end() looks. */
	return efuse_folio_in(&pages->through, folio);
}

/**
 * efuse_release_folio - may a folio be dropped? See address_space_operations::release_folio()
 * @folio: the folio, locked
 * @gfp: how memory may be allocated
 *
 * FUSE itself drops all pages of a file when it is opened, when the daemon sends a notification,
 * or when the file has another mtime. A READ that is sent then may overtake a WRITE: it would bring
 * the old bytes, and the next store to the page would write them over those of the WRITE. Reclaim
 * asks, too, but its reason to drop the folio has nothing to do with its content.
 *
 * Return: whether the folio may be dropped.
 */
bool efuse_release_folio(struct folio *folio, gfp_t gfp)
{
	struct inode *inode = folio->mapping->host;

	if (current->flags & PF_MEMALLOC ?
	    efuse_folio_in(&get_fuse_inode(inode)->efuse_pages.through, folio) :
	    efuse_folio_refused(inode, folio))
		return false;
	return efuse_folio_released(folio, gfp);
}

/**
 * efuse_invalidate_folio - a part of a folio is cut off. See
 *	address_space_operations::invalidate_folio()
 * @folio: the folio, locked
 * @offset: of the part in the folio
 * @len: of the part in bytes
 */
void efuse_invalidate_folio(struct folio *folio, size_t offset, size_t len)
{
	efuse_folio_refused(folio->mapping->host, folio);
	efuse_folio_invalidated(folio, offset, len);
}

/**
 * efuse_folio_kept - which bytes of a folio that is to be changed does a WRITE take from there?
 * @inode: the file
 * @folio: the folio, locked
 * @from: offset in the folio of the first byte that is to be changed
 * @to: offset behind the last one
 * @end: is set to the offset behind the last byte that is kept
 *
 * If a WRITE holds the folio, the folio is void. See efuse_folio_refused().
 *
 * Return: offset of the first byte that is kept, which is @end if there is none.
 */
size_t efuse_folio_kept(struct inode *inode, struct folio *folio, size_t from, size_t to,
			size_t *end)
{
	const struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;
	/* Read first: if the folio is refused, they are those of the WRITE that holds it. */
	loff_t pos = READ_ONCE(pages->through.pos);
	loff_t past = READ_ONCE(pages->through.end);
	loff_t kept = clamp_t(loff_t, pos - folio_pos(folio), from, to);
	loff_t kept_end = clamp_t(loff_t, past - folio_pos(folio), kept, to);

	*end = efuse_folio_refused(inode, folio) && efuse_folio_taken(folio) ? kept_end : kept;
	return kept;
}

/* A reply has brought another size: zero what the folio that holds the new end has behind it. */
static void efuse_folio_cut(struct inode *inode, loff_t size)
{
	struct folio *folio = filemap_lock_folio(inode->i_mapping, size >> PAGE_SHIFT);
	size_t from, kept, kept_end;

	if (IS_ERR(folio))
		return;
	folio_wait_writeback(folio);
	from = offset_in_folio(folio, size);
	kept = efuse_folio_kept(inode, folio, from, folio_size(folio), &kept_end);
	folio_zero_segments(folio, from, kept, kept_end, folio_size(folio));
	folio_unlock(folio);
	folio_put(folio);
}

/**
 * efuse_pages_grow - the daemon makes a file longer
 * @inode: the file
 * @old: the size in bytes before
 *
 * If the last page was not full, it has zeros in place of the new bytes. If a WRITE holds it, the
 * page stays until the WRITE is answered; see efuse_read_length(). No page is locked, since the
 * daemon may have to answer for the lock, and the caller may be the daemon.
 *
 * Context: any, except where fuse_inode.lock is held.
 */
void efuse_pages_grow(struct inode *inode, loff_t old)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	struct efuse_pages *pages = &fi->efuse_pages;
	pgoff_t last = old >> PAGE_SHIFT;

	if (!ec || !offset_in_page(old))
		return;
	spin_lock(&fi->lock);
	if (!pages->grown || last < pages->grown)
		WRITE_ONCE(pages->grown, last + 1);
	spin_unlock(&fi->lock);
	if (efuse_range_covers(&pages->through, last, last + 1))
		efuse_through_refuse(ec, inode);
}

/**
 * efuse_pages_cut - a reply has brought another size of a file
 * @inode: the file
 * @old: the size in bytes before the reply
 * @size: the new size in bytes
 *
 * Context: process context, may sleep, as truncate_pagecache(), whose place it takes.
 */
void efuse_pages_cut(struct inode *inode, loff_t old, loff_t size)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	struct efuse_conn *ec = efuse_conn_get(fc);

	if (ec) {
		if (size > old)
			efuse_pages_grow(inode, old);
		/* FUSE drops all pages next, but a write(2) may take the last one before. */
		if (size > old && offset_in_page(old) && !fc->explicit_inval_data)
			efuse_epoch_bump(ec, efuse_pages_bucket(inode));
		if (offset_in_page(size))
			efuse_folio_cut(inode, size);
		size = round_up(size, PAGE_SIZE);
	}
	truncate_pagecache(inode, size);
}

/**
 * efuse_free_folio - a folio has left the page cache
 * @folio: the folio
 *
 * Another FUSE mount that gets the folio by splice(2) does not know its flags.
 */
void efuse_free_folio(struct folio *folio)
{
	folio_clear_checked(folio);
	folio_clear_mappedtodisk(folio);
}

/**
 * efuse_through_end - a WRITE through FUSE's pages has been answered, or was not sent
 * @inode: the file, locked
 * @err: negative errno if not all of its bytes were written: its pages are void
 */
void efuse_through_end(struct inode *inode, int err)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;
	loff_t pos = pages->through.pos, end = pages->through.end;

	if (!end)
		return;
	if (ec && (err || READ_ONCE(pages->refused)))
		efuse_epoch_bump(ec, efuse_pages_bucket(inode));
	efuse_range_end(inode, &pages->through);
	if (unlikely(READ_ONCE(pages->refused))) {
		WRITE_ONCE(pages->refused, false);
		efuse_pages_drop(inode, pos, end - pos);
	}
}

/* Dropping pages. */

/* Is the folio being written back, and the WRITE holds what the folio held when it was issued? */
bool efuse_folio_writes(struct inode *inode, struct folio *folio)
{
	return folio_test_writeback(folio) ||
	       efuse_copy_pending(inode, folio->index, folio_next_index(folio) - 1);
}

/* Does the folio have more references, besides those of maps, than a folio that is not pinned? */
static bool efuse_folio_referenced(struct folio *folio)
{
	int refs;

	if (folio_test_large(folio)) /* Its pins are counted apart from its references. */
		return folio_maybe_dma_pinned(folio);
	refs = folio_ref_count(folio);
	smp_rmb(); /* A map that goes away in between makes the result larger, not smaller. */
	return refs - folio_mapcount(folio) >= GUP_PIN_COUNTING_BIAS;
}

/*
 * May direct I/O be storing to the folio? It pins a page that is writable, and marks the page dirty
 * at its end. So the page was made writable after it was last written back (PG_checked), or was
 * pinned then. A reader's pin of another page does not count.
 */
static bool efuse_folio_pinned(struct folio *folio)
{
	return folio_test_checked(folio) && efuse_folio_referenced(folio);
}

/**
 * efuse_folio_cleaned - a folio is being written back
 * @folio: the folio, locked, which no map can store to any more
 */
void efuse_folio_cleaned(struct folio *folio)
{
	struct xarray *dropped = &get_fuse_inode(folio->mapping->host)->efuse_pages.dropped;

	if (!efuse_folio_referenced(folio))
		folio_clear_checked(folio);
	/* The store has come for which the page was dropped. */
	if (unlikely(!xa_empty(dropped)))
		xa_erase(dropped, folio->index);
}

/**
 * efuse_folio_unwritten - was writing a folio back begun?
 * @folio: the folio, locked, not dirty any more
 * @wbc: the write-back
 * @err: 0 or a negative errno
 *
 * FUSE of 6.12 leaves the folio clean if it finds no memory, and write-back, which tries again,
 * then reports success.
 */
void efuse_folio_unwritten(struct folio *folio, struct writeback_control *wbc, int err)
{
	if (err == -ENOMEM)
		folio_redirty_for_writepage(wbc, folio);
}

/* Does the folio hold bytes that are nowhere else? */
bool efuse_folio_stored(struct folio *folio)
{
	return folio_test_dirty(folio) || efuse_folio_pinned(folio);
}

/*
 * A page that is being written stays. If it is written back, a fault that reads it again would wait
 * for the WRITE. If it is written through, a READ might bring the bytes from before the WRITE.
 */
static bool efuse_folio_clean(struct inode *inode, struct folio *folio)
{
	return !efuse_folio_stored(folio) && !efuse_folio_writes(inode, folio) &&
	       !efuse_folio_refused(inode, folio);
}

/*
 * Take a clean, locked folio out of the page cache. No store comes between: the next store waits
 * for the lock, and finds that the folio is gone.
 */
void efuse_folio_remove(struct address_space *mapping, struct folio *folio)
{
	generic_error_remove_folio(mapping, folio);
}

/*
 * Drop a folio, and whatever takes its place in the page cache meanwhile: FUSE moves a page of the
 * daemon there (SPLICE_F_MOVE) and fills it with bytes that it had before. Returns whether none is
 * left. Without @wait, a locked folio stays.
 */
static bool efuse_folio_drop(struct address_space *mapping, struct folio *folio, bool wait)
{
	pgoff_t index = folio->index;
	bool left, gone;

	folio_get(folio);
	do {
		if (wait ? folio_lock_killable(folio) : !folio_trylock(folio)) {
			folio_put(folio);
			return false;
		}
		left = folio->mapping != mapping;
		if (!left && efuse_folio_clean(mapping->host, folio))
			efuse_folio_remove(mapping, folio);
		gone = folio->mapping != mapping;
		folio_unlock(folio);
		folio_put(folio);
		if (!left)
			return gone;
		folio = filemap_get_folio(mapping, index);
	} while (!IS_ERR(folio));
	return true;
}

/* Returns whether all folios of the range are gone. Without @wait, locked folios stay. */
static bool efuse_folios_drop(struct address_space *mapping, pgoff_t first, pgoff_t last, bool wait)
{
	struct folio_batch batch;
	bool gone = true;
	unsigned int i;

	folio_batch_init(&batch);
	while (filemap_get_folios(mapping, &first, last, &batch)) {
		for (i = 0; i < folio_batch_count(&batch); i++)
			gone &= efuse_folio_drop(mapping, batch.folios[i], wait);
		folio_batch_release(&batch);
		if (wait && fatal_signal_pending(current))
			return false;
		cond_resched();
	}
	return gone;
}

/**
 * efuse_pages_drop - drop the pages of a range
 * @inode: the file
 * @pos: of the first byte
 * @len: of the range, at least one byte
 *
 * Context: process context, may sleep: waits for READs of these pages that are under way.
 * Return: whether no page of the range is left. Dirty pages are left, and any page may be if the
 *         caller is being killed.
 */
bool efuse_pages_drop(struct inode *inode, loff_t pos, size_t len)
{
	struct address_space *mapping = inode->i_mapping;

	return !mapping->nrpages || efuse_folios_drop(mapping, pos >> PAGE_SHIFT,
						      (pos + len - 1) >> PAGE_SHIFT, true);
}

/**
 * efuse_pages_void - drop the pages of a range whose bytes the backing file may have changed
 * @ec: connection
 * @inode: the file
 * @pos: of the first byte
 * @len: of the range, at least one byte
 *
 * Pages that cannot be dropped become void.
 *
 * Context: process context, may sleep: waits for READs of these pages that are under way.
 */
void efuse_pages_void(struct efuse_conn *ec, struct inode *inode, loff_t pos, size_t len)
{
	if (!efuse_pages_drop(inode, pos, len))
		efuse_epoch_bump(ec, efuse_pages_bucket(inode));
}

/* Forget the pages that were dropped before a store: all pages are true since @epoch. */
static void efuse_dropped_prune(struct inode *inode, u64 epoch)
{
	struct xarray *dropped = &get_fuse_inode(inode)->efuse_pages.dropped;
	unsigned long index;
	void *entry;

	xa_for_each(dropped, index, entry) {
		if (xa_to_value(entry) <= epoch)
			/* Another drop may have changed the entry: then the entry stays. */
			xa_cmpxchg(dropped, index, entry, NULL, 0);
		cond_resched();
	}
}

static void efuse_pages_refresh(struct inode *inode, bool wait)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct address_space *mapping = inode->i_mapping;
	u64 now;

	if (!ec || efuse_pages_true(ec, inode))
		return;
	now = efuse_epoch_now(ec);
	/* Not waited for: the WRITEs may not end before the daemon does. */
	if (wait && mapping_tagged(mapping, PAGECACHE_TAG_DIRTY))
		filemap_flush(mapping);
	/* If a page is left, the next caller tries again. */
	if (!efuse_folios_drop(mapping, 0, ULONG_MAX, wait))
		return;
	WRITE_ONCE(get_fuse_inode(inode)->efuse_epoch, now);
	/* In a closed bucket nothing but the entries tells that a page is true. */
	if (!efuse_epoch_closed(ec, efuse_pages_bucket(inode)))
		efuse_dropped_prune(inode, now);
}

/**
 * efuse_refresh_pages - drop the pages that FUSE keeps of a file, if they are not true any more
 * @inode: the file
 *
 * Dirty pages are written back. The next call drops them.
 *
 * Context: process context, may sleep: waits for READs that are under way.
 */
void efuse_refresh_pages(struct inode *inode)
{
	efuse_pages_refresh(inode, true);
}

/* Does a WRITE hold a page of the range that may have zeros in place of bytes of the file? */
static bool efuse_range_grown(const struct efuse_pages *pages, loff_t pos, loff_t end)
{
	pgoff_t grown = READ_ONCE(pages->grown);
	loff_t first, last;

	if (likely(!READ_ONCE(pages->refused)) || !grown || pos >= end)
		return false;
	first = max3(pos, READ_ONCE(pages->through.pos), (loff_t)(grown - 1) << PAGE_SHIFT);
	last = min(end, READ_ONCE(pages->through.end)) - 1;
	return first >> PAGE_SHIFT <= last >> PAGE_SHIFT;
}

/**
 * efuse_read_length - a range of a file is about to be read from FUSE's pages
 * @inode: the file
 * @pos: of the first byte
 * @len: of the range
 *
 * Drops the pages that are not true any more, as efuse_refresh_pages(). If a WRITE holds the page
 * that was the last one before the file became longer, the read waits for the WRITE, since no
 * moment has had these zeros and the new size. If the file becomes longer later, the read ends
 * where the file ends now.
 *
 * Context: process context, may sleep. Returns early if the caller is being killed.
 * Return: how many bytes to read at most.
 */
size_t efuse_read_length(struct inode *inode, loff_t pos, size_t len)
{
	struct efuse_pages *pages = &get_fuse_inode(inode)->efuse_pages;
	loff_t size = i_size_read(inode);

	if (!efuse_conn_get(get_fuse_conn(inode)))
		return len;
	len = pos < size ? min_t(u64, len, size - pos) : 0;
	efuse_pages_refresh(inode, true);
	if (likely(!efuse_range_grown(pages, pos, pos + len)) ||
	    wait_var_event_killable(pages, !efuse_range_grown(pages, pos, pos + len)))
		return len;
	efuse_pages_refresh(inode, true);
	return len;
}

/*
 * A direct read ends where the daemon says. generic_file_read_iter() would take the rest from the
 * pages, if FUSE knows the file to be longer. It does the same before that. Void pages are dropped
 * for those who see them through a map, also if the READ itself has found them to be old.
 */
static ssize_t efuse_read_direct(struct kiocb *iocb, struct iov_iter *to)
{
	struct address_space *mapping = iocb->ki_filp->f_mapping;
	size_t count = iov_iter_count(to);
	ssize_t done;

	if (!count)
		return 0;
	efuse_pages_refresh(mapping->host, true);
	done = kiocb_write_and_wait(iocb, count);
	if (done < 0)
		return done;
	file_accessed(iocb->ki_filp);
	done = mapping->a_ops->direct_IO(iocb, to);
	if (done == -EIOCBQUEUED) /* The READ may have ended, and with it the file. */
		return done;
	if (done > 0)
		iocb->ki_pos += done;
	iov_iter_revert(to, count - max_t(ssize_t, done, 0) - iov_iter_count(to));
	efuse_pages_refresh(mapping->host, true);
	return done;
}

/**
 * efuse_cache_read - a read(2) from FUSE's pages, or a direct one
 * @iocb: the file, the position and the flags of the read
 * @to: the caller's buffer
 *
 * In a write-back mount the daemon may know a shorter file than FUSE, so FUSE's pages have the rest
 * of a direct read.
 *
 * Context: process context, may sleep.
 * Return: as generic_file_read_iter(), whose place it takes.
 */
ssize_t efuse_cache_read(struct kiocb *iocb, struct iov_iter *to)
{
	struct inode *inode = file_inode(iocb->ki_filp);
	struct fuse_conn *fc = get_fuse_conn(inode);
	bool direct = iocb->ki_flags & IOCB_DIRECT;
	size_t len;

	if (direct && efuse_conn_get(fc) && !fc->writeback_cache)
		return efuse_read_direct(iocb, to);
	len = efuse_read_length(inode, iocb->ki_pos, iov_iter_count(to));
	if (!direct)
		iov_iter_truncate(to, len);
	return generic_file_read_iter(iocb, to);
}

/**
 * efuse_refresh_mapped - drop the void pages of a file that is being mapped
 * @inode: the file
 *
 * The caller holds its mmap_lock. Other tasks wait for that lock, perhaps the daemon, when it reads
 * the caller's files in /proc. So this waits for no request: a page that is dirty, or is being
 * read, stays.
 *
 * Context: process context, may sleep.
 */
void efuse_refresh_mapped(struct inode *inode)
{
	efuse_pages_refresh(inode, false);
}

/**
 * efuse_pages_evicted - forget what was noted of an inode's pages
 * @inode: the inode, which is being evicted and has no pages any more
 */
void efuse_pages_evicted(struct inode *inode)
{
	xa_destroy(&get_fuse_inode(inode)->efuse_pages.dropped);
}

/* Has every byte that was written to the file reached the place where READ and WRITE find it? */
bool efuse_file_clean(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;
	struct fuse_inode *fi = get_fuse_inode(inode);

	/* Of a dirty page, first it is dirty, then under write-back, then a WRITE. */
	if (mapping_tagged(mapping, PAGECACHE_TAG_DIRTY))
		return false;
	smp_rmb(); /* The states are checked in the order in which a page has them. */
	if (mapping_tagged(mapping, PAGECACHE_TAG_WRITEBACK))
		return false;
	smp_rmb(); /* The states are checked in the order in which a page has them. */
	/* The page is clean, its copy is in a WRITE that is not answered yet. */
	if (efuse_copies_pending(fi))
		return false;
	smp_rmb(); /* A copy that leaves the tree for a moment is counted as a WRITE. */
	return !READ_ONCE(fi->writectr);
}
