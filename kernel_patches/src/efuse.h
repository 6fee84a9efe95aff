/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The call-outs of fs/fuse into eFuse: all functions that the patch series calls. fuse_i.h includes
 * this header, so it declares nothing of eFuse's internals.
 */
#ifndef _FS_FUSE_EFUSE_H
#define _FS_FUSE_EFUSE_H

#include <linux/mm_types.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

struct dentry;
struct file;
struct folio;
struct fuse_args;
struct fuse_attr;
struct fuse_chan;
struct fuse_conn;
struct fuse_copy_state;
struct fuse_dev;
struct fuse_entry_out;
struct file_lock;
struct fuse_file;
struct fuse_forget_link;
struct fuse_inode;
struct fuse_init_in;
struct fuse_init_out;
struct fuse_iqueue;
struct fuse_mount;
struct fuse_out_header;
struct fuse_req;
struct inode;
struct iov_iter;
struct kiocb;
struct mnt_idmap;
struct page;
struct pipe_inode_info;
struct qstr;
struct super_block;
struct vm_area_struct;
struct writeback_control;

/**
 * struct efuse_args - eFuse's state of a request, embedded in its struct fuse_args
 * @epoch: the connection's epoch when the request was issued
 * @attr_version: number of FUSE's last change of attributes when the request was issued
 * @begun_ns: ktime when eFuse got the request, 0 if requests were not traced then
 * @start_ns: ktime when the request was issued, 0 if it is not timed
 * @path_start_ns: READ, WRITE: ktime when its path was selected, 0 if it is not timed
 * @predicted_ns: READ, WRITE: duration that select_path() predicted, 0 if it did not
 * @size_epoch: WRITE: epoch at which the size of the file was known, and still was when the WRITE
 *		was issued; 0: it was not known (see size.c)
 * @size: WRITE: that size in bytes
 * @note: READ, WRITE: number that select_path() passes on to path_done()
 * @serial: number of the daemon that the nodeids and handles were translated for, plus one; 0: they
 *	    were not
 * @fm: request in the background: its mount
 * @deferred: WRITE in the background that a worker carries out: its work item
 * @iter: READ, WRITE without pages: the caller's own buffer; else NULL
 * @handle: request in the background whose handle was translated: FUSE's own
 * @version: READ, GETXATTR, LISTXATTR, READLINK: version of the inode when the request is issued, 0
 *	     if it has none
 * @child: UNLINK, RMDIR, RENAME: nodeids of the inodes under the names, which the request
 *	   changes in addition to the directories; 0 if there is none
 * @local: RELEASE, RELEASEDIR: the kernel has opened the file itself
 * @written: FLUSH, RELEASE: the inode's data has changed since the file was opened
 * @locked: FLUSH: the inode has locks, or the daemon may keep locks of it itself
 * @revalidate: OPEN, OPENDIR: the request voids what is cached of the inode (mode cto)
 * @extends: WRITE: may make the file longer
 * @asked: READ, WRITE of read(2), write(2): the daemon was asked for the size before, which counts
 *	   without a timeout
 * @uncached: READ, WRITE: the daemon wants to see every request of this open file
 *	      (FOPEN_DIRECT_IO)
 * @settled: each change from now on has another version than @version, and so has what a READ's
 *	     handle shows otherwise
 * @fresh: the attributes that make @version are believed
 * @unkept: READ: the data that it brings must not be learned
 * @measured: READ, WRITE: path_done() is called with the duration
 * @raw: LOOKUP of eFuse's own: its answer has the daemon's nodeid
 * @early: a request of eFuse's own, which a successor gets before those that wait for it
 * @path: READ, WRITE: the selected path, enum efuse_path
 * @answered_by: what has answered the request: enum efuse_path or enum efuse_answered_by
 * @reason: why the request went to the daemon: enum efuse_counter, 0 if it did not
 */
struct efuse_args {
	u64 epoch;
	u64 attr_version;
	u64 begun_ns;
	u64 start_ns;
	u64 path_start_ns;
	u64 predicted_ns;
	u64 size_epoch;
	u64 size;
	u64 handle;
	u64 version;
	u32 note;
	u32 serial;
	struct fuse_mount *fm;
	struct work_struct deferred;
	struct iov_iter *iter;
	u64 child[2];
	bool local:1;
	bool written:1;
	bool locked:1;
	bool revalidate:1;
	bool extends:1;
	bool asked:1;
	bool uncached:1;
	bool settled:1;
	bool fresh:1;
	bool unkept:1;
	bool measured:1;
	bool raw:1;
	bool early:1;
	u8 path;
	u8 answered_by;
	u8 reason;
};

/**
 * struct efuse_range - the bytes of a WRITE, for as long as it is carried out
 * @pos: position in the file of the first byte
 * @end: position after the last byte, 0 while there is no such WRITE
 *
 * Both are set under the inode's lock, and read under a page's.
 */
struct efuse_range {
	loff_t pos;
	loff_t end;
};

/**
 * struct efuse_pages - what is known of an inode's pages in FUSE's page cache
 * @past: a WRITE to a backing file, which goes past the pages: they must not be stored to
 * @through: a WRITE that takes its bytes from the pages, until the daemon has answered it: they are
 *	     not dropped, and must not be stored to
 * @refused: whether the pages of @through are dropped when the WRITE ends: one of them was to be
 *	     dropped meanwhile, or was the file's last page when the file became longer
 * @grown: 0, or the lowest index of a page that was the file's last page when the daemon made the
 *	   file longer, plus one. A page of @through with this index or a higher one may have zeros
 *	   where the file has bytes
 * @dropped: for each index where a void page was dropped before a store: the epoch since which the
 *	     next page there is true (see page_stores.c). An entry is read and set under the lock of
 *	     the page. It is removed when the page is written back, when all pages of the file are
 *	     true, or with the inode. It stays right when the page is dropped once more
 */
struct efuse_pages {
	struct efuse_range past;
	struct efuse_range through;
	bool refused;
	pgoff_t grown;
	struct xarray dropped;
};

/**
 * struct efuse_size - the size that a file has for the daemon (see size.c)
 * @epoch: an epoch at which @size was true, 0 if none is known
 * @size: in bytes
 * @asker: the task that asks for the size under the inode's lock; NULL if there is none
 * @reply_epoch: epoch at which its last question was issued, 0 if that has no reply
 * @reply_size: the size in the reply, in bytes; other changes may have crossed the reply
 * @taker: the task that has brought @size in a reply
 * @replaced: the size in attributes that are being taken, in bytes, if FUSE has put its own there
 *
 * All change under fuse_inode.lock, except two: @asker and its clearing of @reply_epoch, since the
 * asker has the inode's lock; and the clearing of @taker by the task that is to be the next one.
 */
struct efuse_size {
	u64 epoch;
	loff_t size;
	struct task_struct *asker;
	u64 reply_epoch;
	loff_t reply_size;
	struct task_struct *taker;
	u64 replaced;
};

/**
 * struct efuse_version - the version of an inode (see version.c, revalidate.c)
 * @number: hash of the times and the size that the daemon reported last, 0 if there is none
 * @since_ns: CLOCK_MONOTONIC time at which it was seen first
 * @newest: the newest of its times, in seconds since 1970
 * @filled: file: the page cache may have pages
 * @pages: the version that all pages are at least as new as; 0: not known
 *
 * All change under fuse_inode.lock.
 */
struct efuse_version {
	u64 number;
	u64 since_ns;
	s64 newest;
	bool filled;
	u64 pages;
};

/* What a FORGET is about. */
enum efuse_forget_kind {
	EFUSE_FORGET_ONE,	/* a lookup whose answer has no use */
	EFUSE_FORGET_ALL,	/* all lookups of an inode that is evicted */
	EFUSE_FORGET_RAW,	/* a lookup; the nodeid is the daemon's */
};

/* How many names does a file have, as far as replies have told? See names.c. */
enum efuse_names {
	EFUSE_NAMES_NEW,	/* no reply has told yet */
	EFUSE_NAMES_ONE,
	EFUSE_NAMES_SEVERAL,	/* or possibly so */
};

/*
 * The default stacking depth (s_stack_depth) of a mount. It is set before anything can be stacked
 * on the mount. Backing files must be on a file system of a lower depth. With this depth, one more
 * file system can be stacked on the mount.
 */
#define EFUSE_STACK_DEPTH	1

/* Module and connection: see main.c and core/conn.c. */
int efuse_init(void);
void efuse_exit(void);
int efuse_stack_depth(unsigned int *depth, unsigned int wanted);
void efuse_stack_on(struct super_block *sb, unsigned int depth);
void efuse_file_inode_init(struct inode *inode);
int efuse_conn_add(struct fuse_conn *fc);
void efuse_conn_remove(struct fuse_conn *fc);
void efuse_conn_settle(struct fuse_conn *fc);
void efuse_conn_free(struct fuse_conn *fc);
void efuse_conn_limits(struct fuse_conn *fc, const struct fuse_init_in *in,
		       const struct fuse_init_out *out);
u32 efuse_daemon_max_write(const struct fuse_conn *fc);
u32 efuse_read_size(const struct fuse_conn *fc);
bool efuse_dev_refused(const struct fuse_dev *fud);
bool efuse_notify_refused(const struct fuse_dev *fud);

/* Requests: see dispatch.c and background.c. */
ssize_t efuse_simple_request(struct mnt_idmap *idmap, struct fuse_mount *fm,
			     struct fuse_args *args);
void efuse_background_end(struct fuse_req *req, int error);

/* open(2): see file_open.c; read(2) and write(2): see file_io.c. */
int efuse_file_open(struct fuse_mount *fm, struct inode *inode, struct file *file);
ssize_t efuse_file_read(struct kiocb *iocb, struct iov_iter *to,
			ssize_t (*ordinary)(struct kiocb *iocb, struct iov_iter *to));
ssize_t efuse_write_checks(struct kiocb *iocb, struct iov_iter *from);
int efuse_write_checks_again(struct kiocb *iocb, struct iov_iter *from);
ssize_t efuse_file_write(struct kiocb *iocb, struct iov_iter *from,
			 ssize_t (*ordinary)(struct kiocb *iocb, struct iov_iter *from));
unsigned int efuse_write_flags(const struct kiocb *iocb, unsigned int flags);

/* Buffers for READDIR and READDIRPLUS: see readdir.c. */
struct folio *efuse_readdir_folio(struct fuse_conn *fc, unsigned int *length);
size_t efuse_readdir_size(const struct fuse_conn *fc, size_t plain);
unsigned int efuse_readdir_pages(struct page **pages, unsigned int nr);

/* /dev/efuse: see ioctl.c, channel.c, polling.c and migrate.c. */
long efuse_dev_ioctl(struct file *file, unsigned int cmd, void __user *argp);
int efuse_dev_mmap(struct file *file, struct vm_area_struct *vma);
void efuse_channel_close(struct fuse_dev *fud);
void efuse_request_spin(struct fuse_req *req);
bool efuse_reply_refused(const struct fuse_conn *fc, struct fuse_out_header *oh, size_t *nbytes);
bool efuse_request_migrate(struct fuse_dev *fud, u64 unique, u32 hash);

/* A daemon that has died, and its successor: see recovery.c. */
bool efuse_background_held(const struct fuse_conn *fc);
bool efuse_request_kept(struct fuse_req *req);
int efuse_copy_error(const struct fuse_req *req, bool replied);
void efuse_dev_lost(struct fuse_conn *fc, struct fuse_dev *fud, struct list_head *requests);
bool efuse_dev_leave(struct fuse_conn *fc, struct fuse_dev *fud);
void efuse_dev_cloned(struct fuse_conn *fc, const struct fuse_dev *from, struct fuse_dev *to);
bool efuse_daemon_died(struct fuse_conn *fc);

/* Its nodeids, requests that need them, names that move: nodeids.c, unresolved.c, moves.c. */
bool efuse_background_unready(struct fuse_req *req);
u64 efuse_nodeid_kernel(const struct fuse_conn *fc, u64 daemon);
int efuse_rename(struct mnt_idmap *idmap, struct inode *olddir, struct dentry *oldent,
		 struct inode *newdir, struct dentry *newent, unsigned int flags);

/*
 * Details that a request's arguments do not contain: see changes.c and revalidate.c. Writes without
 * a request: see changes.c.
 */
void efuse_file_init(struct fuse_mount *fm, struct fuse_file *ff);
void efuse_flush_args(struct file *file, struct fuse_args *args);
void efuse_release_args(struct fuse_file *ff, struct fuse_args *args);
void efuse_file_locks(struct file *file, const struct file_lock *fl);
void efuse_io_args(struct fuse_file *ff, struct fuse_args *args);
void efuse_read_args(struct file *file, struct fuse_args *args);
void efuse_child_args(struct fuse_args *args, struct dentry *first,
		      struct dentry *second);
void efuse_inode_written(struct inode *inode);
void efuse_passthrough_mapped(struct inode *inode, const struct vm_area_struct *vma);
bool efuse_force_sync(struct inode *inode);

/* Queues of requests: see queues.c and balance.c. */
u64 efuse_unique_step(void);
struct fuse_iqueue *efuse_queue_choose(struct fuse_conn *fc, const struct fuse_req *req);
void efuse_queue_taken(struct fuse_dev *fud, struct fuse_iqueue *fiq);
bool efuse_queues_filled(struct fuse_dev *fud);
int efuse_queue_wait(struct fuse_dev *fud, const struct file *file, struct fuse_iqueue **found);
void efuse_queue_withdrawn(struct fuse_iqueue *fiq);
void efuse_queues_resend(struct list_head *requests);
bool efuse_queues_expired(struct fuse_chan *fch);
void efuse_queues_abort(struct fuse_conn *fc, struct list_head *to_end);

/* Lookup counts: see lookup.c; FORGETs: see forget.c. */
bool efuse_lookup_counts(const struct fuse_attr *attr);
void efuse_return_lookup(struct fuse_mount *fm, struct fuse_forget_link *forget,
			 struct fuse_entry_out *outarg);
bool efuse_forgotten(struct fuse_conn *fc, struct fuse_forget_link *forget, u64 *nodeid,
		     u64 *nlookup);
void efuse_forget_read(struct fuse_iqueue *fiq, const struct fuse_forget_link *forget);

/* Access control lists: see acl.c. */
void efuse_permission(struct mnt_idmap *idmap, struct inode *inode);
void efuse_acl_asked(struct inode *inode, int type);

/* Replies with attributes: see timeouts.c, size.c and order.c. */
void efuse_entry_listed(struct fuse_entry_out *entry);
void efuse_size_came(struct inode *inode, struct fuse_attr *attr);
void efuse_attrs_came(struct inode *inode, const struct fuse_attr *attr);
u64 efuse_attrs_version(struct inode *inode, const struct fuse_attr *attr);
bool efuse_attrs_old(struct inode *inode, struct fuse_attr *attr, u64 attr_version);
void efuse_attrs_dropped(struct inode *inode, const struct fuse_attr *attr);

/* Checks of FUSE's own caches when they are used: see kept.c, size.c and changes.c. */
u64 efuse_time(u64 secs, u32 nsecs, u64 plain);
bool efuse_dentry_ended(const struct dentry *entry, u64 time);
bool efuse_attr_ended(struct inode *inode);
void efuse_size_cut(struct inode *inode);
bool efuse_end_stays(struct inode *inode);
void efuse_inode_init(struct super_block *sb, struct fuse_inode *fi);
void efuse_listing(struct inode *inode, loff_t pos);
void efuse_inode_evicted(struct inode *inode);

/* FUSE's page cache of a file: see pages.c and page_stores.c. */
ssize_t efuse_cache_read(struct kiocb *iocb, struct iov_iter *to);
size_t efuse_read_length(struct inode *inode, loff_t pos, size_t len);
void efuse_pages_grow(struct inode *inode, loff_t old);
void efuse_pages_cut(struct inode *inode, loff_t old, loff_t size);
void efuse_refresh_mapped(struct inode *inode);
vm_fault_t efuse_page_mkwrite(struct vm_fault *vmf);
int efuse_pages_behind(struct file *file, loff_t pos);
size_t efuse_fault_in(unsigned int filled, const struct iov_iter *iter, size_t bytes, size_t most);
void efuse_through_begin(struct folio *folio, loff_t pos, size_t len);
void efuse_through_end(struct inode *inode, int err);
#ifdef EFUSE_HAS_FOLIOS
#define efuse_notify_target folio /* what a notification stores to */
struct folio *efuse_fresh_folio(struct address_space *mapping, pgoff_t index);
#else
#define efuse_notify_target page
int fuse_copy_page(struct fuse_copy_state *cs, struct page **pagep, unsigned int offset,
		   unsigned int count, int zeroing);
struct page *efuse_fresh_page(struct address_space *mapping, pgoff_t index);
#endif
int efuse_notify_copy(struct fuse_copy_state *cs, struct efuse_notify_target **page,
		      unsigned int offset, unsigned int len);
void efuse_folio_cleaned(struct folio *folio);
void efuse_folio_unwritten(struct folio *folio, struct writeback_control *wbc, int err);
bool efuse_release_folio(struct folio *folio, gfp_t gfp);
void efuse_invalidate_folio(struct folio *folio, size_t offset, size_t len);
void efuse_free_folio(struct folio *folio);
#ifdef EFUSE_HAS_WRITEPAGES
bool fuse_range_is_writeback(struct inode *inode, pgoff_t idx_from, pgoff_t idx_to);
#endif
#ifdef EFUSE_HAS_IOMAP_WRITE_OPS
struct iomap_iter;
struct folio *efuse_write_folio(struct iomap_iter *iter, loff_t pos, unsigned int len);
int efuse_fill_folio(struct file *file, struct folio *folio, size_t off, size_t len,
		     int (*fill)(struct file *file, struct folio *folio, size_t off, size_t len));
#else
struct folio *efuse_write_folio(struct address_space *mapping, loff_t pos);
int efuse_fill_page(struct file *file, struct page *page,
		    int (*fill)(struct file *file, struct page *page));
#endif

/* Notifications of the daemon: see notify.c. */
void efuse_notify_inode(struct fuse_conn *fc, u64 nodeid);
u64 efuse_notify_entry(struct fuse_conn *fc, u64 parent, u64 child,
		       const struct qstr *name);
void efuse_links_dropped(struct inode *inode);
void efuse_notify_store(struct fuse_conn *fc, u64 nodeid);
void efuse_notify_all(struct fuse_conn *fc);

#endif /* _FS_FUSE_EFUSE_H */
