// SPDX-License-Identifier: GPL-2.0
/*
 * The order of attributes: may those in a reply be learned in place of those learned before?
 *
 * FUSE numbers the changes of its attributes (fuse_conn.attr_version), and drops attributes if it
 * has changed those of the inode since their request was issued: the daemon may have sent them
 * before the ones that FUSE has. The same rule holds for what is learned, and a caller that sees
 * attributes which are neither learned nor taken counts, too. An inode remembers the number of its
 * last learning (efuse_learned; 0: nothing that is learned is valid), the number of the last
 * attributes that FUSE did not take although they differ from its own (efuse_shown), and a hash of
 * those that came last (efuse_shown_hash). But attributes are also learned for inodes that are not
 * in memory yet, or are being evicted. So each connection has a table of these numbers, by the
 * hash of the nodeid. Nodeids that share an entry cost a learning now and then, if their requests
 * cross.
 *
 * FUSE goes on to take attributes by its own rule, so that size and times of a file that changes
 * all the time make progress. But it does not keep those that are older than the ones shown.
 *
 * No locks but fuse_inode.lock: entries are atomic words. The table is allocated in chunks, by the
 * first number in a chunk.
 */
#include "cache_i.h"

/* The entry of a nodeid; NULL if nothing was learned in its chunk, or, with @add, no memory. */
static atomic64_t *efuse_order_entry(struct efuse_conn *ec, u64 nodeid, bool add)
{
	u16 number = efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR);
	atomic64_t **at = &ec->order.chunk[number / EFUSE_BUCKETS_CHUNK];
	/* Pairs with the cmpxchg() of efuse_chunk_make(): the words of a new chunk are zero. */
	atomic64_t *chunk = smp_load_acquire(at);

	if (!chunk && add)
		chunk = efuse_chunk_make(at, GFP_NOWAIT);
	return chunk ? &chunk[number % EFUSE_BUCKETS_CHUNK] : NULL;
}

/* Free the table, as efuse_buckets_free() does. */
void efuse_order_free(struct efuse_conn *ec)
{
	efuse_buckets_free(&ec->order);
}

/* A hash of attributes, without the flags, which have the kernel's own marks. */
static u64 efuse_attr_hash(const struct efuse_conn *ec, const struct fuse_attr *attr)
{
	BUILD_BUG_ON(offsetofend(struct fuse_attr, flags) != sizeof(*attr));
	return siphash(attr, offsetof(struct fuse_attr, flags), &ec->caller_key);
}

/* Note a new number in an entry, unless one above @limit is there. Returns it, or 0. */
static u64 efuse_order_note(const struct efuse_req *req, atomic64_t *entry, u64 limit)
{
	s64 last = atomic64_read(entry);
	u64 number;

	do {
		if (last > limit)
			return 0;
		/* Taken after the entry was read, so it is larger. */
		number = atomic64_inc_return(&req->fm->fc->attr_version);
	} while (!atomic64_try_cmpxchg(entry, &last, number));
	return number;
}

/**
 * efuse_order_take - take the turn to learn attributes from a reply
 * @req: the request
 * @nodeid: the inode
 * @attr: the attributes
 *
 * Not if other ones have been learned, taken by FUSE, or shown, since the request was issued. Where
 * all changes are known, the epochs tell which are true, and the turn is always granted.
 *
 * Context: under rcu_read_lock()
 * Return: number of the turn for efuse_order_kept(), or 0 if the attributes must not be learned.
 */
u64 efuse_order_take(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr)
{
	/* All that was learned or taken earlier is in order. */
	u64 limit = efuse_changes_known(req->ec, attr) ? U64_MAX : req->args->efuse.attr_version;
	atomic64_t *entry = efuse_order_entry(req->ec, nodeid, true);
	struct inode *inode = efuse_inode_rcu(req->fm, nodeid);
	u64 number = 0;
	struct fuse_inode *fi;

	if (!entry)
		return 0;
	if (!inode)
		return efuse_order_note(req, entry, limit);
	fi = get_fuse_inode(inode);
	spin_lock(&fi->lock);
	if (max3(fi->attr_version, fi->efuse_learned, fi->efuse_shown) <= limit)
		number = efuse_order_note(req, entry, limit);
	if (number) {
		fi->efuse_learned = number;
		fi->efuse_shown_hash = efuse_attr_hash(req->ec, attr);
	}
	spin_unlock(&fi->lock);
	return number;
}

/**
 * efuse_order_pass - attributes in a reply are shown, but not learned
 * @req: the request
 * @nodeid: the inode
 *
 * No attributes of an older request are learned from now on. If that cannot be noted, those that
 * are learned end.
 *
 * Context: under rcu_read_lock()
 */
void efuse_order_pass(const struct efuse_req *req, u64 nodeid)
{
	atomic64_t *entry = efuse_order_entry(req->ec, nodeid, true);

	if (entry)
		efuse_order_note(req, entry, U64_MAX);
	else
		efuse_epoch_bump(req->ec, efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR));
}

/**
 * efuse_order_kept - was a turn to learn attributes still the last one when they were stored?
 * @req: the request
 * @nodeid: the inode
 * @attr: the attributes
 * @number: number of the turn
 *
 * If not, they may have replaced newer ones. Where all changes are known, those are the same.
 */
bool efuse_order_kept(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr,
		      u64 number)
{
	const atomic64_t *entry = efuse_order_entry(req->ec, nodeid, false);

	/* The store into the map comes first. */
	smp_mb();
	return efuse_changes_known(req->ec, attr) || atomic64_read(entry) == number;
}

/**
 * efuse_order_same - are the attributes in a reply those that came last?
 * @req: the request
 * @nodeid: the inode; if it is not in memory, the answer is no
 * @attr: the attributes
 *
 * Context: under rcu_read_lock()
 */
bool efuse_order_same(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr)
{
	struct inode *inode = efuse_inode_rcu(req->fm, nodeid);
	u64 hash = efuse_attr_hash(req->ec, attr);
	struct fuse_inode *fi;
	bool same;

	if (!inode)
		return false;
	fi = get_fuse_inode(inode);
	spin_lock(&fi->lock);
	same = fi->efuse_shown_hash == hash;
	spin_unlock(&fi->lock);
	return same;
}

/**
 * efuse_order_others - may learned attributes of an inode be shown that are not those in a reply?
 * @req: the request; learning from its reply is done
 * @nodeid: the inode; if the answer is yes, it counts from now on as one without learned attributes
 * @attr: the attributes in the reply, which are the last ones from now on
 *
 * Not if none have ever been learned, if the same ones were learned last, or where all changes are
 * known and were known then.
 * If the inode is not in memory, the program has removed the others: see learn.c.
 *
 * Context: under rcu_read_lock()
 */
bool efuse_order_others(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr)
{
	struct inode *inode = efuse_inode_rcu(req->fm, nodeid);
	struct fuse_inode *fi;
	bool others;
	u64 hash;

	if (!inode || !test_bit(EFUSE_MAP_ATTRS, &req->ec->learned_maps))
		return false;
	fi = get_fuse_inode(inode);
	if (efuse_changes_known(req->ec, attr) &&
	    (S_ISDIR(attr->mode) || READ_ONCE(fi->efuse_names) == EFUSE_NAMES_ONE))
		return false;
	hash = efuse_attr_hash(req->ec, attr);
	spin_lock(&fi->lock);
	others = fi->efuse_learned && fi->efuse_shown_hash != hash;
	if (others)
		fi->efuse_learned = 0;
	fi->efuse_shown_hash = hash;
	spin_unlock(&fi->lock);
	return others;
}

/* Is a time of an inode the one in attributes? FUSE limits the nanoseconds that it takes. */
static bool efuse_time_is(struct timespec64 time, u64 sec, u32 nsec)
{
	return time.tv_sec == (time64_t)sec && time.tv_nsec == min_t(u32, nsec, NSEC_PER_SEC - 1);
}

/* Which attributes (STATX_*) are those that FUSE has? Under fuse_inode.lock. */
static u32 efuse_attrs_same(struct inode *inode, const struct fuse_attr *attr)
{
	const struct fuse_inode *fi = get_fuse_inode(inode);
	const struct fuse_conn *fc = get_fuse_conn(inode);
	/* An inode keeps its type. With write-back FUSE decides some attributes. */
	u32 same = STATX_TYPE | fuse_get_cache_mask(inode);

	if (attr->ino == fi->orig_ino)
		same |= STATX_INO;
	if (attr->size == i_size_read(inode))
		same |= STATX_SIZE;
	if (!((attr->mode ^ fi->orig_i_mode) & 07777))
		same |= STATX_MODE;
	if (attr->nlink == inode->i_nlink)
		same |= STATX_NLINK;
	if (attr->blocks == inode->i_blocks)
		same |= STATX_BLOCKS;
	if (uid_eq(make_kuid(fc->user_ns, attr->uid), inode->i_uid))
		same |= STATX_UID;
	if (gid_eq(make_kgid(fc->user_ns, attr->gid), inode->i_gid))
		same |= STATX_GID;
	if (efuse_time_is(inode_get_mtime(inode), attr->mtime, attr->mtimensec))
		same |= STATX_MTIME;
	if (efuse_time_is(inode_get_ctime(inode), attr->ctime, attr->ctimensec))
		same |= STATX_CTIME;
	if (efuse_time_is(inode_get_atime(inode), attr->atime, attr->atimensec))
		same |= STATX_ATIME;
	return same;
}

/*
 * Which of FUSE's attributes end when a caller has seen those in @mask? The different ones. By some
 * of them FUSE also decides which pages and lists of rights to keep, without a look at whether they
 * are valid. So if one of these differs, or if it is not known whether the times do, nearly all
 * end: not the number of links that is known, nor what FUSE decides itself.
 */
static u32 efuse_attrs_ended(struct inode *inode, const struct fuse_attr *attr, u32 mask)
{
	u32 deciding = STATX_SIZE | STATX_MTIME | STATX_CTIME | STATX_MODE | STATX_UID | STATX_GID;
	u32 same = efuse_attrs_same(inode, attr);
	u32 older = mask & STATX_BASIC_STATS & ~same;
	u32 times = STATX_MTIME | STATX_CTIME;

	if (!(older & deciding) && (!older || (mask & times) == times))
		return older;
	return STATX_BASIC_STATS & ~(fuse_get_cache_mask(inode) | (mask & same & STATX_NLINK));
}

/*
 * The caller of a request sees attributes, or those in @mask (STATX_*), which FUSE does not take.
 * What FUSE has, and what comes by requests that are in flight, may be older. So it is not shown
 * any more, unless it is the same. Under fuse_inode.lock.
 *
 * If no program set has ever been attached, all is as in plain FUSE.
 */
static void efuse_attrs_outdate(struct inode *inode, const struct fuse_attr *attr, u32 mask)
{
	struct fuse_conn *fc = get_fuse_conn(inode);
	u32 ended;

	if (!READ_ONCE(efuse_conn_get(fc)->learn_since))
		return;
	/* A list may have been cached since the request was issued, and be older than its reply. */
	efuse_acls_end(inode);
	ended = efuse_attrs_ended(inode, attr, mask);
	if (!ended)
		return;
	get_fuse_inode(inode)->efuse_shown = atomic64_inc_return(&fc->attr_version);
	fuse_invalidate_attr_mask(inode, ended);
}

/**
 * efuse_attrs_version - the number of FUSE's attributes after it takes some
 * @inode: the inode, which has not taken them yet
 * @attr: the attributes
 *
 * An answer of a map that equals what FUSE has is no change. The replies that it overtakes are
 * newer, and FUSE must not drop them.
 *
 * Context: under the lock of struct fuse_inode
 */
u64 efuse_attrs_version(struct inode *inode, const struct fuse_attr *attr)
{
	const struct fuse_inode *fi = get_fuse_inode(inode);

	if (attr->flags & EFUSE_ATTR_ANSWER && fi->attr_version &&
	    !(STATX_BASIC_STATS & ~efuse_attrs_same(inode, attr)))
		return fi->attr_version;
	return atomic64_inc_return(&get_fuse_conn(inode)->attr_version);
}

/**
 * efuse_attrs_partial - a STATX has only some of the attributes that FUSE needs
 * @req: the request
 * @nodeid: the inode
 * @attr: the attributes
 * @mask: which of them are there (STATX_*)
 */
void efuse_attrs_partial(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr,
			 u32 mask)
{
	struct inode *inode;

	rcu_read_lock();
	inode = efuse_inode_rcu(req->fm, nodeid);
	if (inode) {
		spin_lock(&get_fuse_inode(inode)->lock);
		efuse_attrs_outdate(inode, attr, mask);
		spin_unlock(&get_fuse_inode(inode)->lock);
	}
	rcu_read_unlock();
}

/**
 * efuse_attrs_dropped - FUSE drops attributes of the daemon, since it has changed its own meanwhile
 * @inode: the inode
 * @attr: the attributes; with write-back FUSE has replaced those that it decides itself
 *
 * Their caller sees them nevertheless. What FUSE has may be an answer of a map from before the
 * request.
 *
 * Context: under the lock of struct fuse_inode
 */
void efuse_attrs_dropped(struct inode *inode, const struct fuse_attr *attr)
{
	if (efuse_conn_get(get_fuse_conn(inode)))
		efuse_attrs_outdate(inode, attr, STATX_BASIC_STATS);
}

/**
 * efuse_attrs_old - may attributes that FUSE is about to take be older than those it has dropped?
 * @inode: the inode
 * @attr: the attributes; if so, the size in them is not the daemon's last one
 * @attr_version: number of FUSE's last change of attributes when their request was issued, or 0
 *
 * Context: under the lock of struct fuse_inode
 * Return: true: FUSE must not show them without asking again
 */
bool efuse_attrs_old(struct inode *inode, struct fuse_attr *attr, u64 attr_version)
{
	if (!attr_version || get_fuse_inode(inode)->efuse_shown <= attr_version)
		return false;
	attr->flags &= ~EFUSE_ATTR_MARKED;
	return true;
}
