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

#include <linux/ioctl.h>
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
	__u32	flags;		/* 0 or EFUSE_STAMP_IDS */
	__u64	epoch;		/* the connection's epoch when the request was issued */
	__u64	expires_ns;	/* CLOCK_MONOTONIC at which the daemon's time-out ends */
	__u64	caller;		/* whom the daemon answered, see struct efuse_grant_key */
};

/*
 * A daemon says of what it publishes itself: it is for every caller of these ids, whatever
 * else it is; `caller` is fsuid << 32 | fsgid as the daemon is told them.
 */
#define EFUSE_STAMP_IDS		1

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

/*
 * Map `grants`: that an OPEN, OPENDIR or ACCESS is allowed to a caller.
 *
 * `caller` stands for all that a daemon can know of who asks: ids, supplementary groups,
 * effective capabilities, user namespace. It is a hash with a secret of the connection, so
 * that only the kernel can make one, and 0 where nobody can tell. Where answers do not
 * depend on the caller it is fsuid << 32 | fsgid as the daemon is told them, and means
 * nothing but that each has grants of its own.
 */
struct efuse_grant_key {
	__u64	nodeid;
	__u32	opcode;
	__u32	arg;		/* the open flags, or ACCESS's mask */
	__u64	caller;
};

/*
 * The handle of an OPEN's or OPENDIR's reply, on a connection that is `handleless`. 0, the
 * nodeid, or a number with EFUSE_FH_OWN, which no nodeid has: the kernel may open the same
 * again by itself, with the nodeid as the handle. With EFUSE_FH_KEPT besides: it may not,
 * since the daemon keeps something with this handle, such as a position in a directory.
 * Anything else tells files apart, so that a nodeid could be taken for another file's
 * handle: the kernel ends `handleless` for the connection. In exclusive mode FUSE keeps the
 * listing of a directory only with a handle of the first kind, whatever was declared.
 */
#define EFUSE_FH_OWN		0x8000000000000000ULL
#define EFUSE_FH_KEPT		0x4000000000000000ULL

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

/*
 * Maps `tags` and `blocks`: the data cache. A file's block may lie in any way of the
 * set that its nodeid and number are hashed to; way W of set S tells what slot
 * S * EFUSE_WAYS + W of `blocks` holds. Both can be mapped by the daemon, and whoever
 * reads or writes a slot holds its tag's lock meanwhile:
 *
 *   0                  nobody
 *   1 .. 0x7fffffff    so many readers
 *   EFUSE_TAG_WRITER   a writer, alone
 */
#define EFUSE_BLOCK_SIZE	4096
#define EFUSE_WAYS		8
#define EFUSE_TAG_WRITER	0x80000000

struct efuse_tag {
	__u32	lock;
	__u32	used;		/* set by readers, cleared by who looks for a slot to replace */
	__u64	nodeid;		/* 0: the slot is empty */
	__u64	block;		/* offset in the file / EFUSE_BLOCK_SIZE */
	__u64	epoch;		/* the connection's epoch when the data was asked for */
	__u64	expires_ns;	/* CLOCK_MONOTONIC at which the daemon's time-out ends */
	__u32	len;		/* bytes of the block; less than all only where the file ends */
	__u32	pad[5];		/* 0 */
};

struct efuse_slot {
	__u8	data[EFUSE_BLOCK_SIZE];
};

struct efuse_set {
	struct efuse_tag way[EFUSE_WAYS];
};

/* Map `geometry`: element 0. */
struct efuse_geometry {
	__u32	sets;		/* in `tags`; `blocks` has EFUSE_WAYS times as many slots */
	__u32	pad;		/* 0 */
	__u64	watched_ns;	/* CLOCK_MONOTONIC until which `files` is counted, 0: it is not */
};

/* Map `files`: __u64 nodeid to how often its blocks were looked for while watched. */
struct efuse_file_use {
	__u64	hits;		/* blocks that were there */
	__u64	misses;
};

/* The map that a value handed to learn() belongs into. */
enum efuse_map {
	EFUSE_MAP_NONE		= 0,
	EFUSE_MAP_ENTRIES	= 1,
	EFUSE_MAP_ATTRS		= 2,
	EFUSE_MAP_BLOBS		= 3,
	EFUSE_MAP_GRANTS	= 4,
	EFUSE_MAP_VOLUMES	= 5,
	EFUSE_MAP_BLOCKS	= 6,	/* learned with efuse_learn_block() */
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

/* The ways of a READ or WRITE; see struct efuse_ops.select_path. */
enum efuse_path {
	EFUSE_PATH_AUTO		= 0,	/* no opinion */
	EFUSE_PATH_DAEMON	= 1,
	EFUSE_PATH_DIRECT	= 2,	/* the backing files that the daemon mapped */
	EFUSE_PATH_CACHE	= 3,	/* the data cache; for READ only */
	EFUSE_PATH_DEVICE	= 4,	/* a device that backing files lie on; for READ only */
	EFUSE_NR_PATHS,
};

/* What select_path() may add to a path. */
#define EFUSE_PATH_MEASURE	0x100	/* time the request, then call path_done() */
#define EFUSE_PATH_PROBE	0x200	/* count it as one that only finds out */

/* What efuse_path_info() tells of a READ or WRITE. */
struct efuse_path_info {
	/* 1 << EFUSE_PATH_*, of each that can take it; of the device ask efuse_path_resident() */
	__u32	eligible;
	__u32	depth;		/* that this CPU sent to backing files, and that are not done */
	__u32	round;		/* paths/round and paths/probes in sysfs */
	__u32	probes;
	/* For path_done() alone: */
	__u32	path;		/* that was selected */
	__u32	missed;		/* 1: another had to help out, or to take all of it */
	__u32	note;		/* of efuse_path_predict() */
	__u32	pad;		/* 0 */
	__u64	elapsed_ns;	/* from the selection to the answer */
};

/* What efuse_placement_info() tells of a request; see struct efuse_ops.select_channel. */
struct efuse_placement_info {
	__u32	opcode;
	__u32	cpu;		/* that sends it */
	__u64	nodeid;
	__u32	home;		/* the CPU whose channel it would go to by itself */
	__u32	nr_cpus;	/* there are channels of no higher CPU than this less one */
	__u32	background;	/* 1: part of a large READ or WRITE, or nobody waits for it */
	__u32	threshold;	/* channels/threshold in sysfs */
};

/* What efuse_channel_load() tells of a channel. */
struct efuse_channel_load {
	__u32	node;		/* NUMA node of its CPU */
	__u32	depth;		/* requests that wait in its queue */
	__u32	in_flight;	/* requests that its workers have */
	__u32	looking;	/* its workers that look for a request and are free */
	__u32	sleeping;	/* 1: some of them sleep */
	__u32	service_ns;	/* the mean time that they had a request lately; 0: none yet */
};

/*
 * Map `events`: a ring of what happened in the kernel, for one listener at a time. While
 * element 0 of the map `listening` (__u32) is 0 nothing is put there. What finds the ring full
 * is dropped and counted in element 0 of the map `lost` (__u64).
 */
enum efuse_event_kind {
	EFUSE_EVENT_EVICTED	= 1,	/* a block made room for another in the data cache */
	EFUSE_EVENT_EPOCH	= 2,	/* what was known of an inode or a name is void */
	EFUSE_EVENT_PATH	= 3,	/* I/O on a file goes another way than before */
};

struct efuse_event {
	__u32	kind;		/* enum efuse_event_kind */
	__u16	opcode;		/* of the request at hand; 0: the daemon's own notification */
	__u16	arg;		/* EPOCH: of a notification enum efuse_notify_code, else the
				 * enum efuse_path of who carried it out: the daemon, or
				 * backing files; PATH: enum efuse_path
				 */
	__u64	nodeid;		/* the inode, or the directory of the name */
	__u64	offset;		/* in the file, bytes */
	__u64	length;		/* bytes from there; EPOCH, PATH: 0 is all of the file */
	__u64	epoch;		/* EVICTED: that the block carried; EPOCH: at which it ended */
	__u64	time_ns;	/* CLOCK_MONOTONIC */
};

/*
 * An extent: where a file's bytes lie in a backing file. Handed to the kernel with
 * EFUSE_IOC_MAP on the daemon's descriptor of /dev/efuse, by a caller with
 * CAP_SYS_ADMIN, whose credentials all I/O of the extent is done with. A later
 * extent takes the place of what it overlaps; when the ioctl returns, nothing is read or
 * written any more through what it replaced. All of a file's extents end when the kernel
 * forgets its nodeid.
 *
 * The ioctl waits for I/O through what it replaces. That I/O may wait for the lock of the backing
 * file, and the lock's holder for a page of this very mount: the daemon has to go on answering
 * requests, by another thread.
 *
 * ENOTCONN: the connection is unmounted.
 * ESTALE: the kernel does not hold the nodeid (any more), or the version is an earlier one
 * than the latest of that file.
 */
struct efuse_extent {
	__u64	nodeid;
	__u64	offset;		/* in the file, bytes */
	__u64	length;		/* bytes; 0 with EFUSE_EXTENT_TO_EOF */
	__u64	backing_offset;	/* in the backing file, bytes */
	__u64	version;	/* of the file's content, in the daemon's own count */
	__s32	fd;		/* the backing file: a regular one, open for reading */
	__u32	flags;		/* EFUSE_EXTENT_* */
};

/* WRITEs go there, too; the descriptor must be open for writing. */
#define EFUSE_EXTENT_WRITE	1
/* The backing file ends where the file ends, wherever that is at the time. */
#define EFUSE_EXTENT_TO_EOF	2
/* Only as long as nobody changes the backing file; not with EFUSE_EXTENT_WRITE. */
#define EFUSE_EXTENT_SEALED	4
/*
 * The kernel may not hold the nodeid yet: the daemon is about to hand it out, in its reply to a
 * request such as CREATE or LOOKUP.
 */
#define EFUSE_EXTENT_NEW	8

/*
 * A range of a file that has no extents any more when EFUSE_IOC_UNMAP returns, and
 * nothing is read or written through them either. Extents of an earlier version
 * than the given one end wherever they lie, and none can be mapped later. EFUSE_IOC_UNMAP waits
 * as EFUSE_IOC_MAP does.
 */
struct efuse_unmap {
	__u64	nodeid;
	__u64	offset;
	__u64	length;		/* bytes; 0: to the end */
	__u64	version;	/* 0: leaves versions alone */
};

#define EFUSE_IOC_MAGIC		229	/* FUSE's own; numbers from 64 on are eFuse's */
#define EFUSE_IOC_MAP		_IOW(EFUSE_IOC_MAGIC, 64, struct efuse_extent)
#define EFUSE_IOC_UNMAP		_IOW(EFUSE_IOC_MAGIC, 65, struct efuse_unmap)

/*
 * EFUSE_IOC_CHANNEL on a descriptor of /dev/efuse that FUSE_DEV_IOC_CLONE has tied to a
 * mount makes it the channel of a CPU, whose requests it gets before those of others.
 * mmap(2) of it maps the slots: slot S has room for a request at 2 * S * slot_size, and
 * for its reply slot_size behind that. A request begins EFUSE_REQUEST_START behind where
 * its room does: so data of a WRITE begins at a page. read(2) and write(2) go on as before.
 */
struct efuse_channel_setup {
	__u32	cpu;		/* one that the machine may have, with no other channel */
	__u32	slots;		/* 1 to EFUSE_MAX_SLOTS */
	__u32	slot_size;	/* bytes: two pages or more */
	__u32	flags;		/* 0 */
};

#define EFUSE_MAX_SLOTS		64
#define EFUSE_NO_SLOT		0xffffffff

/* In bytes: struct fuse_in_header and struct fuse_write_in end with the first page. */
#define EFUSE_REQUEST_START(page_size)	((page_size) - 80)

/*
 * EFUSE_IOC_NEXT on a channel, by any number of threads: as write(2) of the reply that
 * lies in a slot, and then read(2) of a request into another. Who sent the reply by
 * write(2), or sends none, gives the slot back with a length of 0.
 *
 * With EINVAL nothing was done. With any other error the reply has been taken and its
 * slot is free; EBADMSG: it was no reply to a request, which failed with EIO. So does a
 * reply whose error is not 0 to -511.
 *
 * A request that fits neither a slot nor the buffer fails: a SETXATTR with E2BIG, as with
 * read(2), and others with EIO.
 *
 * With O_NONBLOCK it does not sleep, but may look for a request for spin_ns before it
 * says EAGAIN. Who sleeps in poll(2) instead may do so on any descriptor of the mount.
 */
struct efuse_next {
	__u32	slot;		/* of the reply; then of the request; or EFUSE_NO_SLOT */
	__u32	length;		/* of the reply in bytes; then of the request */
	__u64	buffer;		/* where a request goes that fits no slot */
	__u32	size;		/* of it in bytes: as large as read(2) would need */
	__u32	flags;		/* EFUSE_NEXT_* */
};

/* Only deliver the reply: buffer and size mean nothing. */
#define EFUSE_NEXT_REPLY	1

/*
 * Likewise; and if a request fits no slot, it stays where it is, and whatever else is
 * behind it: EMSGSIZE. Then call again with a buffer.
 */
#define EFUSE_NEXT_SMALL	2

#define EFUSE_IOC_CHANNEL	_IOW(EFUSE_IOC_MAGIC, 66, struct efuse_channel_setup)
#define EFUSE_IOC_NEXT		_IOWR(EFUSE_IOC_MAGIC, 67, struct efuse_next)

#endif /* _UAPI_LINUX_EFUSE_H */
