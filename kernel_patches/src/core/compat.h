/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between the kernels that eFuse is built for, Linux 6.12 and 7.3. EFUSE_HAS_<NAME> is
 * defined if probes/<name>.c compiles: see Makefile.objs.
 */
#ifndef _FS_FUSE_EFUSE_COMPAT_H
#define _FS_FUSE_EFUSE_COMPAT_H

#include <linux/blkdev.h>
#include <linux/btf.h>
#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
#include <linux/iomap.h>
#endif

#include "../../fuse_i.h"
#ifdef EFUSE_HAS_CHAN
#include "../../dev.h"
#include "../../dev_uring_i.h"
#include "../../fuse_dev_i.h"
#endif

/*
 * FUSE_COPY_FILE_RANGE_64 of the protocol 7.45, Linux 6.18. Such kernels send it first, and
 * COPY_FILE_RANGE if the daemon does not implement it.
 */
#define EFUSE_COPY_FILE_RANGE_64	53

/* Linux 7.3 has no such flag: the arguments of all kfuncs must be trusted there. */
#ifndef KF_TRUSTED_ARGS
#define KF_TRUSTED_ARGS	0
#endif

/*
 * In Linux 7.3 the transport, with its queues and descriptors, is a struct fuse_chan. In 6.12 it is
 * part of struct fuse_conn.
 */
#ifdef EFUSE_HAS_CHAN

static inline struct fuse_chan *efuse_chan(const struct fuse_conn *fc)
{
	return fc->chan;
}

static inline struct fuse_conn *efuse_dev_conn(const struct fuse_dev *fud)
{
	return fud->chan->conn;
}

static inline struct fuse_conn *efuse_sent_on(const struct fuse_req *req)
{
	return req->chan->conn;
}

/* The connection of a queue, which must be FUSE's own one. */
static inline struct fuse_conn *efuse_iqueue_conn(struct fuse_iqueue *fiq)
{
	return container_of(fiq, struct fuse_chan, iq)->conn;
}

/*
 * Does the daemon receive its requests through io_uring (Linux 6.14)? Such requests go to FUSE's
 * own queue.
 */
static inline bool efuse_by_ring(const struct fuse_conn *fc)
{
	return fuse_uring_ready(fc->chan);
}

/* The same, or may its rings be made at any time by who has a descriptor? */
static inline bool efuse_may_ring(const struct fuse_conn *fc)
{
	return READ_ONCE(fc->chan->io_uring) || efuse_by_ring(fc);
}

/* The struct fuse_dev of an open /dev/efuse, or NULL if it is not attached to a connection. */
static inline struct fuse_dev *efuse_file_dev(struct file *file)
{
	return __fuse_get_dev(file);
}

static inline void efuse_forget(struct fuse_conn *fc, struct fuse_forget_link *forget, u64 nodeid)
{
	fuse_chan_queue_forget(fc->chan, forget, nodeid, 1);
}

static inline void efuse_abort(struct fuse_conn *fc)
{
	fuse_chan_abort(fc->chan, false);
}

/* Attach an open /dev/efuse to a connection, as FUSE_DEV_IOC_CLONE does. */
static inline int efuse_dev_attach(struct file *file, struct fuse_conn *fc)
{
	struct list_head *pq = fuse_pqueue_alloc();

	if (!pq)
		return -ENOMEM;
	return fuse_dev_install_with_pq(fuse_file_to_fud(file), fc->chan, pq) ? 0 : -EINVAL;
}

/* Send a request that no caller waits for, and that the limits of the background do not hold. */
static inline int efuse_ask(struct fuse_mount *fm, struct fuse_args *args)
{
	return fuse_dev_ask(fm->fc->chan, args);
}

/* Let all who poll files of the connection ask again. */
static inline void efuse_polls_wake(struct fuse_conn *fc)
{
	fuse_end_polls(fc);
}

/* The name of a LOOKUP is in arguments of its own: a header, the name, its NUL. */
static inline void efuse_lookup_name(struct fuse_args *args, const char *name, u32 len)
{
	args->in_numargs = 3;
	fuse_set_zero_arg0(args);
	args->in_args[1].size = len;
	args->in_args[1].value = name;
	args->in_args[2].size = 1;
	args->in_args[2].value = "";
}

#define EFUSE_END(name)	void name(struct fuse_args *args, int error)

static inline void efuse_args_end(struct fuse_mount *fm, struct fuse_args *args, int error)
{
	args->end(args, error);
}

#else

static inline struct fuse_conn *efuse_chan(const struct fuse_conn *fc)
{
	return (struct fuse_conn *)fc;
}

static inline struct fuse_conn *efuse_dev_conn(const struct fuse_dev *fud)
{
	return fud->fc;
}

static inline struct fuse_conn *efuse_sent_on(const struct fuse_req *req)
{
	return req->fm->fc;
}

static inline struct fuse_conn *efuse_iqueue_conn(struct fuse_iqueue *fiq)
{
	return container_of(fiq, struct fuse_conn, iq);
}

static inline bool efuse_by_ring(const struct fuse_conn *fc)
{
	return false;
}

static inline bool efuse_may_ring(const struct fuse_conn *fc)
{
	return false;
}

static inline struct fuse_dev *efuse_file_dev(struct file *file)
{
	return READ_ONCE(file->private_data);
}

static inline void efuse_forget(struct fuse_conn *fc, struct fuse_forget_link *forget, u64 nodeid)
{
	fuse_queue_forget(fc, forget, nodeid, 1);
}

static inline void efuse_abort(struct fuse_conn *fc)
{
	fuse_abort_conn(fc);
}

static inline int efuse_dev_attach(struct file *file, struct fuse_conn *fc)
{
	int err;

	mutex_lock(&fuse_mutex);
	err = fuse_device_clone(fc, file);
	mutex_unlock(&fuse_mutex);
	return err;
}

static inline int efuse_ask(struct fuse_mount *fm, struct fuse_args *args)
{
	return fuse_dev_ask(fm, args);
}

static inline void efuse_polls_wake(struct fuse_conn *fc)
{
	struct rb_node *node;

	spin_lock(&fc->lock);
	for (node = rb_first(&fc->polled_files); node; node = rb_next(node))
		wake_up_interruptible_all(&rb_entry(node, struct fuse_file,
						    polled_node)->poll_wait);
	spin_unlock(&fc->lock);
}

static inline void efuse_lookup_name(struct fuse_args *args, const char *name, u32 len)
{
	args->in_numargs = 1;
	args->in_args[0].size = len + 1;
	args->in_args[0].value = name;
}

#define EFUSE_END(name)	void name(struct fuse_mount *fm, struct fuse_args *args, int error)

static inline void efuse_args_end(struct fuse_mount *fm, struct fuse_args *args, int error)
{
	args->end(fm, args, error);
}

#endif /* EFUSE_HAS_CHAN */

static inline bool efuse_connected(const struct fuse_conn *fc)
{
	return READ_ONCE(efuse_chan(fc)->connected);
}

/*
 * Was a descriptor taken from its connection, because it belongs to a successor that was refused?
 * efuse_takeover_end() takes it out of the list of the connection's descriptors.
 */
static inline bool efuse_dev_detached(const struct fuse_dev *fud)
{
	return list_empty(&fud->entry);
}

/* Since Linux 6.13 the data of a request is in folios. In 6.12 it is in pages. */
#ifdef EFUSE_HAS_FOLIOS

/* Allocate the arrays for @nr folios or pages and their descriptors. */
static inline bool efuse_pages_alloc(struct fuse_args_pages *ap, unsigned int nr)
{
	ap->folios = fuse_folios_alloc(nr, GFP_KERNEL_ACCOUNT, &ap->descs);
	return ap->folios;
}

static inline void efuse_pages_free(struct fuse_args_pages *ap)
{
	kfree(ap->folios);
}

static inline struct page *efuse_page(const struct fuse_args_pages *ap, unsigned int i)
{
	return folio_page(ap->folios[i], 0);
}

/* @page must be the first page of a folio. */
static inline void efuse_page_set(struct fuse_args_pages *ap, unsigned int i, struct page *page)
{
	ap->folios[i] = page_folio(page);
}

static inline void efuse_page_bvec(struct bio_vec *bvec, const struct fuse_args_pages *ap,
				   unsigned int i, size_t len, size_t offset)
{
	bvec_set_folio(bvec, ap->folios[i], len, offset);
}

static inline struct address_space *efuse_page_mapping(const struct fuse_args_pages *ap,
						       unsigned int i)
{
	return ap->folios[i]->mapping;
}

/*
 * The address of the request's data, and its size in *@room; NULL if the data is not contiguous in
 * the kernel's address space.
 */
static inline void *efuse_pages_piece(const struct fuse_args_pages *ap, size_t *room)
{
	unsigned int i;

	*room = 0;
	if (!ap->num_folios)
		return NULL;
	for (i = 0; i < ap->num_folios; i++) {
		if (folio_address(ap->folios[i]) != folio_address(ap->folios[0]) + *room)
			return NULL;
		*room += folio_size(ap->folios[i]);
	}
	return folio_address(ap->folios[0]);
}

#else

static inline bool efuse_pages_alloc(struct fuse_args_pages *ap, unsigned int nr)
{
	ap->pages = fuse_pages_alloc(nr, GFP_KERNEL_ACCOUNT, &ap->descs);
	return ap->pages;
}

static inline void efuse_pages_free(struct fuse_args_pages *ap)
{
	kfree(ap->pages);
}

static inline struct page *efuse_page(const struct fuse_args_pages *ap, unsigned int i)
{
	return ap->pages[i];
}

static inline void efuse_page_set(struct fuse_args_pages *ap, unsigned int i, struct page *page)
{
	ap->pages[i] = page;
}

static inline void efuse_page_bvec(struct bio_vec *bvec, const struct fuse_args_pages *ap,
				   unsigned int i, size_t len, size_t offset)
{
	bvec_set_page(bvec, ap->pages[i], len, offset);
}

static inline struct address_space *efuse_page_mapping(const struct fuse_args_pages *ap,
						       unsigned int i)
{
	return ap->pages[i]->mapping;
}

static inline void *efuse_pages_piece(const struct fuse_args_pages *ap, size_t *room)
{
	*room = 0;
	if (ap->num_folios != 1)
		return NULL;
	if (ap->uses_folios) {
		*room = folio_size(ap->folios[0]);
		return folio_address(ap->folios[0]);
	}
	*room = PAGE_SIZE;
	return page_address(ap->pages[0]);
}

#endif /* EFUSE_HAS_FOLIOS */

/*
 * Linux 7.3 can let a daemon on rings move the data of a READ or WRITE between a file and the pages
 * of the request (FUSE_URING_ZERO_COPY), if the open file has FOPEN_IO_URING_ZERO_COPY.
 */
static inline bool efuse_zero_copy(const struct fuse_args *args)
{
#ifdef EFUSE_HAS_ZERO_COPY
	return args->zero_copy;
#else
	return false;
#endif
}

static inline void efuse_zero_copy_set(struct fuse_args *args, bool zero_copy)
{
#ifdef EFUSE_HAS_ZERO_COPY
	args->zero_copy = zero_copy;
#endif
}

/*
 * Write-back of Linux 6.12 copies pages, and keeps the WRITEs with the copies in the tree
 * fi->writepages. Linux 6.16 writes the pages themselves (0c58a97f919c "fuse: remove tmp folio for
 * writebacks and internal rb tree").
 */
static inline bool efuse_copies_pending(const struct fuse_inode *fi)
{
#ifdef EFUSE_HAS_WRITEPAGES
	return READ_ONCE(fi->writepages.rb_node);
#else
	return false;
#endif
}

/*
 * Is the folio copied for a WRITE that is not issued yet? A WRITE ends where the file ends when it
 * is issued.
 */
static inline bool efuse_copy_unsent(struct folio *folio)
{
#ifdef EFUSE_HAS_WRITEPAGES
	return folio_test_writeback(folio);
#else
	return false;
#endif
}

/*
 * Is a copy of one of these pages still being written? A READ of such a page waits until it is
 * written.
 */
static inline bool efuse_copy_pending(struct inode *inode, pgoff_t first, pgoff_t last)
{
#ifdef EFUSE_HAS_WRITEPAGES
	return fuse_range_is_writeback(inode, first, last);
#else
	return false;
#endif
}

/*
 * Wait until no copy of these pages is being written any more. Returns 0, or -ERESTARTSYS if the
 * caller is being killed.
 */
static inline int efuse_copy_wait(struct inode *inode, pgoff_t first, pgoff_t last)
{
#ifdef EFUSE_HAS_WRITEPAGES
	return wait_event_killable(get_fuse_inode(inode)->page_waitq,
				   !efuse_copy_pending(inode, first, last));
#else
	return 0;
#endif
}

/* May files of the connection be mapped straight from the host's memory? */
static inline bool efuse_dax(const struct fuse_conn *fc)
{
#ifdef CONFIG_FUSE_DAX
	return fc->dax;
#else
	return false;
#endif
}

/* Does a write(2) to the pages of a write-back mount wait for older WRITEs of its pages? */
static inline bool efuse_write_waits(void)
{
#ifdef EFUSE_HAS_WRITEPAGES
	return true;
#else
	return false;
#endif
}

static inline struct folio *efuse_page_folio(struct efuse_notify_target *page)
{
#ifdef EFUSE_HAS_FOLIOS
	return page;
#else
	return page_folio(page);
#endif
}

/* Copy bytes of the daemon to a page, or to nowhere if @page points to NULL. */
static inline int efuse_copy_page(struct fuse_copy_state *cs, struct efuse_notify_target **page,
				  unsigned int offset, unsigned int len)
{
#ifdef EFUSE_HAS_FOLIOS
	return fuse_copy_folio(cs, page, offset, len, 0);
#else
	return fuse_copy_page(cs, page, offset, len, 0);
#endif
}

/* Drop what FUSE keeps of a folio that leaves the page cache. Returns whether the folio may. */
static inline bool efuse_folio_released(struct folio *folio, gfp_t gfp)
{
#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
	return iomap_release_folio(folio, gfp);
#else
	return true;
#endif
}

/* Drop what FUSE keeps of a part of a folio that is cut off. */
static inline void efuse_folio_invalidated(struct folio *folio, size_t offset, size_t len)
{
#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
	iomap_invalidate_folio(folio, offset, len);
#endif
}

/*
 * Linux 6.19 reads inode->i_state by accessors (d8753f788ab4 "fs: provide accessors for
 * ->i_state").
 */
static inline unsigned long efuse_inode_state(struct inode *inode)
{
#ifdef EFUSE_HAS_INODE_STATE
	return inode_state_read_once(inode);
#else
	return READ_ONCE(inode->i_state);
#endif
}

/*
 * Can the driver of a device do direct I/O with the buffers of @iter? Until Linux 6.17 the length
 * of each segment must be a multiple of the block size, too. 6.18 has no bdev_iter_is_aligned().
 */
static inline bool efuse_iter_aligned(struct block_device *bdev, const struct iov_iter *iter)
{
#ifdef EFUSE_HAS_ITER_IS_ALIGNED
	return bdev_iter_is_aligned(bdev, (struct iov_iter *)iter);
#else
	return !(iov_iter_alignment(iter) & bdev_dma_alignment(bdev));
#endif
}

#endif /* _FS_FUSE_EFUSE_COMPAT_H */
