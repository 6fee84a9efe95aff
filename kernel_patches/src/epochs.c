// SPDX-License-Identifier: GPL-2.0
/*
 * Epochs: what was true when, and whether it still is.
 *
 * A connection counts its changes: conn->epoch is the number of the last one.
 * What a change concerns is hashed into buckets. A bucket holds, in one word, the
 * epoch of the last change to anything in it and the number of changes that are
 * in flight: issued, and not known to be over. A value carries the epoch read
 * when the request that produced it was issued, and is valid while its buckets
 * have nothing in flight and no later change.
 *
 * A change ends by taking a new epoch, writing that into its buckets and
 * leaving them, the last two at once. So a request issued before the end carries
 * an older epoch than the bucket and its value is void, whenever it arrives; one
 * issued behind the end carries the new epoch. While the change is in flight
 * nothing of the bucket is answered, since nobody knows on which side of it the
 * daemon stands. Two things in one bucket cost a miss, never a lie.
 *
 * Buckets are allocated by the first change to one of their chunk. Those of a chunk
 * that there is no memory for count as being changed for ever.
 */
#include "efuse_i.h"

#include <linux/hash.h>
#include <linux/jhash.h>

/* The rest of a bucket's word is an epoch. */
#define EFUSE_IN_FLIGHT_BITS	(64 - EFUSE_EPOCH_BITS)
/* So many changes in flight leave the bucket closed for ever. */
#define EFUSE_IN_FLIGHT_MAX	((1ULL << EFUSE_IN_FLIGHT_BITS) - 1)

#define efuse_in_flight(word)	((u64)(word) & EFUSE_IN_FLIGHT_MAX)
#define efuse_last_change(word)	((u64)(word) >> EFUSE_IN_FLIGHT_BITS)

u16 efuse_bucket_inode(u64 nodeid, enum efuse_kind kind)
{
	return hash_64(nodeid * 16 + kind, ilog2(EFUSE_NR_BUCKETS));
}

u16 efuse_bucket_entry(u64 parent, const char *name, u32 len)
{
	return jhash(name, len, hash_64(parent, 32)) & (EFUSE_NR_BUCKETS - 1);
}

/*
 * Blocks of a file have buckets of their own, one behind the other, since a WRITE
 * changes many of them.
 */
static u16 efuse_block_bucket(u64 nodeid, u64 block)
{
	return hash_64(nodeid, ilog2(EFUSE_NR_BUCKETS)) + block;
}

/* All of its changes are in flight; it is only read. */
static atomic64_t efuse_closed_chunk[EFUSE_BUCKETS_CHUNK] = {
	[0 ... EFUSE_BUCKETS_CHUNK - 1] = ATOMIC64_INIT(EFUSE_IN_FLIGHT_MAX),
};

/* The word of a bucket; of one that nothing has changed, 0. */
static u64 efuse_word(const struct efuse_buckets *buckets, u16 bucket)
{
	/* Pairs with efuse_chunk_add(): its words are zero. */
	const atomic64_t *chunk = smp_load_acquire(&buckets->chunk[bucket / EFUSE_BUCKETS_CHUNK]);

	return chunk ? atomic64_read_acquire(&chunk[bucket % EFUSE_BUCKETS_CHUNK]) : 0;
}

/* Whoever is to change a bucket may hold a spinlock. */
static atomic64_t *efuse_chunk_add(atomic64_t **at)
{
	atomic64_t *old, *chunk;

	chunk = kcalloc(EFUSE_BUCKETS_CHUNK, sizeof(*chunk), GFP_ATOMIC | __GFP_NOWARN);

	if (!chunk) {
		pr_warn_ratelimited("efuse: no memory to note a change: what shares a chunk of %d buckets with it is not kept any more\n",
				    EFUSE_BUCKETS_CHUNK);
		chunk = efuse_closed_chunk;
	}
	old = cmpxchg(at, NULL, chunk);
	if (!old)
		return chunk;
	if (chunk != efuse_closed_chunk)
		kfree(chunk);
	return old;
}

static atomic64_t *efuse_bucket(struct efuse_buckets *buckets, u16 bucket)
{
	atomic64_t **at = &buckets->chunk[bucket / EFUSE_BUCKETS_CHUNK];
	/* As in efuse_word(). */
	atomic64_t *chunk = smp_load_acquire(at) ?: efuse_chunk_add(at);

	return &chunk[bucket % EFUSE_BUCKETS_CHUNK];
}

static void efuse_buckets_free(struct efuse_buckets *buckets)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(buckets->chunk); i++)
		if (buckets->chunk[i] != efuse_closed_chunk)
			kfree(buckets->chunk[i]);
}

/* Nobody looks at a connection any more. */
void efuse_epochs_free(struct efuse_conn *ec)
{
	efuse_buckets_free(&ec->buckets);
	efuse_buckets_free(&ec->block_buckets);
}

u64 efuse_epoch_now(const struct efuse_conn *ec)
{
	/* What is read behind it, by a daemon that publishes, is read behind the change. */
	return atomic64_read_acquire(&ec->epoch);
}

static bool efuse_word_quiet(u64 word, u64 epoch)
{
	return !efuse_in_flight(word) && efuse_last_change(word) <= epoch;
}

/* Did nothing in the bucket change behind an epoch? */
bool efuse_epoch_quiet(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	return efuse_word_quiet(efuse_word(&ec->buckets, bucket), epoch);
}

/**
 * efuse_epoch_valid - is nothing newer known than what was issued in an epoch?
 * @ec: connection
 * @bucket: of what the value depends on
 * @epoch: that it carries
 *
 * An answer given on a true return is right at the moment of the read in here.
 */
bool efuse_epoch_valid(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	return efuse_epoch_quiet(ec, bucket, epoch) &&
	       epoch >= atomic64_read(&ec->floor) && epoch <= efuse_epoch_now(ec);
}

/**
 * efuse_epoch_block_valid - is a block of a file as it was in an epoch?
 * @ec: connection
 * @nodeid: of the file
 * @block: its number
 * @last: whether the file ends in it, which it does not any more once the file has grown
 * @epoch: that the block's data carries
 */
bool efuse_epoch_block_valid(const struct efuse_conn *ec, u64 nodeid, u64 block, bool last,
			     u64 epoch)
{
	const u16 bucket = efuse_block_bucket(nodeid, block);

	return efuse_word_quiet(efuse_word(&ec->block_buckets, bucket), epoch) &&
	       efuse_epoch_valid(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_WHOLE), epoch) &&
	       efuse_epoch_quiet(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_LIFE), epoch) &&
	       (!last || efuse_epoch_quiet(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_END),
					   epoch));
}

static void efuse_bucket_enter(struct efuse_buckets *buckets, u16 number)
{
	atomic64_t *bucket = efuse_bucket(buckets, number);
	s64 old = atomic64_read(bucket);

	do {
		if (efuse_in_flight(old) == EFUSE_IN_FLIGHT_MAX)
			return;
	} while (!atomic64_try_cmpxchg(bucket, &old, old + 1));
}

/* Returns whether the bucket had no other change since @issued. */
static bool efuse_bucket_leave(struct efuse_buckets *buckets, u16 number, u64 epoch, u64 issued)
{
	atomic64_t *bucket = efuse_bucket(buckets, number);
	s64 old = atomic64_read(bucket);
	u64 last, new;

	do {
		if (efuse_in_flight(old) == EFUSE_IN_FLIGHT_MAX)
			return false;
		last = max(efuse_last_change(old), epoch);
		new = (last << EFUSE_IN_FLIGHT_BITS) | (efuse_in_flight(old) - 1);
	} while (!atomic64_try_cmpxchg(bucket, &old, new));

	return efuse_in_flight(old) == 1 && efuse_last_change(old) <= issued;
}

/* The changes are issued: before the daemon can see the request. */
void efuse_epoch_begin(struct efuse_conn *ec, const struct efuse_changes *ch)
{
	int i;

	for (i = 0; i < ch->nr; i++)
		efuse_bucket_enter(&ec->buckets, ch->bucket[i]);
	for (i = 0; i < ch->nr_blocks; i++)
		efuse_bucket_enter(&ec->block_buckets,
				   efuse_block_bucket(ch->nodeid, ch->block + i));
}

/* The changes are over: before the caller can see the reply. */
void efuse_epoch_end(struct efuse_conn *ec, struct efuse_changes *ch, u64 issued)
{
	int i;

	if (!ch->nr)
		return;
	ch->epoch = atomic64_inc_return(&ec->epoch);
	for (i = 0; i < ch->nr; i++)
		ch->own[i] = efuse_bucket_leave(&ec->buckets, ch->bucket[i], ch->epoch, issued);
	for (i = 0; i < ch->nr_blocks; i++)
		__assign_bit(i, ch->own_blocks,
			     efuse_bucket_leave(&ec->block_buckets,
						efuse_block_bucket(ch->nodeid, ch->block + i),
						ch->epoch, issued));
}

/* The changes did not happen: the daemon does not know the request. */
void efuse_epoch_cancel(struct efuse_conn *ec, const struct efuse_changes *ch)
{
	int i;

	for (i = 0; i < ch->nr; i++)
		efuse_bucket_leave(&ec->buckets, ch->bucket[i], 0, 0);
	for (i = 0; i < ch->nr_blocks; i++)
		efuse_bucket_leave(&ec->block_buckets,
				   efuse_block_bucket(ch->nodeid, ch->block + i), 0, 0);
}

/**
 * efuse_epoch_holds - is a bucket as a reply left it?
 * @ec: connection
 * @ch: what the reply's request changed, ended
 * @bucket: of what the reply tells
 * @issued: epoch of the request's issue
 * @own: set if the request itself changed it
 */
bool efuse_epoch_holds(const struct efuse_conn *ec, const struct efuse_changes *ch, u16 bucket,
		       u64 issued, bool *own)
{
	int i;

	for (i = 0; i < ch->nr; i++) {
		if (ch->bucket[i] == bucket) {
			*own = true;
			/* Nor did it cross efuse_epoch_void(). */
			return ch->own[i] && issued >= (u64)atomic64_read(&ec->floor);
		}
	}
	return efuse_epoch_valid(ec, bucket, issued);
}

/* A change of one bucket begins. */
void efuse_epoch_enter(struct efuse_conn *ec, u16 bucket)
{
	efuse_bucket_enter(&ec->buckets, bucket);
}

/* It is over. */
void efuse_epoch_leave(struct efuse_conn *ec, u16 bucket)
{
	efuse_bucket_leave(&ec->buckets, bucket, atomic64_inc_return(&ec->epoch), 0);
}

/* A number that differs once a change of the bucket has begun or ended. */
u64 efuse_epoch_word(const struct efuse_conn *ec, u16 bucket)
{
	return efuse_word(&ec->buckets, bucket);
}

/* The epoch of the last change of the bucket that is over. */
u64 efuse_epoch_last(const struct efuse_conn *ec, u16 bucket)
{
	return max_t(u64, efuse_last_change(efuse_epoch_word(ec, bucket)),
		     atomic64_read(&ec->floor));
}

/* How many changes of the bucket are in flight. */
u64 efuse_epoch_in_flight(const struct efuse_conn *ec, u16 bucket)
{
	return efuse_in_flight(efuse_epoch_word(ec, bucket));
}

/* A change that is over already. */
void efuse_epoch_bump(struct efuse_conn *ec, u16 bucket)
{
	efuse_epoch_enter(ec, bucket);
	efuse_epoch_leave(ec, bucket);
}

/* All that was learned and published so far is void. */
void efuse_epoch_void(struct efuse_conn *ec)
{
	s64 floor = atomic64_inc_return(&ec->epoch);
	s64 old = atomic64_read(&ec->floor);

	do {
		if (old >= floor)
			return;
	} while (!atomic64_try_cmpxchg(&ec->floor, &old, floor));
}
