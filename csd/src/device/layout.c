// SPDX-License-Identifier: GPL-2.0
/*
 * Layouts: which blocks of the device belong to a file. The answer stays true as long as the layout
 * is held.
 *
 * On a stock kernel only the file system knows the blocks of a file, and only the file system can
 * keep them in place. It does both for direct I/O: it writes dirty pages of the page cache back,
 * looks the blocks up, and lets nothing take them away until the I/O is complete. Truncate, hole
 * punching and defragmentation wait. So a layout is a direct read that the device does not carry
 * out. The device notes where the file system sent the read of each page (csd_layout_catch()), and
 * holds the bios until the layout is given back.
 *
 * The pages begin with a mark. Where the mark is gone, the file system itself has filled the page:
 * with zeroes of a hole, or with the file's bytes if it does no direct I/O on this file.
 */
#include "device_i.h"

#include <linux/bvec.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/uio.h>

/* Longest wait for a bio, which may have been lost if the device was removed. */
#define CSD_LOST	(10 * HZ)

/**
 * struct csd_layout - the places of the blocks in a window of a file
 * @kiocb: the direct read
 * @completed: completed when the direct read is complete
 * @lock: guards @bios, @arrived, @taken and @failed
 * @bios: the bios that are held
 * @arrived: number of blocks of the window whose reads have come to the device
 * @taken: the layout is held
 * @failed: the window cannot be used
 * @waitq: to wait for bios that arrive
 * @mark: beginning of each page before the direct read
 * @position: start of the window in the file, bytes
 * @bytes: size of the window, not beyond the end of the file, bytes
 * @sectors: by block: its sector, or CSD_NO_SECTOR if its bytes are in its page
 * @pages: by block
 * @bvec: of the pages
 */
struct csd_layout {
	struct kiocb kiocb;
	struct completion completed;
	spinlock_t lock;	/* of the next four */
	struct bio_list bios;
	u32 arrived;
	bool taken;
	bool failed;
	wait_queue_head_t waitq;
	u64 mark[2];
	u64 position;
	u64 bytes;
	sector_t sectors[CSD_WINDOW];
	struct page *pages[CSD_WINDOW];
	struct bio_vec bvec[CSD_WINDOW];
};

#define CSD_NO_SECTOR	((sector_t)-1)

/* Layouts by the page frame numbers of their pages. Its nodes are charged as the pages are. */
static DEFINE_XARRAY_FLAGS(csd_layout_pages, XA_FLAGS_ACCOUNT);

static struct csd_layout *csd_layout_of(struct bio *bio)
{
	return bio_has_data(bio) ? xa_load(&csd_layout_pages, page_to_pfn(bio_page(bio))) : NULL;
}

/* Notes the sectors of a bio's pages. Under the layout's lock. */
static void csd_layout_note(struct csd_layout *layout, struct bio *bio)
{
	sector_t sector = bio->bi_iter.bi_sector;
	struct bvec_iter iter;
	struct bio_vec bv;

	bio_for_each_segment(bv, bio, iter) {
		/* The place of a page is known only if all of it is read by one segment. */
		if (bv.bv_offset || bv.bv_len != PAGE_SIZE)
			layout->failed = true;
		else
			layout->sectors[page_private(bv.bv_page)] = sector;
		sector += bv.bv_len / SECTOR_SIZE;
		layout->arrived++;
	}
}

/* Holds a bio. False if the layout does not wait for it any more. */
static bool csd_layout_hold(struct csd_layout *layout, struct bio *bio)
{
	unsigned long flags;
	bool hold;

	spin_lock_irqsave(&layout->lock, flags);
	hold = layout->taken && !layout->failed;
	if (hold) {
		csd_layout_note(layout, bio);
		bio_list_add(&layout->bios, bio);
	}
	spin_unlock_irqrestore(&layout->lock, flags);
	wake_up(&layout->waitq);
	return hold;
}

/**
 * csd_layout_catch - take over a READ that came to the device if it belongs to a layout
 * @rq: a READ that was started
 *
 * The pages of a layout are in no other I/O. The bios have an I/O priority that no others have, so
 * they are not merged with other bios.
 *
 * Context: any.
 * Return: false if the READ has to be carried out; true if its bios were taken and @rq has only to
 *         be ended
 */
bool csd_layout_catch(struct request *rq)
{
	struct bio_list bios = BIO_EMPTY_LIST;
	struct bio *bio;

	if (xa_empty(&csd_layout_pages) || !rq->bio || !csd_layout_of(rq->bio))
		return false;
	blk_steal_bios(&bios, rq);
	while ((bio = bio_list_pop(&bios))) {
		struct csd_layout *layout = csd_layout_of(bio);

		if (!layout || !csd_layout_hold(layout, bio))
			bio_io_error(bio);
	}
	return true;
}

static void csd_layout_completed(struct kiocb *kiocb, long ret)
{
	complete(&container_of(kiocb, struct csd_layout, kiocb)->completed);
}

static void csd_layout_mark(struct csd_layout *layout, u32 blocks)
{
	u32 i;

	get_random_bytes(layout->mark, sizeof(layout->mark));
	for (i = 0; i < blocks; i++) {
		memcpy(page_address(layout->pages[i]), layout->mark, sizeof(layout->mark));
		layout->sectors[i] = CSD_NO_SECTOR;
	}
}

/* Number of blocks that still have the mark, which the device is asked for. */
static u32 csd_layout_marked(const struct csd_layout *layout)
{
	u32 i, marked = 0;

	for (i = 0; i < DIV_ROUND_UP(layout->bytes, CSD_BLOCK_SIZE); i++)
		marked += !memcmp(page_address(layout->pages[i]), layout->mark,
				  sizeof(layout->mark));
	return marked;
}

static bool csd_layout_complete(struct csd_layout *layout, u32 wanted)
{
	bool complete;

	spin_lock_irq(&layout->lock);
	complete = layout->failed || layout->arrived >= wanted;
	spin_unlock_irq(&layout->lock);
	return complete;
}

/* Waits until all reads that were sent to the device have arrived there. */
static int csd_layout_wait(struct csd_layout *layout)
{
	u32 wanted = csd_layout_marked(layout);
	long left = wait_event_interruptible_timeout(layout->waitq,
						     csd_layout_complete(layout, wanted), CSD_LOST);

	if (left < 0)
		return -EINTR;
	return left && !layout->failed ? 0 : -EIO;
}

/*
 * Starts the direct read. Returns -EIOCBQUEUED if the device was sent something, else the result of
 * the read.
 */
static ssize_t csd_layout_send(struct csd_layout *layout, struct file *file, u32 blocks)
{
	struct iov_iter iter;
	ssize_t ret;

	init_sync_kiocb(&layout->kiocb, file);
	layout->kiocb.ki_flags &= ~(IOCB_NOWAIT | IOCB_HIPRI);
	layout->kiocb.ki_flags |= IOCB_DIRECT;
	layout->kiocb.ki_pos = layout->position;
	layout->kiocb.ki_complete = csd_layout_completed;
	layout->kiocb.ki_ioprio = IOPRIO_PRIO_VALUE_HINT(IOPRIO_CLASS_BE, IOPRIO_BE_NORM,
							 IOPRIO_NR_HINTS - 1);
	iov_iter_bvec(&iter, ITER_DEST, layout->bvec, blocks, blocks * CSD_BLOCK_SIZE);
	ret = vfs_iocb_iter_read(file, &layout->kiocb, &iter);
	/* The file system has asked for what the file has, which may be less than the window. */
	layout->bytes = blocks * CSD_BLOCK_SIZE - iov_iter_count(&iter);
	return ret;
}

static int csd_layout_add_page(struct csd_layout *layout, u32 i)
{
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	int err;

	if (!page)
		return -ENOMEM;
	err = xa_err(xa_store(&csd_layout_pages, page_to_pfn(page), layout, GFP_KERNEL));
	if (err) {
		__free_page(page);
		return err;
	}
	set_page_private(page, i);
	layout->pages[i] = page;
	bvec_set_page(&layout->bvec[i], page, PAGE_SIZE, 0);
	return 0;
}

/* Allocates the pages for so many blocks, unless an earlier window has left them. */
static int csd_layout_fill(struct csd_layout *layout, u32 blocks)
{
	int err = 0;
	u32 i;

	for (i = 0; i < blocks && !err; i++)
		if (!layout->pages[i])
			err = csd_layout_add_page(layout, i);
	return err;
}

/**
 * csd_layout_take - open a window of a file, and hold it
 * @layout: a layout that is not held
 * @file: the file, on a file system on a device of csd.ko
 * @position: start of the window in the file, a multiple of CSD_BLOCK_SIZE
 * @blocks: size of the window, CSD_WINDOW at most; the window ends with the file
 *
 * Context: process context, may sleep; takes the file system's locks for reading.
 * Return: 0, then csd_layout_give() has to follow; or a negative errno
 */
int csd_layout_take(struct csd_layout *layout, struct file *file, u64 position, u32 blocks)
{
	ssize_t ret;

	ret = csd_layout_fill(layout, blocks);
	if (ret)
		return ret;
	reinit_completion(&layout->completed);
	layout->position = position;
	layout->arrived = 0;
	layout->failed = false;
	csd_layout_mark(layout, blocks);
	spin_lock_irq(&layout->lock);
	layout->taken = true;
	spin_unlock_irq(&layout->lock);

	ret = csd_layout_send(layout, file, blocks);
	if (ret != -EIOCBQUEUED) {
		/* Nothing was sent to the device, or the read is complete already. */
		complete(&layout->completed);
		layout->bytes = max_t(ssize_t, ret, 0);
		if (csd_layout_marked(layout))
			ret = -EIO;
	} else {
		ret = csd_layout_wait(layout);
	}
	if (ret >= 0)
		return 0;
	csd_layout_give(layout);
	return ret;
}

/**
 * csd_layout_give - release the window of a layout
 * @layout: a layout that is held
 *
 * Context: process context, may sleep.
 */
void csd_layout_give(struct csd_layout *layout)
{
	struct bio *bio;

	spin_lock_irq(&layout->lock);
	layout->taken = false;
	spin_unlock_irq(&layout->lock);
	while ((bio = bio_list_pop(&layout->bios)))
		bio_endio(bio);
	wait_for_completion(&layout->completed);
}

/**
 * csd_layout_len - get the number of bytes of a block that are in the file
 * @layout: a layout that is held
 * @position: start of the block in the file, in the window
 *
 * Return: CSD_BLOCK_SIZE at most
 */
u32 csd_layout_len(const struct csd_layout *layout, u64 position)
{
	return min_t(u64, layout->position + layout->bytes - position, CSD_BLOCK_SIZE);
}

/**
 * csd_layout_find - find a block of the file
 * @layout: a layout that is held
 * @position: start of the block in the file, a multiple of CSD_BLOCK_SIZE
 * @extent: filled in
 *
 * Return: true if the block is in the window
 */
bool csd_layout_find(const struct csd_layout *layout, u64 position, struct csd_extent *extent)
{
	u64 i = (position - layout->position) / CSD_BLOCK_SIZE;
	u64 last = DIV_ROUND_UP(layout->bytes, CSD_BLOCK_SIZE);
	u64 n;

	if (position < layout->position || i >= last)
		return false;
	extent->data = page_address(layout->pages[i]);
	extent->blocks = 0;
	if (layout->sectors[i] == CSD_NO_SECTOR)
		return true;
	extent->sector = layout->sectors[i];
	for (n = 1; i + n < last; n++)
		if (layout->sectors[i + n] != extent->sector + n * (CSD_BLOCK_SIZE / SECTOR_SIZE))
			break;
	extent->blocks = n;
	return true;
}

/**
 * csd_layout_free - free a layout that is not held
 * @layout: the layout, or NULL
 */
void csd_layout_free(struct csd_layout *layout)
{
	u32 i;

	if (!layout)
		return;
	for (i = 0; i < CSD_WINDOW && layout->pages[i]; i++) {
		xa_erase(&csd_layout_pages, page_to_pfn(layout->pages[i]));
		set_page_private(layout->pages[i], 0);
		__free_page(layout->pages[i]);
	}
	kvfree(layout);
}

/**
 * csd_layout_alloc - make a layout
 *
 * Context: process context, may sleep.
 * Return: a layout that is not held, or NULL
 */
struct csd_layout *csd_layout_alloc(void)
{
	struct csd_layout *layout = kvzalloc(sizeof(*layout), GFP_KERNEL_ACCOUNT);

	if (!layout)
		return NULL;
	init_completion(&layout->completed);
	spin_lock_init(&layout->lock);
	init_waitqueue_head(&layout->waitq);
	bio_list_init(&layout->bios);
	return layout;
}
