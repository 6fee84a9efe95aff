// SPDX-License-Identifier: GPL-2.0
/*
 * The data cache: blocks of files in slots of BPF maps. The program finds and chooses slots. The
 * functions here lock a slot, check its tag and copy its bytes once.
 *
 * The program and the daemon can write to the maps at any time. If they leave a tag's lock in a bad
 * state, its slot is lost. A tag of another block, or of an epoch since which the block has
 * changed, is a miss. Locks are never waited for: a locked slot is a miss as well.
 */
#include "cache_i.h"

#include <linux/pagemap.h>
#include <linux/rcupdate_wait.h>

static atomic_t *efuse_tag_lock(struct efuse_tag *tag)
{
	return (atomic_t *)&tag->lock;
}

static bool efuse_tag_read_lock(struct efuse_tag *tag)
{
	int old = atomic_read(efuse_tag_lock(tag));

	do {
		if (old < 0 || old == INT_MAX)
			return false;
	} while (!atomic_try_cmpxchg_acquire(efuse_tag_lock(tag), &old, old + 1));
	return true;
}

static void efuse_tag_read_unlock(struct efuse_tag *tag)
{
	atomic_dec_return_release(efuse_tag_lock(tag));
}

static bool efuse_tag_write_lock(struct efuse_tag *tag)
{
	int old = 0;

	return atomic_try_cmpxchg_acquire(efuse_tag_lock(tag), &old, (int)EFUSE_TAG_WRITER);
}

static void efuse_tag_write_unlock(struct efuse_tag *tag)
{
	atomic_set_release(efuse_tag_lock(tag), 0);
}

/* Check a copy of a slot's tag. Returns 0, or the reason why the slot cannot answer. */
static enum efuse_counter efuse_block_refused(const struct efuse_req *req,
					      const struct efuse_tag *tag)
{
	const struct efuse_block *at = req->block;

	if (tag->nodeid != req->args->nodeid || tag->block != at->number ||
	    tag->len > EFUSE_BLOCK_SIZE)
		return EFUSE_MISS;
	if (tag->expires_ns <= at->now && !efuse_version_proves(req->args, tag->version) &&
	    !efuse_changes_known_nodeid(req, tag->nodeid))
		return EFUSE_EXPIRED;
	if (!efuse_epoch_block_valid(req->ec, tag->nodeid, tag->block,
				     tag->len < EFUSE_BLOCK_SIZE, tag->epoch))
		return EFUSE_STALE;
	return 0;
}

/* Copy the wanted bytes of a slot into the request. */
static void efuse_block_copy(struct efuse_block *at, const struct efuse_tag *tag,
			     const void *data)
{
	u32 len = tag->len > at->skip ? min(at->want, tag->len - at->skip) : 0;

	at->found = copy_to_iter(data + at->skip, len, at->iter) == len;
	at->len = len;
	at->last = len < at->want || (!at->want && tag->len < EFUSE_BLOCK_SIZE);
}

/**
 * efuse_answer_block - copy the block that block() was called for from a slot
 * @req: a READ, in block()
 * @mem: the tag of the slot
 * @size: size of @mem, bytes
 * @data: the slot
 * @data_size: size of @data, bytes
 *
 * Return: EFUSE_REPLIED if the block was copied into the request, else EFUSE_PASS.
 */
int efuse_answer_block(struct efuse_req *req, void *mem, u32 size, const void *data,
		       u32 data_size)
{
	struct efuse_block *at = req->block;
	struct efuse_tag *tag = mem, copy;

	BUILD_BUG_ON(sizeof(struct efuse_tag) != 64);

	if (!at || at->found || size != sizeof(*tag) || data_size != EFUSE_BLOCK_SIZE) {
		req->reason = EFUSE_DECLINED;
		return EFUSE_PASS;
	}
	if (!efuse_tag_read_lock(tag)) {
		req->reason = EFUSE_MISS;
		return EFUSE_PASS;
	}
	memcpy(&copy, tag, sizeof(copy));
	req->reason = efuse_block_refused(req, &copy);
	if (!req->reason) {
		efuse_block_copy(at, &copy, data);
		at->unlike |= copy.version != req->args->efuse.version;
		if (!READ_ONCE(tag->used))
			WRITE_ONCE(tag->used, 1);
	}
	efuse_tag_read_unlock(tag);
	return at->found ? EFUSE_REPLIED : EFUSE_PASS;
}

/**
 * efuse_keep_block - store the block that learn() was called for in a slot
 * @req: a READ or WRITE with its answer
 * @mem: the tag of the slot
 * @size: size of @mem, bytes
 * @data: the slot
 * @data_size: size of @data, bytes
 *
 * Return: 0, -EBUSY if the slot is locked, or -EINVAL.
 */
int efuse_keep_block(struct efuse_req *req, void *mem, u32 size, void *data, u32 data_size)
{
	struct efuse_block *at = req->block;
	struct efuse_tag *tag = mem, copy;
	struct iov_iter iter;

	if (!at || size != sizeof(*tag) || data_size != EFUSE_BLOCK_SIZE)
		return -EINVAL;
	at->evicted.nodeid = 0;
	if (!efuse_tag_write_lock(tag))
		return -EBUSY;
	memcpy(&copy, tag, sizeof(copy));
	if (copy.nodeid && (copy.nodeid != req->args->nodeid || copy.block != at->number)) {
		this_cpu_inc(req->ec->stats->evicted);
		at->evicted = copy;
	}
	iter = *at->iter;
	/* The slot stays empty if the copy fails half-way. */
	tag->nodeid = 0;
	if (copy_from_iter(data, at->len, &iter) == at->len) {
		memset(data + at->len, 0, EFUSE_BLOCK_SIZE - at->len);
		tag->used = 0;
		tag->block = at->number;
		tag->epoch = at->epoch;
		tag->expires_ns = at->expires_ns;
		tag->version = at->version;
		tag->len = at->len;
		memset(tag->pad, 0, sizeof(tag->pad));
		tag->nodeid = req->args->nodeid;
	}
	efuse_tag_write_unlock(tag);
	return 0;
}

/**
 * efuse_evicted_block - the block that the last efuse_keep_block() has evicted
 * @req: a READ or WRITE, in learn()
 * @mem: filled with the former tag of the slot
 * @size: size of @mem, bytes
 *
 * Return: 0; -ENOENT if the slot was empty or held an older copy of the same block; or -EINVAL.
 */
int efuse_evicted_block(const struct efuse_req *req, void *mem, u32 size)
{
	const struct efuse_block *at = req->block;

	if (!at || size != sizeof(at->evicted))
		return -EINVAL;
	if (!at->evicted.nodeid)
		return -ENOENT;
	memcpy(mem, &at->evicted, sizeof(at->evicted));
	return 0;
}

/* Ask the program for a block. Returns whether it was found and copied into the request. */
static bool efuse_block_find(struct efuse_req *req, struct efuse_ops *ops,
			     struct efuse_block *at)
{
	bool answered;

	at->found = false;
	req->block = at;
	answered = ops->block(req) == EFUSE_REPLIED;
	req->block = NULL;
	if (answered != at->found)
		this_cpu_inc(req->ec->stats->invalid_verdicts);
	return at->found;
}

/* May the data cache be used for this request at all? */
bool efuse_blocks_allowed(const struct efuse_req *req)
{
	return READ_ONCE(req->ec->consistency) != EFUSE_STRICT && !req->args->efuse.uncached;
}

static void efuse_block_at(struct efuse_block *at, u64 pos, size_t left)
{
	at->number = pos / EFUSE_BLOCK_SIZE;
	at->skip = pos % EFUSE_BLOCK_SIZE;
	at->want = min_t(size_t, left, EFUSE_BLOCK_SIZE - at->skip);
}

/**
 * efuse_blocks_read - copy blocks into a READ up to the first one that the cache does not have
 * @req: the READ
 * @data: position in the data of the READ; advanced by the bytes copied
 * @pos: position in the file of the same byte
 * @eof: set if the file ends after the copied bytes
 *
 * Context: process context, may sleep.
 * Return: bytes copied.
 */
size_t efuse_blocks_read(struct efuse_req *req, struct efuse_data *data, u64 pos, bool *eof)
{
	struct efuse_block at = { .now = ktime_get_ns() };
	struct efuse_data before;
	struct efuse_span span __uninitialized;
	struct efuse_ops *ops;
	struct iov_iter iter;
	size_t done = 0;
	u32 nr = 0;

	at.iter = &iter;
	rcu_read_lock();
	ops = rcu_dereference(req->ec->ops);
	while (data->left && !*eof && ops && ops->block) {
		efuse_block_at(&at, pos + done, data->left);
		before = *data;
		if (efuse_data_next(data, &span, &iter, at.want) < at.want ||
		    !efuse_block_find(req, ops, &at)) {
			*data = before;
			break;
		}
		done += at.len;
		*eof = at.last;
		if (++nr % EFUSE_DATA_PAGES == 0) {
			cond_resched_rcu();
			ops = rcu_dereference(req->ec->ops);
		}
	}
	rcu_read_unlock();
	if (at.unlike)
		efuse_version_unlike(req);
	return done;
}

/**
 * efuse_blocks_missing - find the end of a gap in the cached blocks of a READ
 * @req: the READ
 * @pos: position in the file; the block of this byte is missing
 * @len: bytes from @pos to the end of the READ
 *
 * Return: bytes from @pos to the next block that the cache has, or to the end of the READ.
 */
size_t efuse_blocks_missing(struct efuse_req *req, u64 pos, size_t len)
{
	struct efuse_block at = { .now = ktime_get_ns() };
	struct efuse_ops *ops;
	struct iov_iter iter;
	size_t done;

	iov_iter_kvec(&iter, ITER_DEST, NULL, 0, 0);
	at.iter = &iter;
	done = EFUSE_BLOCK_SIZE - pos % EFUSE_BLOCK_SIZE;
	rcu_read_lock();
	ops = rcu_dereference(req->ec->ops);
	while (done < len && ops && ops->block) {
		at.number = (pos + done) / EFUSE_BLOCK_SIZE;
		if (efuse_block_find(req, ops, &at))
			break;
		done += EFUSE_BLOCK_SIZE;
	}
	rcu_read_unlock();
	return min(done, len);
}

/*
 * Is the data of a request stable while it is copied? A program may write to its own pages at any
 * time, and to pages of a file that is mapped for writing.
 */
static bool efuse_data_stable(const struct fuse_args *args)
{
	const struct fuse_args_pages *ap = container_of(args, struct fuse_args_pages, args);
	struct address_space *mapping;

	if (args->user_pages || !ap->num_folios)
		return false;
	mapping = efuse_page_mapping(ap, 0);
	return args->opcode == FUSE_READ || !mapping || !mapping_writably_mapped(mapping);
}

/* Is the block of a reply still valid? If so, sets @at->epoch to the epoch for its tag. */
static bool efuse_block_holds(const struct efuse_req *req, const struct efuse_changes *ch,
			      struct efuse_block *at)
{
	const struct fuse_args *args = req->args;
	u64 nodeid = args->nodeid, issued = args->efuse.epoch;

	if (args->opcode == FUSE_READ) {
		at->epoch = issued;
		return efuse_epoch_block_valid(req->ec, nodeid, at->number,
					       at->len < EFUSE_BLOCK_SIZE, issued);
	}
	at->epoch = ch->epoch;
	return test_bit(at->number - ch->block, ch->own_blocks) &&
	       efuse_epoch_valid(req->ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT), issued) &&
	       efuse_epoch_quiet(req->ec, efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY), issued);
}

static void efuse_block_learn(struct efuse_req *req, struct efuse_ops *ops,
			      const struct efuse_changes *ch, struct efuse_block *at)
{
	if (!efuse_block_holds(req, ch, at))
		return;
	req->block = at;
	this_cpu_inc(req->ec->stats->learned);
	if (ops->learn(req) < 0)
		this_cpu_inc(req->ec->stats->map_full);
	req->block = NULL;
}

/* Bytes that were read or written, from the request's offset on. */
static size_t efuse_data_moved(const struct fuse_args *args)
{
	const struct fuse_write_out *out = args->out_args[0].value;

	return min_t(size_t, args->opcode == FUSE_READ ? args->out_args[0].size : out->size,
		     efuse_arg_size(args));
}

/*
 * Does the file end at @end, where the @moved bytes of a READ end? A READ that got all its bytes
 * may end there, too, if the size of the file is known.
 */
static bool efuse_read_to_end(const struct efuse_req *req, u64 end, size_t moved)
{
	u64 size;

	if (req->args->opcode != FUSE_READ)
		return false;
	return moved < efuse_arg_size(req->args) ||
	       (end % EFUSE_BLOCK_SIZE &&
		efuse_size_known(req->ec, req->fm, req->args->nodeid, &size) && end == size);
}

/**
 * efuse_blocks_learn - call the program's learn() for each whole block of a READ or WRITE
 * @req: the request, answered by the daemon or from backing files
 * @ch: the changes that the request made, ended
 *
 * Context: process context.
 */
void efuse_blocks_learn(struct efuse_req *req, const struct efuse_changes *ch)
{
	struct fuse_args *args = req->args;
	u64 valid_ns, pos = efuse_arg_offset(args);
	struct efuse_block at = { .number = DIV_ROUND_UP_ULL(pos, EFUSE_BLOCK_SIZE) };
	size_t moved, start = at.number * EFUSE_BLOCK_SIZE - pos;
	struct efuse_data data;
	struct efuse_span span __uninitialized;
	struct efuse_ops *ops;
	struct iov_iter iter;

	if (req->error || !efuse_blocks_allowed(req) || !efuse_data_stable(args) ||
	    (args->opcode == FUSE_WRITE &&
	     (efuse_arg_flags(args) & O_APPEND || efuse_arg_size(args) > EFUSE_KEPT_WRITE)) ||
	    (args->opcode == FUSE_READ &&
	     (args->efuse.unkept || args->efuse.path == EFUSE_PATH_DAEMON)))
		return;
	moved = efuse_data_moved(args);
	valid_ns = efuse_inode_valid_ns(req->fm, args->nodeid);
	if (start > moved ||
	    (!valid_ns && READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE))
		return;
	at.expires_ns = ktime_get_ns() + valid_ns;
	at.version = args->opcode == FUSE_READ && args->efuse.settled ? args->efuse.version : 0;
	at.iter = &iter;

	efuse_data_start(&data, args, ITER_SOURCE);
	efuse_data_skip(&data, start);
	rcu_read_lock();
	ops = rcu_dereference(req->ec->ops);
	if (!ops || !ops->block || !ops->learn || efuse_learn_early(req))
		goto out;
	for (; start + EFUSE_BLOCK_SIZE <= moved; start += EFUSE_BLOCK_SIZE, at.number++) {
		at.len = efuse_data_next(&data, &span, &iter, EFUSE_BLOCK_SIZE);
		if (at.len == EFUSE_BLOCK_SIZE)
			efuse_block_learn(req, ops, ch, &at);
	}
	if (efuse_read_to_end(req, pos + moved, moved)) {
		at.len = efuse_data_next(&data, &span, &iter, moved - start);
		if (at.len == moved - start)
			efuse_block_learn(req, ops, ch, &at);
	}
out:
	rcu_read_unlock();
}
