// SPDX-License-Identifier: GPL-2.0
/*
 * Digests: which blocks of the device belong to a file. The answer stays true as long as the digest
 * is held.
 *
 * On a stock kernel only the file system knows the blocks of a file, and only the file system can
 * keep them in place. It does both for direct I/O: it writes dirty pages of the page cache back,
 * looks the blocks up, and lets nothing take them away until the I/O is complete. Truncate, hole
 * punching and defragmentation wait. So a digest is a direct read that the device does not carry
 * out. The device notes where the file system sent the read of each page (csd_digest_catch()), and
 * holds the bios until the digest is given back.
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
 * struct csd_digest - a window of a file
 * @kiocb: the direct read
 * @completed: completed when the direct read is complete
 * @lock: guards @bios, @arrived, @taken and @failed
 * @bios: the bios that are held
 * @arrived: number of blocks of the window whose reads have come to the device
 * @taken: the digest is held
 * @failed: the window cannot be used
 * @waitq: to wait for bios that arrive
 * @mark: beginning of each page before the direct read
 * @position: start of the window in the file, bytes
 * @bytes: size of the window, not beyond the end of the file, bytes
 * @sectors: by block: its sector, or CSD_NO_SECTOR if its bytes are in its page
 * @pages: by block
 * @bvec: of the pages
 */
struct csd_digest {
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

/* Digests by the page frame numbers of their pages. */
static DEFINE_XARRAY(csd_digest_pages);

static struct csd_digest *csd_digest_of(struct bio *bio)
{
	return bio_has_data(bio) ? xa_load(&csd_digest_pages, page_to_pfn(bio_page(bio))) : NULL;
}

/* Notes the sectors of a bio's pages. Under the digest's lock. */
static void csd_digest_note(struct csd_digest *digest, struct bio *bio)
{
	sector_t sector = bio->bi_iter.bi_sector;
	struct bvec_iter iter;
	struct bio_vec bv;

	bio_for_each_segment(bv, bio, iter) {
		/* The place of a page is known only if all of it is read by one segment. */
		if (bv.bv_offset || bv.bv_len != PAGE_SIZE)
			digest->failed = true;
		else
			digest->sectors[page_private(bv.bv_page)] = sector;
		sector += bv.bv_len / SECTOR_SIZE;
		digest->arrived++;
	}
}

/* Holds a bio. False if the digest does not wait for it any more. */
static bool csd_digest_hold(struct csd_digest *digest, struct bio *bio)
{
	unsigned long flags;
	bool hold;

	spin_lock_irqsave(&digest->lock, flags);
	hold = digest->taken && !digest->failed;
	if (hold) {
		csd_digest_note(digest, bio);
		bio_list_add(&digest->bios, bio);
	}
	spin_unlock_irqrestore(&digest->lock, flags);
	wake_up(&digest->waitq);
	return hold;
}

/**
 * csd_digest_catch - take over a READ that came to the device if it belongs to a digest
 * @rq: a READ that was started
 *
 * The pages of a digest are in no other I/O. The bios have an I/O priority that no others have, so
 * they are not merged with other bios.
 *
 * Context: any.
 * Return: false if the READ has to be carried out; true if its bios were taken and @rq has only to
 *         be ended
 */
bool csd_digest_catch(struct request *rq)
{
	struct bio_list bios = BIO_EMPTY_LIST;
	struct bio *bio;

	if (xa_empty(&csd_digest_pages) || !rq->bio || !csd_digest_of(rq->bio))
		return false;
	blk_steal_bios(&bios, rq);
	while ((bio = bio_list_pop(&bios))) {
		struct csd_digest *digest = csd_digest_of(bio);

		if (!digest || !csd_digest_hold(digest, bio))
			bio_io_error(bio);
	}
	return true;
}

static void csd_digest_completed(struct kiocb *kiocb, long ret)
{
	complete(&container_of(kiocb, struct csd_digest, kiocb)->completed);
}

static void csd_digest_mark(struct csd_digest *digest, u32 blocks)
{
	u32 i;

	get_random_bytes(digest->mark, sizeof(digest->mark));
	for (i = 0; i < blocks; i++) {
		memcpy(page_address(digest->pages[i]), digest->mark, sizeof(digest->mark));
		digest->sectors[i] = CSD_NO_SECTOR;
	}
}

/* Number of blocks that still have the mark, which the device is asked for. */
static u32 csd_digest_marked(const struct csd_digest *digest)
{
	u32 i, marked = 0;

	for (i = 0; i < DIV_ROUND_UP(digest->bytes, CSD_BLOCK_SIZE); i++)
		marked += !memcmp(page_address(digest->pages[i]), digest->mark,
				  sizeof(digest->mark));
	return marked;
}

static bool csd_digest_complete(struct csd_digest *digest, u32 wanted)
{
	bool complete;

	spin_lock_irq(&digest->lock);
	complete = digest->failed || digest->arrived >= wanted;
	spin_unlock_irq(&digest->lock);
	return complete;
}

/* Waits until all reads that were sent to the device have arrived there. */
static int csd_digest_wait(struct csd_digest *digest)
{
	u32 wanted = csd_digest_marked(digest);
	long left = wait_event_interruptible_timeout(digest->waitq,
						     csd_digest_complete(digest, wanted), CSD_LOST);

	if (left < 0)
		return -EINTR;
	return left && !digest->failed ? 0 : -EIO;
}

/*
 * Starts the direct read. Returns -EIOCBQUEUED if the device was sent something, else the result of
 * the read.
 */
static ssize_t csd_digest_send(struct csd_digest *digest, struct file *file, u32 blocks)
{
	struct iov_iter iter;
	ssize_t ret;

	init_sync_kiocb(&digest->kiocb, file);
	digest->kiocb.ki_flags &= ~(IOCB_NOWAIT | IOCB_HIPRI);
	digest->kiocb.ki_flags |= IOCB_DIRECT;
	digest->kiocb.ki_pos = digest->position;
	digest->kiocb.ki_complete = csd_digest_completed;
	digest->kiocb.ki_ioprio = IOPRIO_PRIO_VALUE_HINT(IOPRIO_CLASS_BE, IOPRIO_BE_NORM,
							 IOPRIO_NR_HINTS - 1);
	iov_iter_bvec(&iter, ITER_DEST, digest->bvec, blocks, blocks * CSD_BLOCK_SIZE);
	ret = vfs_iocb_iter_read(file, &digest->kiocb, &iter);
	/* The file system has asked for what the file has, which may be less than the window. */
	digest->bytes = blocks * CSD_BLOCK_SIZE - iov_iter_count(&iter);
	return ret;
}

static int csd_digest_add_page(struct csd_digest *digest, u32 i)
{
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	int err;

	if (!page)
		return -ENOMEM;
	err = xa_err(xa_store(&csd_digest_pages, page_to_pfn(page), digest, GFP_KERNEL));
	if (err) {
		__free_page(page);
		return err;
	}
	set_page_private(page, i);
	digest->pages[i] = page;
	bvec_set_page(&digest->bvec[i], page, PAGE_SIZE, 0);
	return 0;
}

/* Allocates the pages for so many blocks, unless an earlier window has left them. */
static int csd_digest_fill(struct csd_digest *digest, u32 blocks)
{
	int err = 0;
	u32 i;

	for (i = 0; i < blocks && !err; i++)
		if (!digest->pages[i])
			err = csd_digest_add_page(digest, i);
	return err;
}

/**
 * csd_digest_take - open a window of a file, and hold it
 * @digest: a digest that is not held
 * @file: the file, on a file system on a device of csd.ko
 * @position: start of the window in the file, a multiple of CSD_BLOCK_SIZE
 * @blocks: size of the window, CSD_WINDOW at most; the window ends with the file
 *
 * Context: process context, may sleep; takes the file system's locks for reading.
 * Return: 0, then csd_digest_give() has to follow; or a negative errno
 */
int csd_digest_take(struct csd_digest *digest, struct file *file, u64 position, u32 blocks)
{
	ssize_t ret;

	ret = csd_digest_fill(digest, blocks);
	if (ret)
		return ret;
	reinit_completion(&digest->completed);
	digest->position = position;
	digest->arrived = 0;
	digest->failed = false;
	csd_digest_mark(digest, blocks);
	spin_lock_irq(&digest->lock);
	digest->taken = true;
	spin_unlock_irq(&digest->lock);

	ret = csd_digest_send(digest, file, blocks);
	if (ret != -EIOCBQUEUED) {
		/* Nothing was sent to the device, or the read is complete already. */
		complete(&digest->completed);
		digest->bytes = max_t(ssize_t, ret, 0);
		if (csd_digest_marked(digest))
			ret = -EIO;
	} else {
		ret = csd_digest_wait(digest);
	}
	if (ret >= 0)
		return 0;
	csd_digest_give(digest);
	return ret;
}

/**
 * csd_digest_give - release the window of a digest
 * @digest: a digest that is held
 *
 * Context: process context, may sleep.
 */
void csd_digest_give(struct csd_digest *digest)
{
	struct bio *bio;

	spin_lock_irq(&digest->lock);
	digest->taken = false;
	spin_unlock_irq(&digest->lock);
	while ((bio = bio_list_pop(&digest->bios)))
		bio_endio(bio);
	wait_for_completion(&digest->completed);
}

/**
 * csd_digest_len - get the number of bytes of a block that are in the file
 * @digest: a digest that is held
 * @position: start of the block in the file, in the window
 *
 * Return: CSD_BLOCK_SIZE at most
 */
u32 csd_digest_len(const struct csd_digest *digest, u64 position)
{
	return min_t(u64, digest->position + digest->bytes - position, CSD_BLOCK_SIZE);
}

/**
 * csd_digest_find - find a block of the file
 * @digest: a digest that is held
 * @position: start of the block in the file, a multiple of CSD_BLOCK_SIZE
 * @spot: filled in
 *
 * Return: true if the block is in the window
 */
bool csd_digest_find(const struct csd_digest *digest, u64 position, struct csd_spot *spot)
{
	u64 i = (position - digest->position) / CSD_BLOCK_SIZE;
	u64 last = DIV_ROUND_UP(digest->bytes, CSD_BLOCK_SIZE);
	u64 n;

	if (position < digest->position || i >= last)
		return false;
	spot->data = page_address(digest->pages[i]);
	spot->blocks = 0;
	if (digest->sectors[i] == CSD_NO_SECTOR)
		return true;
	spot->sector = digest->sectors[i];
	for (n = 1; i + n < last; n++)
		if (digest->sectors[i + n] != spot->sector + n * (CSD_BLOCK_SIZE / SECTOR_SIZE))
			break;
	spot->blocks = n;
	return true;
}

/**
 * csd_digest_free - free a digest that is not held
 * @digest: the digest, or NULL
 */
void csd_digest_free(struct csd_digest *digest)
{
	u32 i;

	if (!digest)
		return;
	for (i = 0; i < CSD_WINDOW && digest->pages[i]; i++) {
		xa_erase(&csd_digest_pages, page_to_pfn(digest->pages[i]));
		set_page_private(digest->pages[i], 0);
		__free_page(digest->pages[i]);
	}
	kvfree(digest);
}

/**
 * csd_digest_alloc - make a digest
 *
 * Context: process context, may sleep.
 * Return: a digest that is not held, or NULL
 */
struct csd_digest *csd_digest_alloc(void)
{
	struct csd_digest *digest = kvzalloc(sizeof(*digest), GFP_KERNEL_ACCOUNT);

	if (!digest)
		return NULL;
	init_completion(&digest->completed);
	spin_lock_init(&digest->lock);
	init_waitqueue_head(&digest->waitq);
	bio_list_init(&digest->bios);
	return digest;
}
