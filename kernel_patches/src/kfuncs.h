/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kfuncs that handlers call. Each is allowed only in the members that
 * struct efuse_ops names for it; elsewhere the verifier refuses the program.
 */
#ifndef _FS_FUSE_EFUSE_KFUNCS_H
#define _FS_FUSE_EFUSE_KFUNCS_H

#include <linux/types.h>

struct efuse_req;
struct efuse_notify;
struct efuse_exit_info;

/* Of a request: request members, reply(), learn(). */
u32 efuse_req_opcode(struct efuse_req *req);	/* enum fuse_opcode */
u64 efuse_req_nodeid(struct efuse_req *req);
u32 efuse_req_uid(struct efuse_req *req);	/* fsuid in the daemon's namespace */
u32 efuse_req_gid(struct efuse_req *req);
u32 efuse_req_pid(struct efuse_req *req);	/* the task's, in the daemon's namespace */
u64 efuse_req_fh(struct efuse_req *req);	/* of requests on an open file, or 0 */
u64 efuse_req_offset(struct efuse_req *req);	/* READ WRITE READDIR* FALLOCATE LSEEK, or 0 */
u64 efuse_req_size(struct efuse_req *req);	/* bytes asked for or written, or 0 */
/* Open flags; ACCESS: mask; SETATTR: valid; RENAME2: flags; else 0. */
u32 efuse_req_flags(struct efuse_req *req);
/* RENAME, RENAME2: the target directory; LINK: the inode that is linked; else 0. */
u64 efuse_req_newdir(struct efuse_req *req);
/*
 * The request's @index-th name (0 or 1), without NUL. Returns its length, or
 * -ENOENT where it has none, or -ERANGE where @buf is too small (left untouched).
 */
int efuse_req_name(struct efuse_req *req, u32 index, void *buf, u32 buf__sz);
/*
 * The key under which the request's answer lies in its map: struct
 * efuse_entry_key for LOOKUP, u64 for GETATTR and STATFS, struct efuse_blob_key for
 * READLINK, GETXATTR, LISTXATTR, struct efuse_grant_key for ACCESS, OPEN,
 * OPENDIR. NULL where the opcode has none or @rdwr_buf_size is not its size.
 */
u8 *efuse_req_key(struct efuse_req *req, const u64 rdwr_buf_size);

/*
 * Offer an answer: request members. Each copies the value once, checks stamp,
 * epochs, time-out, caller and inode, and returns EFUSE_REPLIED when the request
 * is answered, else 0, the reason counted.
 */
int efuse_reply_entry(struct efuse_req *req, const void *entry, u32 entry__sz,
		      const void *attrs, u32 attrs__sz);
int efuse_reply_negative(struct efuse_req *req, const void *entry, u32 entry__sz);
int efuse_reply_attrs(struct efuse_req *req, const void *attrs, u32 attrs__sz);
int efuse_reply_blob(struct efuse_req *req, const void *blob, u32 blob__sz);
int efuse_reply_grant(struct efuse_req *req, const void *grant, u32 grant__sz);
int efuse_reply_volume(struct efuse_req *req, const void *volume, u32 volume__sz);
/* Needs no value: the kernel knows whether it may. */
int efuse_reply_flush(struct efuse_req *req);

/* The value at hand: learn() only. The pointers are NULL where the size is not theirs. */
u32 efuse_learn_map(struct efuse_req *req);	/* enum efuse_map */
u8 *efuse_learn_key(struct efuse_req *req, const u64 rdwr_buf_size);
u8 *efuse_learn_value(struct efuse_req *req, const u64 rdwr_buf_size);

/* notify() only. */
u32 efuse_notify_code(struct efuse_notify *n);		/* enum efuse_notify_code */
/* The inode, or the directory of the entry. */
u64 efuse_notify_nodeid(struct efuse_notify *n);
int efuse_notify_name(struct efuse_notify *n, void *buf, u32 buf__sz);

/* exit() only. */
u32 efuse_exit_kind(struct efuse_exit_info *info);	/* enum efuse_exit_kind */
s64 efuse_exit_code(struct efuse_exit_info *info);

/* The number of the block at hand: block() and learn(). */
u64 efuse_req_block(struct efuse_req *req);
/* block() only: offer the slot that may hold it, with its tag; as the other answers. */
int efuse_reply_block(struct efuse_req *req, void *tag, u32 tag__sz, const void *data,
		      u32 data__sz);
/*
 * learn() only: put the block (EFUSE_MAP_BLOCKS) into a slot, and what it is into the
 * slot's tag. Returns 0, -EBUSY if somebody uses the slot at the moment, or -EINVAL.
 */
int efuse_learn_block(struct efuse_req *req, void *tag, u32 tag__sz, void *data, u32 data__sz);

/*
 * Of the choice of a path: select_path(), path_done(). @rdonly_buf_size is that of
 * struct efuse_path_info, else NULL comes back.
 */
const u8 *efuse_path_info(struct efuse_req *req, const u64 rdonly_buf_size);
/*
 * select_path() only: how long the request will take on the path that is returned, 0 if
 * that is not known; and what path_done() finds in its struct efuse_path_info.
 */
int efuse_path_predict(struct efuse_req *req, u64 ns, u32 note);

/* block() only: bytes of it that are wanted; 0: whether it is there, and no more. */
u32 efuse_req_wanted(struct efuse_req *req);

/*
 * learn() only: the tag of the block that made room in efuse_learn_block(), as it was, into @tag
 * (struct efuse_tag). Returns 0, -ENOENT if none did, or -EINVAL.
 */
int efuse_learn_evicted(struct efuse_req *req, void *tag, u32 tag__sz);
/*
 * reply() only: the file whose data the request changed, so that what was known of it is
 * void, or 0; and the epoch at which it ended.
 */
u64 efuse_req_ended(struct efuse_req *req);
u64 efuse_req_epoch(struct efuse_req *req);
/* notify() only: the epoch at which what was known ended. */
u64 efuse_notify_epoch(struct efuse_notify *n);

/*
 * select_channel() only: the request, and what the channel of a CPU has to do; NULL if the CPU
 * has no channel. What the latter returns holds until the next call of it.
 * @rdonly_buf_size is that of struct efuse_placement_info, struct efuse_channel_load, else
 * NULL comes back.
 */
const u8 *efuse_placement_info(struct efuse_placement *placement, const u64 rdonly_buf_size);
const u8 *efuse_channel_load(struct efuse_placement *placement, u32 cpu,
			     const u64 rdonly_buf_size);

/*
 * select_path() only: how many of a READ's blocks the page cache of the backing file has;
 * -EOPNOTSUPP: EFUSE_PATH_DEVICE cannot take it.
 */
int efuse_path_resident(struct efuse_req *req);

#endif /* _FS_FUSE_EFUSE_KFUNCS_H */
