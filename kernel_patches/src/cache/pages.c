// SPDX-License-Identifier: GPL-2.0
/*
 * FUSE's pages of a file whose bytes are also read and written past the page cache.
 *
 * Pages are void when the epoch of the file's pages has moved since they were known to be true
 * (kept.c). A void page is dropped before it is used. A dirty page is not dropped: it holds bytes
 * that were written or stored.
 *
 * A page is filled, written back and stored to under its own lock, which may be held while the
 * daemon works. A task that waits for a page here can be killed. No page is written back under its
 * lock: the WRITE may wait for the lock of the backing file, whose holder may fault in that very
 * page.
 */
#include "cache_i.h"

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/wait_bit.h>

#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
#include <linux/iomap.h>
#endif

/* Has FUSE's page cache of the file not been bypassed by a change since its epoch? */
bool efuse_pages_true(const struct efuse_conn *ec, struct inode *inode)
{
	return efuse_epoch_valid(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES),
				 READ_ONCE(get_fuse_inode(inode)->efuse_epoch));
}

/* Dropping pages. */

/* Is a WRITE of the folio under way, as it was when the WRITE was issued? */
static bool efuse_folio_writes(struct inode *inode, struct folio *folio)
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
	/* In this order: a map that goes away in between makes the result larger, not smaller. */
	refs = folio_ref_count(folio);
	smp_rmb();
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
	if (!efuse_folio_referenced(folio))
		folio_clear_checked(folio);
}

/* Does the folio hold bytes that are nowhere else? */
static bool efuse_folio_stored(struct folio *folio)
{
	return folio_test_dirty(folio) || efuse_folio_pinned(folio);
}

/* A page that is being written stays: a fault that reads it again would wait for the WRITE. */
static bool efuse_folio_clean(struct inode *inode, struct folio *folio)
{
	return !efuse_folio_stored(folio) && !efuse_folio_writes(inode, folio);
}

/*
 * Take a clean, locked folio out of the page cache. No store comes between: the next store waits
 * for the lock, and finds that the folio is gone.
 */
static void efuse_folio_remove(struct address_space *mapping, struct folio *folio)
{
	generic_error_remove_folio(mapping, folio);
	/* FUSE passes no page on with a flag that it does not know. */
	folio_clear_checked(folio);
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
		efuse_epoch_bump(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES));
}

/* Forget the pages that were dropped before a store: all pages are true since @epoch. */
static void efuse_dropped_prune(struct inode *inode, u64 epoch)
{
	struct xarray *dropped = &get_fuse_inode(inode)->efuse_passed.dropped;
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

/* Writing a part of a page. In a write-back mount the whole page is written back later. */

/* Wait for the WRITEs of a folio that are under way. Returns 0, or a negative errno if killed. */
static int efuse_folio_wait(struct inode *inode, struct folio *folio)
{
	int err = folio_wait_writeback_killable(folio);

	return err ?: efuse_copy_wait(inode, folio->index, folio_next_index(folio) - 1);
}

/*
 * Unlock, release and drop a void folio. If a WRITE of the folio is under way, wait for that, and
 * leave the drop to the next call: the folio's old bytes would be written over the new content
 * together with the bytes that the caller writes.
 *
 * Returns 0 if the folio is to be used, and is still locked; -EAGAIN if the caller is to get the
 * folio again; or another negative errno if the caller is being killed.
 */
static int efuse_folio_renew(struct folio *folio)
{
	struct inode *inode = folio->mapping->host;
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	int err = -EAGAIN;

	if (!ec || !folio_test_uptodate(folio) || efuse_folio_stored(folio) ||
	    efuse_pages_true(ec, inode))
		return 0;
	if (efuse_folio_writes(inode, folio)) {
		folio_unlock(folio);
		err = efuse_folio_wait(inode, folio) ?: -EAGAIN;
	} else {
		efuse_folio_remove(inode->i_mapping, folio);
		folio_unlock(folio);
	}
	folio_put(folio);
	return err;
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
 *         -ERESTARTSYS if the caller is being killed.
 */
struct folio *efuse_write_folio(struct iomap_iter *iter, loff_t pos, unsigned int len)
{
	struct folio *folio;
	int err;

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
 * @index: of the page
 *
 * Context: process context, under the inode's lock.
 * Return: the folio, locked, and not of a void content unless it is dirty; or an ERR_PTR(),
 *         -ERESTARTSYS if the caller is being killed.
 */
struct folio *efuse_write_folio(struct address_space *mapping, pgoff_t index)
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

#endif

/*
 * A WRITE past the page cache, and maps.
 *
 * A page fault does not wait for the lock of the backing file: the task may hold that lock, because
 * it writes to the backing file from a map of this file. So pages may come into the page cache
 * while a WRITE is carried out, with the bytes from before. No task stores to such a page
 * meanwhile, and the pages are dropped when the WRITE is done.
 */

/* How long a page fault waits before it returns to be taken again. It may hold the mmap_lock. */
#define EFUSE_PASSED_JIFFIES	msecs_to_jiffies(10)

/* Does a WRITE to the backing file cover a page of this folio? */
static bool efuse_folio_passed(const struct efuse_passed *passed, struct folio *folio)
{
	smp_mb(); /* Pairs with efuse_pages_pass(): the folio is in the page cache. */
	return READ_ONCE(passed->first) < folio_next_index(folio) &&
	       folio->index < READ_ONCE(passed->end);
}

/*
 * May a locked folio be stored to? Returns VM_FAULT_LOCKED if so. Otherwise the fault has to be
 * taken again (VM_FAULT_NOPAGE), or the drop could not be noted (VM_FAULT_OOM).
 *
 * A clean void page is dropped before a store, since its old bytes would be written back with the
 * stored ones. The next fault reads the page again. The inode's epoch does not tell that the new
 * page is true, since other pages of the file are still void. So each dropped page has an entry in
 * efuse_passed.dropped: the epoch before the drop. If changes go on, the
 * store goes on reading the page until a READ crosses no change; its task can be killed. A page that
 * direct I/O stores to counts as dirty: it is written back as a whole anyway.
 *
 * A change that is in flight does not matter here: its end voids what is read before.
 */
static vm_fault_t efuse_folio_storable(struct inode *inode, struct folio *folio, pgoff_t index)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct fuse_inode *fi = get_fuse_inode(inode);
	struct xarray *dropped = &fi->efuse_passed.dropped;
	u64 now, last;
	void *entry;

	if (!ec)
		return VM_FAULT_LOCKED;
	now = efuse_epoch_now(ec);
	last = efuse_epoch_last(ec, efuse_bucket_inode(get_node_id(inode), EFUSE_KIND_PAGES));
	if (likely(last <= READ_ONCE(fi->efuse_epoch)) || !efuse_folio_clean(inode, folio))
		return VM_FAULT_LOCKED;
	entry = xa_load(dropped, index);
	if (entry && last <= xa_to_value(entry))
		return VM_FAULT_LOCKED;
	if (xa_is_err(xa_store(dropped, index, xa_mk_value(now), GFP_NOFS)))
		return VM_FAULT_OOM;
	efuse_folio_remove(inode->i_mapping, folio);
	return VM_FAULT_NOPAGE;
}

/**
 * efuse_page_mkwrite - a page is about to be stored to through a map
 * @vmf: the fault, its page locked
 *
 * The store waits for a WRITE that covers the page: the page would be written back over the WRITE's
 * bytes. A void page is dropped, because its old bytes would be written back over the new content.
 *
 * Context: process context, sleeps if such a WRITE is under way.
 * Return: VM_FAULT_LOCKED, or, with the page unlocked, VM_FAULT_NOPAGE to take the fault again,
 *         VM_FAULT_OOM, or VM_FAULT_SIGBUS if the caller is being killed.
 */
vm_fault_t efuse_page_mkwrite(struct vm_fault *vmf)
{
	struct inode *inode = file_inode(vmf->vma->vm_file);
	struct efuse_passed *passed = &get_fuse_inode(inode)->efuse_passed;
	struct folio *folio = page_folio(vmf->page);
	vm_fault_t ret = VM_FAULT_NOPAGE;

	if (unlikely(efuse_folio_passed(passed, folio))) {
		folio_unlock(folio);
		wait_var_event_timeout(&passed->end, !efuse_folio_passed(passed, folio),
				       EFUSE_PASSED_JIFFIES);
	} else {
		ret = efuse_folio_storable(inode, folio, vmf->pgoff);
		if (likely(ret == VM_FAULT_LOCKED)) {
			folio_set_checked(folio);
			return ret;
		}
		folio_unlock(folio);
	}
	return fatal_signal_pending(current) ? VM_FAULT_SIGBUS : ret;
}

/**
 * efuse_pages_evicted - forget what was noted of an inode's pages
 * @inode: the inode, which is being evicted and has no pages any more
 */
void efuse_pages_evicted(struct inode *inode)
{
	xa_destroy(&get_fuse_inode(inode)->efuse_passed.dropped);
}

/**
 * efuse_pages_pass - keep stores away from the pages of a WRITE that goes past the page cache
 * @inode: the file, locked
 * @pos: of the first byte
 * @len: of the range, at least one byte
 *
 * No store to these pages begins until efuse_pages_passed(). A store that has begun holds the lock
 * of its page, or has made the page dirty.
 */
void efuse_pages_pass(struct inode *inode, loff_t pos, size_t len)
{
	struct efuse_passed *passed = &get_fuse_inode(inode)->efuse_passed;

	WRITE_ONCE(passed->first, pos >> PAGE_SHIFT);
	smp_wmb(); /* No page before @first is passed. */
	WRITE_ONCE(passed->end, ((pos + len - 1) >> PAGE_SHIFT) + 1);
	smp_mb(); /* Pairs with efuse_folio_passed(): the caller looks for pages next. */
}

/**
 * efuse_pages_passed - allow stores again, after the WRITE and the drop of its pages
 * @inode: the file, locked
 */
void efuse_pages_passed(struct inode *inode)
{
	struct efuse_passed *passed = &get_fuse_inode(inode)->efuse_passed;

	/* The pages are dropped before. */
	smp_store_release(&passed->end, 0);
	smp_mb(); /* Pairs with prepare_to_wait(): wake_up_var() looks without a lock. */
	wake_up_var(&passed->end);
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
