// SPDX-License-Identifier: GPL-2.0
/*
 * Epochs: is a value that was true at some time still true?
 *
 * A connection numbers its changes: efuse_conn.epoch is the number of the last one. The objects of
 * a change (an inode's attributes, a name, a block, ...) hash to buckets. A bucket is one 64-bit
 * word with two fields: the epoch of the last change of any object in the bucket, and the number of
 * changes in flight, which are issued and not known to have ended. A value carries the epoch that
 * was read when the request for it was issued. It is valid while none of the buckets that it
 * depends on has a change in flight or a later epoch.
 *
 * When a change ends, it takes the next epoch. Then, in one atomic operation per bucket, it writes
 * that epoch into the bucket and leaves it. So a request that was issued before the end has an
 * older epoch than the bucket, and its value is void whenever it arrives. A request that is issued
 * after the end has the new epoch. While a change is in flight, nothing in its buckets is answered
 * by the kernel, since it does not know whether the daemon has carried out the change yet. Two
 * objects in one bucket cost misses, but never cause a wrong answer.
 *
 * No locks: buckets are atomic words, and all functions here can be called in any context, unless
 * their descriptions say otherwise. Buckets are allocated in chunks, by the first change in a
 * chunk. If there is no memory for a chunk, its buckets have changes in flight for ever.
 */
#include "cache_i.h"

#include <linux/hash.h>
#include <linux/jhash.h>

/* The rest of a bucket's word is an epoch. */
#define EFUSE_IN_FLIGHT_BITS	(64 - EFUSE_EPOCH_BITS)
/* A bucket that reaches this number of changes in flight keeps it for ever. */
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

/* Consecutive blocks of a file have consecutive buckets, since a WRITE changes many of them. */
static u16 efuse_block_bucket(u64 nodeid, u64 block)
{
	return hash_64(nodeid, ilog2(EFUSE_NR_BUCKETS)) + block;
}

/* The chunk in place of those that could not be allocated. It is never written. */
static atomic64_t efuse_closed_chunk[EFUSE_BUCKETS_CHUNK] = {
	[0 ... EFUSE_BUCKETS_CHUNK - 1] = ATOMIC64_INIT(EFUSE_IN_FLIGHT_MAX),
};

/* The word of a bucket; 0 if the bucket has not been changed yet. */
static u64 efuse_word(const struct efuse_buckets *buckets, u16 bucket)
{
	/* Pairs with the cmpxchg() of efuse_chunk_make(): the words of a new chunk are zero. */
	const atomic64_t *chunk = smp_load_acquire(&buckets->chunk[bucket / EFUSE_BUCKETS_CHUNK]);

	return chunk ? atomic64_read_acquire(&chunk[bucket % EFUSE_BUCKETS_CHUNK]) : 0;
}

/* Allocate a chunk of zeros, unless another task is faster. Returns NULL without memory. */
atomic64_t *efuse_chunk_make(atomic64_t **at, gfp_t gfp_flags)
{
	atomic64_t *old, *chunk;

	chunk = kcalloc(EFUSE_BUCKETS_CHUNK, sizeof(*chunk), gfp_flags | __GFP_NOWARN);
	if (!chunk)
		return NULL;
	old = cmpxchg(at, NULL, chunk);
	if (!old)
		return chunk;
	kfree(chunk);
	return old;
}

/* Allocate a chunk, or close its buckets. The caller may hold a spinlock. */
static atomic64_t *efuse_chunk_add(atomic64_t **at)
{
	atomic64_t *chunk = efuse_chunk_make(at, GFP_ATOMIC);

	if (chunk)
		return chunk;
	pr_warn_ratelimited("efuse: no memory to note a change: values that share a chunk of %d buckets with it are no longer kept\n",
			    EFUSE_BUCKETS_CHUNK);
	return cmpxchg(at, NULL, efuse_closed_chunk) ?: efuse_closed_chunk;
}

static atomic64_t *efuse_bucket(struct efuse_buckets *buckets, u16 bucket)
{
	atomic64_t **at = &buckets->chunk[bucket / EFUSE_BUCKETS_CHUNK];
	/* Pairs with the cmpxchg() of efuse_chunk_make(). */
	atomic64_t *chunk = smp_load_acquire(at) ?: efuse_chunk_add(at);

	return &chunk[bucket % EFUSE_BUCKETS_CHUNK];
}

/* Free a table. The connection must not be in use any more, not even under RCU. */
void efuse_buckets_free(struct efuse_buckets *buckets)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(buckets->chunk); i++)
		if (buckets->chunk[i] != efuse_closed_chunk)
			kfree(buckets->chunk[i]);
}

/* Free all buckets, as efuse_buckets_free() does. */
void efuse_epochs_free(struct efuse_conn *ec)
{
	efuse_buckets_free(&ec->buckets);
	efuse_buckets_free(&ec->block_buckets);
}

/* The epoch of the last change of the connection. */
u64 efuse_epoch_now(const struct efuse_conn *ec)
{
	/* Acquire: data that a publishing daemon reads after this includes the change. */
	return atomic64_read_acquire(&ec->epoch);
}

static bool efuse_word_quiet(u64 word, u64 epoch)
{
	return !efuse_in_flight(word) && efuse_last_change(word) <= epoch;
}

/* Is no change of the bucket in flight, and none later than an epoch? */
bool efuse_epoch_quiet(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	return efuse_word_quiet(efuse_word(&ec->buckets, bucket), epoch);
}

/* Is exactly one change of the bucket in flight, and none later than an epoch? */
bool efuse_epoch_alone(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	u64 word = efuse_word(&ec->buckets, bucket);

	return efuse_in_flight(word) == 1 && efuse_last_change(word) <= epoch;
}

/* The same, and is the epoch valid? */
bool efuse_epoch_single(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	return efuse_epoch_alone(ec, bucket, epoch) && epoch >= atomic64_read(&ec->floor);
}

/**
 * efuse_epoch_valid - is a value of an epoch still valid, as far as one bucket tells?
 * @ec: connection
 * @bucket: a bucket that the value depends on
 * @epoch: epoch of the value
 *
 * If this returns true, the value was true at the moment when this function read the bucket.
 */
bool efuse_epoch_valid(const struct efuse_conn *ec, u16 bucket, u64 epoch)
{
	return efuse_epoch_quiet(ec, bucket, epoch) &&
	       epoch >= atomic64_read(&ec->floor) && epoch <= efuse_epoch_now(ec);
}

/**
 * efuse_epoch_block_valid - is the cached data of a block still valid?
 * @ec: connection
 * @nodeid: nodeid of the file
 * @block: number of the block
 * @last: the file ended in the block; then the block is void if the file has grown since
 * @epoch: epoch of the data
 */
bool efuse_epoch_block_valid(const struct efuse_conn *ec, u64 nodeid, u64 block, bool last,
			     u64 epoch)
{
	const u16 bucket = efuse_block_bucket(nodeid, block);

	/* A WRITE that was issued when it did not make the file longer may do so now. */
	if (last && efuse_epoch_in_flight(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR)))
		return false;
	return efuse_word_quiet(efuse_word(&ec->block_buckets, bucket), epoch) &&
	       efuse_epoch_valid(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT), epoch) &&
	       efuse_epoch_quiet(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY), epoch) &&
	       (!last || efuse_epoch_quiet(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_EOF),
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

/*
 * End a change of a bucket: write its epoch, and count one change in flight less. Returns whether
 * no other change has touched the bucket since the epoch @issued.
 */
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

/* Changes are issued. To be called before the daemon can see the request. */
void efuse_epoch_begin(struct efuse_conn *ec, const struct efuse_changes *ch)
{
	int i;

	for (i = 0; i < ch->nr; i++)
		efuse_bucket_enter(&ec->buckets, ch->bucket[i]);
	for (i = 0; i < ch->nr_blocks; i++)
		efuse_bucket_enter(&ec->block_buckets,
				   efuse_block_bucket(ch->nodeid, ch->block + i));
}

/*
 * Changes have ended. To be called before the caller can see the reply. Sets @epoch, @own and
 * @own_blocks of @ch. @issued: epoch at which the request was issued.
 */
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

/* Changes did not happen: the daemon does not implement the request, or it was not sent. */
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
 * efuse_epoch_holds - is a value in a reply still valid, as far as one bucket tells?
 * @ec: connection
 * @ch: the changes that the request made, ended
 * @bucket: a bucket that the value depends on
 * @issued: epoch at which the request was issued
 * @own: set to true if the request itself has changed the bucket, else left alone
 */
bool efuse_epoch_holds(const struct efuse_conn *ec, const struct efuse_changes *ch, u16 bucket,
		       u64 issued, bool *own)
{
	int i;

	for (i = 0; i < ch->nr; i++) {
		if (ch->bucket[i] == bucket) {
			*own = true;
			/* The floor: efuse_epoch_void() was not called meanwhile. */
			return ch->own[i] && issued >= (u64)atomic64_read(&ec->floor);
		}
	}
	return efuse_epoch_valid(ec, bucket, issued);
}

/* A change of one bucket begins. efuse_epoch_leave() ends it. */
void efuse_epoch_enter(struct efuse_conn *ec, u16 bucket)
{
	efuse_bucket_enter(&ec->buckets, bucket);
}

/* A change of one bucket ends. */
void efuse_epoch_leave(struct efuse_conn *ec, u16 bucket)
{
	efuse_bucket_leave(&ec->buckets, bucket, atomic64_inc_return(&ec->epoch), 0);
}

/* The word of a bucket. It differs after any change of the bucket has begun or ended. */
u64 efuse_epoch_word(const struct efuse_conn *ec, u16 bucket)
{
	return efuse_word(&ec->buckets, bucket);
}

/* The epoch of the last change of a bucket that has ended, or the floor if that is later. */
u64 efuse_epoch_last(const struct efuse_conn *ec, u16 bucket)
{
	return max_t(u64, efuse_last_change(efuse_epoch_word(ec, bucket)),
		     atomic64_read(&ec->floor));
}

/* Does a bucket note no changes any more, so that none of its values is valid? */
bool efuse_epoch_closed(const struct efuse_conn *ec, u16 bucket)
{
	return efuse_in_flight(efuse_epoch_word(ec, bucket)) == EFUSE_IN_FLIGHT_MAX;
}

/* The number of changes of a bucket that are in flight. */
u64 efuse_epoch_in_flight(const struct efuse_conn *ec, u16 bucket)
{
	return efuse_in_flight(efuse_epoch_word(ec, bucket));
}

/* A change of one bucket has happened. */
void efuse_epoch_bump(struct efuse_conn *ec, u16 bucket)
{
	efuse_epoch_enter(ec, bucket);
	efuse_epoch_leave(ec, bucket);
}

/*
 * A change of one bucket has happened. Returns its epoch, or 0 if another change has touched the
 * bucket since the epoch @issued.
 */
u64 efuse_epoch_bump_since(struct efuse_conn *ec, u16 bucket, u64 issued)
{
	u64 epoch;

	efuse_epoch_enter(ec, bucket);
	epoch = atomic64_inc_return(&ec->epoch);
	return efuse_bucket_leave(&ec->buckets, bucket, epoch, issued) ? epoch : 0;
}

/* Make all values void that were learned or published so far: set the floor to a new epoch. */
void efuse_epoch_void(struct efuse_conn *ec)
{
	s64 floor = atomic64_inc_return(&ec->epoch);
	s64 old = atomic64_read(&ec->floor);

	do {
		if (old >= floor)
			return;
	} while (!atomic64_try_cmpxchg(&ec->floor, &old, floor));
}
