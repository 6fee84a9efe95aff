/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The types that eFuse's kernel code, its BPF handlers and user space share.
 *
 * Everything here is fixed width, in host byte order and without implicit
 * padding. A value that lies in a BPF map begins with a struct efuse_stamp;
 * the kernel copies it once, checks the stamp, and answers only if it holds.
 */
#ifndef _UAPI_LINUX_EFUSE_H
#define _UAPI_LINUX_EFUSE_H

#include <linux/types.h>

#define EFUSE_NAME_LEN		256	/* 255 bytes and the NUL */
#define EFUSE_BLOB_LEN		984	/* largest value of an xattr or symlink kept */
#define EFUSE_ATTR_LEN		88	/* sizeof(struct fuse_attr) */
#define EFUSE_STATFS_LEN	80	/* sizeof(struct fuse_kstatfs) */

/* What a handler returns: 0 passes to the daemon, < 0 refuses with that errno. */
enum efuse_verdict {
	EFUSE_PASS	= 0,
	EFUSE_REPLIED	= 1,
};

/*
 * Every value's head. `check` is the CRC-32 (the one of zlib) of the value's
 * seed followed by the value's bytes behind `check`. The seed is what the value
 * stands for, so that an element reused under its reader is not mistaken:
 *
 *   entry   __u64 parent, then the name's bytes without the NUL
 *   attrs   __u64 nodeid
 *   blob    __u64 nodeid, __u32 opcode, then the name's bytes
 *   grant   struct efuse_grant_key
 *   volume  __u64 nodeid
 *
 * A blob's check covers the first EFUSE_BLOB_HEAD + len bytes of it.
 */
struct efuse_stamp {
	__u32	check;
	__u32	flags;		/* 0 */
	__u64	epoch;		/* the connection's epoch when the request was issued */
	__u64	expires_ns;	/* CLOCK_MONOTONIC at which the daemon's time-out ends */
	__u32	uid;		/* whom the daemon answered (fsuid in its namespace) */
	__u32	gid;
};

/* Map `entries`: (directory, name) to an inode, or to none (nodeid 0). */
struct efuse_entry_key {
	__u64	parent;
	char	name[EFUSE_NAME_LEN];	/* padded with NULs */
};

struct efuse_entry {
	struct efuse_stamp	stamp;
	__u64			nodeid;
	__u64			generation;
};

/* Map `attrs`: __u64 nodeid to its struct fuse_attr. */
struct efuse_attrs {
	struct efuse_stamp	stamp;
	__u8			attr[EFUSE_ATTR_LEN];
};

/* Map `blobs`: what READLINK, GETXATTR and LISTXATTR answer. */
struct efuse_blob_key {
	__u64	nodeid;
	__u32	opcode;
	__u32	pad;			/* 0 */
	char	name[EFUSE_NAME_LEN];	/* the xattr's, padded with NULs */
};

struct efuse_blob {
	struct efuse_stamp	stamp;
	__s32			error;	/* 0, or -ENODATA */
	__u32			len;	/* bytes in data, 0 with an error */
	__u8			data[EFUSE_BLOB_LEN];
};

#define EFUSE_BLOB_HEAD		40	/* offsetof(struct efuse_blob, data) */

/* Map `grants`: that an OPEN, OPENDIR or ACCESS is allowed to a caller. */
struct efuse_grant_key {
	__u64	nodeid;
	__u32	opcode;
	__u32	arg;		/* the open flags, or ACCESS's mask */
	__u32	uid;
	__u32	gid;
};

struct efuse_grant {
	struct efuse_stamp	stamp;
	__u32			open_flags;	/* FOPEN_* of the daemon's reply */
	__u32			pad;		/* 0 */
};

/* Map `volumes`: __u64 nodeid to its struct fuse_kstatfs. */
struct efuse_volume {
	struct efuse_stamp	stamp;
	__u8			st[EFUSE_STATFS_LEN];
};

/* The map that a value handed to learn() belongs into. */
enum efuse_map {
	EFUSE_MAP_NONE		= 0,
	EFUSE_MAP_ENTRIES	= 1,
	EFUSE_MAP_ATTRS		= 2,
	EFUSE_MAP_BLOBS		= 3,
	EFUSE_MAP_GRANTS	= 4,
	EFUSE_MAP_VOLUMES	= 5,
};

/* Why a program set was detached; the first word of sysfs's exit_info. */
enum efuse_exit_kind {
	EFUSE_EXIT_NONE		= 0,
	EFUSE_EXIT_UNREGISTER	= 1,	/* its link ended */
	EFUSE_EXIT_REPLACE	= 2,	/* another set took its place */
	EFUSE_EXIT_UNMOUNT	= 3,	/* the connection ended first */
};

/* What the daemon told the kernel of its own accord; see struct efuse_ops.notify. */
enum efuse_notify_code {
	EFUSE_NOTIFY_INVAL_INODE	= 1,
	EFUSE_NOTIFY_INVAL_ENTRY	= 2,
	EFUSE_NOTIFY_DELETE		= 3,
	EFUSE_NOTIFY_STORE		= 4,
};

#endif /* _UAPI_LINUX_EFUSE_H */
