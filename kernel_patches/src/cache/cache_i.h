/* SPDX-License-Identifier: GPL-2.0 */
/* Answers from the kernel, and what makes them void. */
#ifndef _FS_FUSE_EFUSE_CACHE_I_H
#define _FS_FUSE_EFUSE_CACHE_I_H

#include <linux/crc32.h>
#include <linux/sizes.h>

#include "../core/core_i.h"

#define EFUSE_EPOCH_BITS	46	/* bits of an epoch that shares a word */
#define EFUSE_VOLUME_NS		(10ULL * NSEC_PER_SEC)	/* a daemon may free space at any time */

/* A value from a reply, with its key, for the member learn(); built by learn.c. */
struct efuse_learn_item {
	u32 map;
	union {
		u64 nodeid;
		struct efuse_entry_key entry;
		struct efuse_blob_key blob;
		struct efuse_grant_key grant;
	} key;
	union {
		struct efuse_stamp stamp;
		struct efuse_entry entry;
		struct efuse_attrs attrs;
		struct efuse_blob blob;
		struct efuse_grant grant;
		struct efuse_volume volume;
	} value;
};

#define EFUSE_MAX_CHANGES	12
#define EFUSE_MAX_PAGES		2048	/* of one READ or WRITE: 8 MiB */
#define EFUSE_MAX_BLOCKS	(EFUSE_MAX_PAGES + 1)

/**
 * struct efuse_changes - the buckets that a request changes
 * @nr: number of buckets of inodes and names
 * @nr_blocks: number of blocks of a file that are changed
 * @bucket: the buckets of inodes and names, without duplicates
 * @own: for each of @bucket: no other change has touched it since the request was issued; set by
 *	 efuse_epoch_end()
 * @own_blocks: for each of the blocks: no other change has touched its bucket since the request was
 *		issued; set by efuse_epoch_end()
 * @nodeid: nodeid of the file whose blocks are changed
 * @block: number of the first changed block
 * @epoch: the epoch of this change; set by efuse_epoch_end()
 * @content: nodeid of the file whose content is changed, 0: none
 */
struct efuse_changes {
	u16 nr;
	u16 nr_blocks;
	u16 bucket[EFUSE_MAX_CHANGES];
	bool own[EFUSE_MAX_CHANGES];
	DECLARE_BITMAP(own_blocks, EFUSE_MAX_BLOCKS);
	u64 nodeid;
	u64 block;
	u64 epoch;
	u64 content;
};

/* A notification of the daemon, for the member notify(); @name is NULL if it has none. */
struct efuse_notify {
	u32 code;
	u64 nodeid;
	const char *name;
	u32 len;
	u64 epoch;
};

/* acl.c: access control lists */
void efuse_acls_end(struct inode *inode);
void efuse_acls_outdated(struct inode *inode);
bool efuse_acl_is_the_vfs(const struct efuse_req *req);

/* stamp.c: keys of values and the checks in their stamps */
void efuse_entry_key(struct efuse_entry_key *key, u64 parent, const char *name, u32 len);
void efuse_blob_key(struct efuse_blob_key *key, u64 nodeid, u32 opcode,
		    const char *name, u32 len);
void efuse_grant_key(struct efuse_grant_key *key, struct efuse_req *req);
u32 efuse_seed_entry(u64 parent, const char *name, u32 len);
u32 efuse_seed_nodeid(u64 nodeid);
u32 efuse_seed_blob(u64 nodeid, u32 opcode, const char *name, u32 len);
u32 efuse_seed_grant(const struct efuse_grant_key *key);
u32 efuse_check(u32 seed, const void *value, size_t size);

/* epochs.c */

/* The kinds of changes of an inode. Each (nodeid, kind) has a bucket. */
enum efuse_kind {
	EFUSE_KIND_ATTR,	/* attributes except the atime */
	EFUSE_KIND_ATIME,
	EFUSE_KIND_XATTR,
	EFUSE_KIND_DATA,	/* content: any change of it */
	EFUSE_KIND_CONTENT,	/* content: other changes than WRITEs, which change blocks */
	EFUSE_KIND_EOF,		/* content: its end, where it has grown */
	EFUSE_KIND_IDENTITY,	/* the inode that the nodeid stands for */
	EFUSE_KIND_VOLUME,	/* free space of the file system, with nodeid 0 */
	EFUSE_KIND_RIGHTS,	/* permissions: who may open the file or search the directory */
	EFUSE_KIND_PAGES,	/* content: changes that bypass FUSE's page cache */
};

u16 efuse_bucket_inode(u64 nodeid, enum efuse_kind kind);
u16 efuse_bucket_entry(u64 parent, const char *name, u32 len);
bool efuse_epoch_quiet(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_alone(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_single(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_valid(const struct efuse_conn *ec, u16 bucket, u64 epoch);
bool efuse_epoch_block_valid(const struct efuse_conn *ec, u64 nodeid, u64 block, bool last,
			     u64 epoch);
atomic64_t *efuse_chunk_make(atomic64_t **at, gfp_t gfp_flags);
void efuse_buckets_free(struct efuse_buckets *buckets);
void efuse_epochs_free(struct efuse_conn *ec);
u64 efuse_epoch_now(const struct efuse_conn *ec);
void efuse_epoch_begin(struct efuse_conn *ec, const struct efuse_changes *ch);
void efuse_epoch_end(struct efuse_conn *ec, struct efuse_changes *ch, u64 issued);
void efuse_epoch_cancel(struct efuse_conn *ec, const struct efuse_changes *ch);
bool efuse_epoch_holds(const struct efuse_conn *ec, const struct efuse_changes *ch, u16 bucket,
		       u64 issued, bool *own);
void efuse_epoch_enter(struct efuse_conn *ec, u16 bucket);
void efuse_epoch_leave(struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_word(const struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_last(const struct efuse_conn *ec, u16 bucket);
bool efuse_epoch_closed(const struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_in_flight(const struct efuse_conn *ec, u16 bucket);
void efuse_epoch_bump(struct efuse_conn *ec, u16 bucket);
u64 efuse_epoch_bump_since(struct efuse_conn *ec, u16 bucket, u64 issued);
void efuse_epoch_void(struct efuse_conn *ec);

/* changes.c */
void efuse_changes_add(struct efuse_changes *ch, u16 bucket);
void efuse_changes_begin(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
			 struct fuse_args *args);
void efuse_changes_end(struct efuse_changes *ch, struct efuse_conn *ec, struct fuse_mount *fm,
		       const struct fuse_args *args, bool succeeded);
void efuse_changes_of(struct efuse_changes *ch, const struct fuse_args *args);
bool efuse_changes_cancelled(const struct fuse_args *args, int error);

/* nodeids.c */

/* Is st_ino something else than the nodeid? Also if not, both may be the same by accident. */
static inline bool efuse_ino_real(const struct inode *inode)
{
	const struct fuse_inode *fi = get_fuse_inode((struct inode *)inode);

	return fi->orig_ino != fi->nodeid;
}

u64 efuse_nodeid_daemon(struct efuse_conn *ec, u64 kernel, u32 incarnation);
bool efuse_nodeid_replied(struct fuse_mount *fm, struct efuse_conn *ec,
			  struct fuse_entry_out *entry, u64 known, u32 incarnation);
u64 efuse_nodeid_ino(struct efuse_conn *ec, u64 kernel, u64 ino, u32 incarnation);
u32 efuse_nodeid_forgotten(struct efuse_conn *ec, u64 *nodeid, u64 *nlookup, bool evicted);
void efuse_entry_return(struct efuse_conn *ec, u64 nodeid, u32 incarnation);
void efuse_nodeids_add(struct efuse_conn *ec);
void efuse_nodeids_free(struct efuse_conn *ec);

/* lookup.c */
struct inode *efuse_inode_rcu(struct fuse_mount *fm, u64 nodeid);
struct inode *efuse_inode_grab(struct fuse_mount *fm, u64 nodeid);
enum efuse_taken {
	EFUSE_TAKEN,		/* the caller has got a lookup count */
	EFUSE_TAKEN_NONE,	/* the inode matches, but has no count to give */
	EFUSE_TAKEN_ABSENT,	/* no inode of this nodeid is in memory */
	EFUSE_TAKEN_UNFIT,	/* the inode is being evicted, or does not match the answer */
};

enum efuse_taken efuse_take_lookup(struct fuse_mount *fm, u64 nodeid, u64 generation, u32 mode,
				   u64 epoch);
bool efuse_inode_alive(struct efuse_conn *ec, u64 nodeid);

bool efuse_inode_present(struct fuse_mount *fm, u64 nodeid);
static inline u16 efuse_bucket_identity(u64 nodeid)
{
	return efuse_bucket_inode(nodeid, EFUSE_KIND_IDENTITY);
}

u64 efuse_identity_mark(const struct efuse_conn *ec, u64 nodeid);

/* answer.c */
int efuse_answer_entry(struct efuse_req *req, const void *entry, u32 entry_size,
		       const void *attrs, u32 attrs_size);
int efuse_answer_negative(struct efuse_req *req, const void *entry, u32 size);
int efuse_answer_attrs(struct efuse_req *req, const void *attrs, u32 size);
int efuse_answer_blob(struct efuse_req *req, const void *blob, u32 size);
int efuse_answer_grant(struct efuse_req *req, const void *grant, u32 size);
int efuse_answer_volume(struct efuse_req *req, const void *volume, u32 size);
int efuse_answer_flush(struct efuse_req *req);

/* data.c */
#define EFUSE_DATA_PAGES	64	/* of a struct efuse_span, which is on the stack */

/**
 * struct efuse_data - a position in the data of a READ or WRITE
 * @args: arguments of the request
 * @direction: ITER_DEST or ITER_SOURCE
 * @left: bytes from the position to the end of the data
 * @index: data in pages: index of the page of the position
 * @skip: data in pages: bytes of that page before the position; data in a kernel buffer: bytes of
 *	  the buffer before the position
 * @iter: data in the caller's own buffer: the rest of it
 */
struct efuse_data {
	struct fuse_args *args;
	unsigned int direction;
	size_t left;
	unsigned int index;
	size_t skip;
	struct iov_iter iter;
};

/* The segments of an iterator over a part of the data. Large: not to be zeroed on the stack. */
struct efuse_span {
	struct kvec kvec;
	struct bio_vec bvec[EFUSE_DATA_PAGES];
};

void efuse_data_start(struct efuse_data *data, struct fuse_args *args, unsigned int direction);
size_t efuse_data_next(struct efuse_data *data, struct efuse_span *span, struct iov_iter *iter,
		       size_t len);
void efuse_data_skip(struct efuse_data *data, size_t len);
void efuse_data_end(struct fuse_args *args, size_t done);

/* blocks.c */

/* Larger WRITEs are not put into the data cache: the copy would cost more than it gains. */
#define EFUSE_KEPT_WRITE	(4 * PAGE_SIZE)

/**
 * struct efuse_block - a block of a file, for block() and learn()
 * @number: number of the block: offset in the file / EFUSE_BLOCK_SIZE
 * @skip: block(): bytes at the start of the block that are not wanted
 * @want: block(): bytes wanted after @skip; 0: only whether the block is there
 * @len: block(): bytes found; learn(): bytes to store
 * @found: block(): the block was found
 * @last: block(): the file ends in the block
 * @iter: block(): destination of the bytes; learn(): source of the bytes
 * @now: block(): ktime of the request
 * @epoch: learn(): epoch for the block's tag
 * @expires_ns: learn(): CLOCK_MONOTONIC time for the block's tag at which the timeout ends
 * @version: learn(): version for the block's tag
 * @unlike: block(): a block was found that does not have the READ's version
 * @evicted: learn(): former tag of the slot, if another block was evicted; else its nodeid is 0
 */
struct efuse_block {
	u64 number;
	u32 skip;
	u32 want;
	u32 len;
	bool found;
	bool last;
	struct iov_iter *iter;
	u64 now;
	u64 epoch;
	u64 expires_ns;
	u64 version;
	bool unlike;
	struct efuse_tag evicted;
};

int efuse_answer_block(struct efuse_req *req, void *tag, u32 tag_size, const void *data,
		       u32 data_size);
int efuse_keep_block(struct efuse_req *req, void *tag, u32 tag_size, void *data, u32 data_size);
int efuse_evicted_block(const struct efuse_req *req, void *tag, u32 size);
bool efuse_blocks_allowed(const struct efuse_req *req);
size_t efuse_blocks_read(struct efuse_req *req, struct efuse_data *data, u64 pos, bool *eof);
size_t efuse_blocks_missing(struct efuse_req *req, u64 pos, size_t len);
void efuse_blocks_learn(struct efuse_req *req, const struct efuse_changes *ch);

/* readdir.c */
#define EFUSE_READDIR		SZ_32K	/* initial value of efuse_conn.max_readdir */
#define EFUSE_MAX_READDIR	SZ_128K	/* the largest that sysfs accepts */

/* learn.c */
void efuse_learn_stop(struct efuse_conn *ec);
void efuse_learn_start(struct efuse_conn *ec);
bool efuse_learn_early(const struct efuse_req *req);
void efuse_learn(struct efuse_req *req, struct efuse_ops *ops,
		 const struct efuse_changes *ch);

/* order.c */
u64 efuse_order_take(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr);
bool efuse_order_kept(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr,
		      u64 number);
void efuse_order_pass(const struct efuse_req *req, u64 nodeid);
bool efuse_order_same(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr);
bool efuse_order_others(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr);
void efuse_attrs_partial(const struct efuse_req *req, u64 nodeid, const struct fuse_attr *attr,
			 u32 mask);
void efuse_order_free(struct efuse_conn *ec);

/* timeouts.c */
#define EFUSE_EXTENDED_SECS	(10ULL * 365 * 24 * 3600)

void efuse_timeouts_extend(struct efuse_req *req, const struct efuse_changes *ch);
void efuse_strip(struct fuse_args *args);

/* size.c */

/*
 * Does the daemon tell of each change of a size that does not come by this mount? With write-back
 * FUSE decides the size.
 */
static inline bool efuse_size_exclusive(const struct efuse_conn *ec)
{
	return ec && READ_ONCE(ec->consistency) == EFUSE_EXCLUSIVE && !ec->fc->writeback_cache;
}

/* The bucket whose changes end a size. */
static inline u16 efuse_size_bucket(u64 nodeid)
{
	return efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR);
}

void efuse_size_issue(const struct efuse_conn *ec, struct fuse_mount *fm, struct fuse_args *args);
void efuse_size_begun(const struct efuse_conn *ec, struct fuse_args *args);
void efuse_size_written(const struct efuse_conn *ec, struct fuse_mount *fm,
			const struct fuse_args *args, const struct efuse_changes *ch);
void efuse_size_crossed(struct efuse_conn *ec, const struct fuse_args *args);
u64 efuse_size_known(const struct efuse_conn *ec, struct fuse_mount *fm, u64 nodeid, u64 *size);
u64 efuse_size_true(const struct efuse_conn *ec, struct inode *inode, u64 *size);
bool efuse_size_agrees(struct fuse_mount *fm, u64 nodeid, u64 size);
bool efuse_size_settled(const struct efuse_conn *ec, u64 nodeid);
bool efuse_size_reached(const struct efuse_conn *ec, u64 nodeid, u64 epoch);
void efuse_size_mark(struct fuse_attr *attr, u64 epoch);
void efuse_size_taken(struct inode *inode, const struct fuse_attr *attr);
int efuse_size_ask(struct file *file, bool *taken);
void efuse_size_learn(struct fuse_inode *fi, u64 epoch, u64 size);
bool efuse_size_told(const struct efuse_conn *ec, struct fuse_mount *fm,
		     const struct fuse_args *args, u64 nodeid, u64 *size);

/* terminal.c */
bool efuse_terminal_asked(const struct fuse_args *args);
int efuse_ioctl_error(const struct fuse_args *args, int error);
bool efuse_terminal_unknown(const struct efuse_req *req);
void efuse_terminal_replied(const struct efuse_req *req);

/* version.c */
u64 efuse_version_hash(const struct efuse_conn *ec, u64 ino, u64 size, struct timespec64 mtime,
		       struct timespec64 ctime);
u64 efuse_version_stepped(struct efuse_conn *ec, u64 number);
u64 efuse_version_now(struct efuse_conn *ec, const struct fuse_inode *fi);
bool efuse_version_settled(const struct efuse_version *version);
void efuse_version_came(struct inode *inode, const struct fuse_attr *attr);
void efuse_version_mixed(struct inode *inode);

/* revalidate.c */
void efuse_version_issue(const struct efuse_req *req);
void efuse_version_unlike(const struct efuse_req *req);
u64 efuse_version_opening(struct inode *inode);
void efuse_version_open(struct file *file, u64 version);

/* Is what was read of a version still what the file has, whatever its timeout? */
static inline bool efuse_version_proves(const struct fuse_args *args, u64 version)
{
	return version && version == args->efuse.version && args->efuse.fresh;
}

/* append.c */
void efuse_append_replied(struct fuse_inode *fi, u64 issued, u64 size);
bool efuse_append_stays(struct inode *inode, loff_t pos);
int efuse_append_update(struct file *file);

/* names.c */
void efuse_names_told(struct inode *inode, const struct fuse_attr *attr);
void efuse_names_evicted(struct inode *inode);
void efuse_linked(struct fuse_mount *fm, u64 nodeid);
bool efuse_shared(const struct efuse_conn *ec, const struct fuse_attr *attr);
bool efuse_changes_known(const struct efuse_conn *ec, const struct fuse_attr *attr);
bool efuse_shared_inode(const struct efuse_conn *ec, const struct inode *inode);
bool efuse_changes_known_inode(const struct efuse_conn *ec, const struct inode *inode);
bool efuse_changes_known_nodeid(const struct efuse_req *req, u64 nodeid);

/* kept.c */
/* Flag of an extended timeout: the word is not a time, but a bucket and an epoch. See kept.c. */
#define EFUSE_TIME_EXTENDED	BIT_ULL(62)
#define EFUSE_TIME_EPOCH	(BIT_ULL(EFUSE_EPOCH_BITS) - 1)

/*
 * The nanoseconds of an extended timeout in a reply. A daemon gains nothing by sending them: it
 * could send a long timeout as well.
 */
#define EFUSE_NSEC_EXTENDED	U32_MAX

static inline bool efuse_time_extended(u64 time)
{
	return time & EFUSE_TIME_EXTENDED;
}

/* Is the timeout in a reply extended? */
static inline bool efuse_reply_extended(u64 secs, u32 nsecs)
{
	return nsecs == EFUSE_NSEC_EXTENDED && efuse_time_extended(secs);
}

void efuse_time_extend(u16 bucket, u64 epoch, u64 *secs, u32 *nsecs);
bool efuse_kept(const struct efuse_conn *ec, struct fuse_mount *fm, u64 nodeid);
bool efuse_refresh_nodeid(struct fuse_mount *fm, u64 nodeid);
u64 efuse_inode_valid_ns(struct fuse_mount *fm, u64 nodeid);

void efuse_timeouts_expire_attrs(struct fuse_mount *fm, u64 nodeid);
void efuse_timeouts_expire(struct fuse_conn *fc);

/* pages.c */
void efuse_refresh_pages(struct inode *inode);
void efuse_past_begin(struct inode *inode, loff_t pos, size_t len);
void efuse_past_end(struct inode *inode);
u16 efuse_pages_bucket(struct inode *inode);
size_t efuse_folio_kept(struct inode *inode, struct folio *folio, size_t from, size_t to,
			size_t *end);
bool efuse_folio_in(const struct efuse_range *range, struct folio *folio);
bool efuse_pages_drop(struct inode *inode, loff_t pos, size_t len);
void efuse_pages_void(struct efuse_conn *ec, struct inode *inode, loff_t pos, size_t len);
bool efuse_pages_true(const struct efuse_conn *ec, struct inode *inode);
bool efuse_folio_writes(struct inode *inode, struct folio *folio);
bool efuse_folio_stored(struct folio *folio);
void efuse_folio_remove(struct address_space *mapping, struct folio *folio);
void efuse_pages_evicted(struct inode *inode);
bool efuse_file_clean(struct inode *inode);

#endif /* _FS_FUSE_EFUSE_CACHE_I_H */
