// SPDX-License-Identifier: GPL-2.0
/*
 * Digests: which of the device's blocks are a file's, for as long as a digest is held.
 *
 * On a stock kernel nobody but the file system can say that, and nobody but the file
 * system can keep it true. Both is what it does for direct I/O: it writes what is dirty in the
 * page cache, looks the blocks up, and until the I/O is complete nothing takes them away:
 * truncate, hole punching and defragmentation wait. So a digest is a direct read that
 * the device does not answer: it notes where the file system sent the read of each page
 * to (csd_digest_catch()), and holds the bios until the digest is given back.
 *
 * The pages have a mark in them. Where it is gone, the file system itself has filled the page: with
 * zeroes of a hole, or, if it does no direct I/O on this file, with its bytes.
 */
#include "csd_i.h"

#include <linux/bvec.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/uio.h>

/* A bio that was lost on its way to the device: it is removed, for example. */
#define CSD_LOST	(10 * HZ)

/**
 * struct csd_digest - a window of a file
 * @kiocb: of the read
 * @completed: it is complete
 * @lock: of the following four
 * @bios: held
 * @arrived: how many blocks of the window are the device's
 * @taken: the window is open
 * @failed: some read was refused
 * @waitq: for what arrives
 * @mark: what the pages have at their beginning
 * @position: of the window in the file
 * @bytes: of it that are the file's
 * @sectors: by block: CSD_NO_SECTOR: its bytes are in its page
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

/* Digests by the frame numbers of their pages. */
static DEFINE_XARRAY(csd_digest_pages);

static struct csd_digest *csd_digest_of(struct bio *bio)
{
	return bio_has_data(bio) ? xa_load(&csd_digest_pages, page_to_pfn(bio_page(bio))) : NULL;
}

/* Note where the pages of a bio would have come from. Under the digest's lock. */
static void csd_digest_note(struct csd_digest *digest, struct bio *bio)
{
	sector_t sector = bio->bi_iter.bi_sector;
	struct bvec_iter iter;
	struct bio_vec bv;

	bio_for_each_segment(bv, bio, iter) {
		/* Not all of a page, or not one of its own: it cannot be told what it is. */
		if (bv.bv_offset || bv.bv_len != PAGE_SIZE)
			digest->failed = true;
		else
			digest->sectors[page_private(bv.bv_page)] = sector;
		sector += bv.bv_len / SECTOR_SIZE;
		digest->arrived++;
	}
}

/* Hold a bio, unless nobody waits for it any more. */
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
 * csd_digest_catch - is a READ that has come to the device one of a digest's?
 * @rq: a READ that was started
 *
 * A digest's pages are in no other I/O, and have a priority of their own that keeps their bios
 * from being merged with others.
 *
 * Context: any.
 * Return: false: it has to be carried out. true: it is taken care of, and has to be ended.
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

/* How many blocks of the window are still marked: the device is asked for them. */
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

/* Wait until all that was sent to the device has come there. */
static int csd_digest_wait(struct csd_digest *digest)
{
	u32 wanted = csd_digest_marked(digest);
	long left = wait_event_interruptible_timeout(digest->waitq,
						     csd_digest_complete(digest, wanted), CSD_LOST);

	if (left < 0)
		return -EINTR;
	return left && !digest->failed ? 0 : -EIO;
}

/* Returns -EIOCBQUEUED if the device has to do with it, or what came of the read. */
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
	/* What was asked for is what there is of the file. */
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

/* Pages for as many blocks, if they are not there from an earlier window. */
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
 * csd_digest_take - open a window, and hold it
 * @digest: one that is not held
 * @file: the file, on a file system of a device of ours
 * @position: in it, a multiple of CSD_BLOCK_SIZE
 * @blocks: of the window, up to CSD_WINDOW; behind the file's end there are none
 *
 * Context: process context, may sleep; takes the file system's locks for reading.
 * Return: 0, to be given back with csd_digest_give(), or a negative errno
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
		/* None of it went to the device, or it is back from there. */
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
 * csd_digest_give - let go what a digest holds
 * @digest: held
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
 * csd_digest_len - how many bytes of a block are the file's
 * @digest: held
 * @position: of the block, in the window
 *
 * Return: up to CSD_BLOCK_SIZE
 */
u32 csd_digest_len(const struct csd_digest *digest, u64 position)
{
	return min_t(u64, digest->position + digest->bytes - position, CSD_BLOCK_SIZE);
}

/**
 * csd_digest_find - where a byte of the file is
 * @digest: held
 * @position: of the byte, a multiple of CSD_BLOCK_SIZE
 * @spot: is told
 *
 * Return: whether it lies in the window
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
 * @digest: it, or NULL
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
