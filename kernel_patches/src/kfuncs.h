/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kfuncs that handlers call. A kfunc is allowed only in the members whose description in
 * struct efuse_ops names it. The verifier refuses a program that calls it elsewhere.
 */
#ifndef _FS_FUSE_EFUSE_KFUNCS_H
#define _FS_FUSE_EFUSE_KFUNCS_H

#include <linux/types.h>

struct efuse_req;
struct efuse_notify;
struct efuse_exit_info;

/*
 * The request that a member was called for. All members that take a struct efuse_req may call
 * these.
 */
u32 efuse_req_opcode(struct efuse_req *req);	/* enum fuse_opcode */
u64 efuse_req_nodeid(struct efuse_req *req);
u32 efuse_req_uid(struct efuse_req *req);	/* fsuid in the daemon's user namespace */
u32 efuse_req_gid(struct efuse_req *req);	/* fsgid in the daemon's user namespace */
u32 efuse_req_pid(struct efuse_req *req);	/* of the thread, in the daemon's pid namespace */
u64 efuse_req_fh(struct efuse_req *req);	/* handle of the open file, or 0 */
u64 efuse_req_offset(struct efuse_req *req);	/* READ WRITE READDIR* FALLOCATE LSEEK, or 0 */
/*
 * READ WRITE READDIR* FALLOCATE COPY_FILE_RANGE: bytes; GETXATTR LISTXATTR: room for the value, 0
 * if only its size is asked for; SETXATTR: bytes of the value; else 0.
 */
u64 efuse_req_size(struct efuse_req *req);
/* Open flags; ACCESS: the mask; SETATTR: `valid`; RENAME2: its flags; else 0. */
u32 efuse_req_flags(struct efuse_req *req);
/* RENAME, RENAME2: nodeid of the target directory; LINK: of the inode to link; else 0. */
u64 efuse_req_newdir(struct efuse_req *req);
/*
 * Copy the request's name number @index (0 or 1), without its NUL, into @buf. Returns the length of
 * the name, -ENOENT if the request has no such name, or -ERANGE if @buf is too small; then @buf is
 * not written.
 */
int efuse_req_name(struct efuse_req *req, u32 index, void *buf, u32 buf__sz);
/*
 * The key of the request's answer in its map: struct efuse_entry_key for LOOKUP; u64 for GETATTR
 * and STATFS; struct efuse_blob_key for READLINK, GETXATTR and LISTXATTR; struct efuse_grant_key
 * for ACCESS, OPEN and OPENDIR. Returns NULL if the request has no key (another opcode, a name
 * that is too long), or if @rdwr_buf_size is not the size of the key.
 */
u8 *efuse_req_key(struct efuse_req *req, const u64 rdwr_buf_size);

/*
 * Offer a value as the answer; request members only. The kernel copies the value once and checks
 * its stamp, epochs, timeout, caller and inode. Returns EFUSE_REPLIED if the request is answered
 * with it, else 0; the reason is counted.
 */
int efuse_reply_entry(struct efuse_req *req, const void *entry, u32 entry__sz,
		      const void *attrs, u32 attrs__sz);
int efuse_reply_negative(struct efuse_req *req, const void *entry, u32 entry__sz);
int efuse_reply_attrs(struct efuse_req *req, const void *attrs, u32 attrs__sz);
int efuse_reply_blob(struct efuse_req *req, const void *blob, u32 blob__sz);
int efuse_reply_grant(struct efuse_req *req, const void *grant, u32 grant__sz);
int efuse_reply_volume(struct efuse_req *req, const void *volume, u32 volume__sz);
/* Answers a FLUSH. It needs no value: the kernel itself knows whether the daemon must see it. */
int efuse_reply_flush(struct efuse_req *req);

/*
 * The value that learn() was called for, and its key; learn() only. The pointers are NULL if
 * @rdwr_buf_size is not the size of the key or of the value, and if the value is a block.
 */
u32 efuse_learn_map(struct efuse_req *req);	/* enum efuse_map */
u8 *efuse_learn_key(struct efuse_req *req, const u64 rdwr_buf_size);
u8 *efuse_learn_value(struct efuse_req *req, const u64 rdwr_buf_size);

/* The notification that notify() was called for; notify() only. */
u32 efuse_notify_code(struct efuse_notify *n);		/* enum efuse_notify_code */
/* The inode, or the directory of the entry. */
u64 efuse_notify_nodeid(struct efuse_notify *n);
/*
 * Copy the name of the entry, without its NUL, into @buf. Returns the length of the name, -ENOENT
 * if the notification has no name, or -ERANGE if @buf is too small; then @buf is not written.
 */
int efuse_notify_name(struct efuse_notify *n, void *buf, u32 buf__sz);

/* Why the set was detached; exit() only. */
u32 efuse_exit_kind(struct efuse_exit_info *info);	/* enum efuse_exit_kind */
s64 efuse_exit_code(struct efuse_exit_info *info);

/* The number of the block that the member was called for, or 0; block() and learn() only. */
u64 efuse_req_block(struct efuse_req *req);
/*
 * Offer the slot that may hold the block, and the slot's tag; block() only. The kernel locks the
 * tag, checks it and copies the data. Returns EFUSE_REPLIED if the block was found, else 0.
 */
int efuse_reply_block(struct efuse_req *req, void *tag, u32 tag__sz, const void *data,
		      u32 data__sz);
/*
 * Store the block (EFUSE_MAP_BLOCKS) in a slot and describe it in the slot's tag; learn() only.
 * Returns 0, -EBUSY if the tag is locked, or -EINVAL.
 */
int efuse_learn_block(struct efuse_req *req, void *tag, u32 tag__sz, void *data, u32 data__sz);

/*
 * A struct efuse_path_info about the request; select_path() and path_done() only. Returns NULL if
 * @rdonly_buf_size is not the size of that structure.
 */
const u8 *efuse_path_info(struct efuse_req *req, const u64 rdonly_buf_size);
/*
 * Predict that the request will take @ns nanoseconds on the path that the member returns, 0 if that
 * is not known; select_path() only. path_done() finds @note in its struct efuse_path_info. Returns
 * 0.
 */
int efuse_path_predict(struct efuse_req *req, u64 ns, u32 note);

/*
 * The bytes of the block that are needed; block() only. With 0, the kernel only wants to know
 * whether the cache has the block.
 */
u32 efuse_req_wanted(struct efuse_req *req);

/*
 * Copy the old tag of the block that the last efuse_learn_block() evicted into @tag (struct
 * efuse_tag); learn() only. Returns 0, -ENOENT if no other block was evicted, or -EINVAL.
 */
int efuse_learn_evicted(struct efuse_req *req, void *tag, u32 tag__sz);
/*
 * The nodeid of the file whose data the request has changed, or 0, and the epoch of that change:
 * values of the file from earlier epochs are void. reply() and written() only.
 */
u64 efuse_req_ended(struct efuse_req *req);
u64 efuse_req_epoch(struct efuse_req *req);
/* The epoch of the notification: values from earlier epochs are void. notify() only. */
u64 efuse_notify_epoch(struct efuse_notify *n);

/*
 * efuse_placement_info() returns a struct efuse_placement_info about the request,
 * efuse_channel_load() a struct efuse_channel_load about the channel of @cpu; select_channel()
 * only. Both return NULL if @rdonly_buf_size is not the size of that structure;
 * efuse_channel_load() also returns NULL if @cpu has no channel. The next call of
 * efuse_channel_load() overwrites the result of the previous one.
 */
const u8 *efuse_placement_info(struct efuse_placement *placement, const u64 rdonly_buf_size);
const u8 *efuse_channel_load(struct efuse_placement *placement, u32 cpu,
			     const u64 rdonly_buf_size);

/*
 * How many 4 KiB blocks of a READ are in the page cache of the backing file; select_path() only.
 * Returns -EOPNOTSUPP if EFUSE_PATH_DEVICE cannot take the request.
 */
int efuse_path_resident(struct efuse_req *req);

#endif /* _FS_FUSE_EFUSE_KFUNCS_H */
