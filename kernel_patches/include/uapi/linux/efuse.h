/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The types that eFuse's kernel code, its BPF handlers and user space share.
 *
 * All types are of fixed width, in host byte order and without implicit padding. A value in a
 * BPF map begins with a struct efuse_stamp. The kernel copies the value once, checks the stamp of
 * the copy, and answers from the copy only if the stamp is valid.
 */
#ifndef _UAPI_LINUX_EFUSE_H
#define _UAPI_LINUX_EFUSE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define EFUSE_NAME_LEN		256	/* a name of 255 bytes and its NUL */
#define EFUSE_BLOB_LEN		976	/* bytes of the largest xattr or symlink that is cached */
#define EFUSE_ATTR_LEN		88	/* sizeof(struct fuse_attr) */
#define EFUSE_STATFS_LEN	80	/* sizeof(struct fuse_kstatfs) */

/*
 * What a request member of struct efuse_ops returns. A negative errno is allowed, too: it fails
 * the request.
 */
enum efuse_verdict {
	EFUSE_PASS	= 0,	/* send the request to the daemon */
	EFUSE_REPLIED	= 1,	/* an efuse_reply_*() has answered the request */
};

/*
 * The head of every value. `check` is a CRC-32, as zlib computes it, of the value's seed followed
 * by all bytes of the value that come after `check`. The seed is the key that the value belongs
 * to. It exposes a map element that was reused for another key while it was being read:
 *
 *   entry   __u64 parent, then the name's bytes without the NUL
 *   attrs   __u64 nodeid
 *   blob    __u64 nodeid, __u32 opcode, then the name's bytes
 *   grant   struct efuse_grant_key
 *   volume  __u64 nodeid
 *
 * The check of a blob covers only its first EFUSE_BLOB_HEAD + len bytes.
 */
struct efuse_stamp {
	__u32	check;
	__u32	flags;		/* 0 or EFUSE_STAMP_IDS */
	__u64	epoch;		/* the connection's epoch since which the value is true; 0: void */
	__u64	expires_ns;	/* CLOCK_MONOTONIC time at which the daemon's timeout ends */
	__u64	caller;		/* the caller that was answered, see struct efuse_grant_key */
};

/*
 * Flag of a value that the daemon has published itself: the value is for every caller with these
 * ids, whatever its groups and capabilities. `caller` is then fsuid << 32 | fsgid, both as a
 * request tells them to the daemon.
 */
#define EFUSE_STAMP_IDS		1

/* Map `entries`: (directory, name) to an inode, or to nodeid 0 where the name does not exist. */
struct efuse_entry_key {
	__u64	parent;			/* nodeid of the directory */
	char	name[EFUSE_NAME_LEN];	/* padded with NULs */
};

struct efuse_entry {
	struct efuse_stamp	stamp;
	__u64			nodeid;
	__u64			generation;
};

/* Map `attrs`: __u64 nodeid to the struct fuse_attr of the inode. */
struct efuse_attrs {
	struct efuse_stamp	stamp;
	__u8			attr[EFUSE_ATTR_LEN];
};

/* Map `blobs`: (nodeid, opcode, name) to the answer of a READLINK, GETXATTR or LISTXATTR. */
struct efuse_blob_key {
	__u64	nodeid;
	__u32	opcode;
	__u32	pad;			/* 0 */
	char	name[EFUSE_NAME_LEN];	/* of the xattr, padded with NULs; empty if there is none */
};

struct efuse_blob {
	struct efuse_stamp	stamp;
	__u64			version; /* of the inode, see docs/coherence.md; 0: none */
	__s32			error;	/* 0, or -ENODATA: the xattr does not exist */
	__u32			len;	/* bytes of data in use; 0 if there is an error */
	__u8			data[EFUSE_BLOB_LEN];
};

#define EFUSE_BLOB_HEAD		48	/* offsetof(struct efuse_blob, data) */

/*
 * Map `grants`: an OPEN, OPENDIR or ACCESS that the daemon has allowed to a caller.
 *
 * `caller` identifies the caller by everything that a daemon can find out about it: ids,
 * supplementary groups, effective capabilities and user namespace. It is a hash keyed with a
 * secret of the connection, so only the kernel can compute it. It is 0 if the kernel cannot
 * identify the caller.
 *
 * Where answers do not depend on the caller (`default_permissions` or `caller_independent`),
 * `caller` is fsuid << 32 | fsgid, both as a request tells them to the daemon. The kernel does not
 * check it then; it only keeps the grants of different ids apart.
 */
struct efuse_grant_key {
	__u64	nodeid;
	__u32	opcode;
	__u32	arg;		/* the open flags of OPEN and OPENDIR, the mask of ACCESS */
	__u64	caller;
};

/*
 * Bits of the file handle in the daemon's reply to an OPEN or OPENDIR, on a connection that
 * declares `no_open`:
 *
 *   0, the nodeid,          The kernel may answer later opens of the inode itself,
 *   or EFUSE_FH_OWN set     with the nodeid as the handle.
 *   EFUSE_FH_OWN and        It may not: the daemon keeps state with this handle, such
 *   EFUSE_FH_KEPT set       as a position in a directory.
 *   anything else           The daemon tells files apart by their handles and could
 *                           mistake a nodeid for the handle of another file. The
 *                           kernel ends `no_open` for the connection.
 *
 * No nodeid has the bit EFUSE_FH_OWN. In exclusive mode FUSE caches the listing of a directory
 * only if its handle is of the first kind, whether `no_open` is declared or not.
 */
#define EFUSE_FH_OWN		0x8000000000000000ULL
#define EFUSE_FH_KEPT		0x4000000000000000ULL

struct efuse_grant {
	struct efuse_stamp	stamp;
	__u32			open_flags;	/* FOPEN_* of the daemon's reply; 0 for ACCESS */
	__u32			pad;		/* 0 */
};

/* Map `volumes`: __u64 nodeid to the struct fuse_kstatfs that a STATFS of it returns. */
struct efuse_volume {
	struct efuse_stamp	stamp;
	__u8			st[EFUSE_STATFS_LEN];
};

/*
 * Maps `tags` and `blocks`: the data cache. The nodeid and the number of a block hash to a set of
 * EFUSE_WAYS tags, and the block may be in any way of that set. The tag of way W in set S
 * describes slot S * EFUSE_WAYS + W of `blocks`. The daemon can map both maps into its memory.
 * A reader or writer of a slot, in the kernel or in the daemon, holds the lock of the slot's tag:
 *
 *   0                  unlocked
 *   1 .. 0x7fffffff    the number of readers
 *   EFUSE_TAG_WRITER   one writer
 */
#define EFUSE_BLOCK_SIZE	4096
#define EFUSE_WAYS		8
#define EFUSE_TAG_WRITER	0x80000000

struct efuse_tag {
	__u32	lock;
	__u32	used;		/* set to 1 by a hit, cleared by the search for a victim */
	__u64	nodeid;		/* of the file; 0: the slot is empty */
	__u64	block;		/* offset in the file / EFUSE_BLOCK_SIZE */
	__u64	epoch;		/* the connection's epoch since which the data is true */
	__u64	expires_ns;	/* CLOCK_MONOTONIC time at which the daemon's timeout ends */
	__u64	version;	/* of the file, see docs/coherence.md; 0: none */
	__u32	len;		/* valid bytes; less than EFUSE_BLOCK_SIZE only at the file's end */
	__u32	pad[3];		/* 0 */
};

struct efuse_slot {
	__u8	data[EFUSE_BLOCK_SIZE];
};

struct efuse_set {
	struct efuse_tag way[EFUSE_WAYS];
};

/* Map `geometry`, element 0: the size of the data cache. */
struct efuse_geometry {
	__u32	sets;		/* sets in `tags`; `blocks` has EFUSE_WAYS slots for each */
	__u32	pad;		/* 0 */
	__u64	watched_ns;	/* `files` is counted until this CLOCK_MONOTONIC time; 0: never */
};

/* Map `files`: __u64 nodeid to the lookups of its blocks, counted until geometry.watched_ns. */
struct efuse_file_use {
	__u64	hits;		/* blocks found in the cache */
	__u64	misses;		/* blocks not found */
};

/* The map in which learn() should store the value that it is given. */
enum efuse_map {
	EFUSE_MAP_NONE		= 0,
	EFUSE_MAP_ENTRIES	= 1,
	EFUSE_MAP_ATTRS		= 2,
	EFUSE_MAP_BLOBS		= 3,
	EFUSE_MAP_GRANTS	= 4,
	EFUSE_MAP_VOLUMES	= 5,
	EFUSE_MAP_BLOCKS	= 6,	/* a block: stored by efuse_learn_block() */
};

/* Why a program set was detached; the first word of exit_info in sysfs. */
enum efuse_exit_kind {
	EFUSE_EXIT_NONE		= 0,	/* no set has been detached yet */
	EFUSE_EXIT_UNREGISTER	= 1,	/* its struct_ops link was destroyed */
	EFUSE_EXIT_REPLACE	= 2,	/* its link was updated to another set */
	EFUSE_EXIT_UNMOUNT	= 3,	/* the file system was unmounted */
};

/* Notifications of the daemon that reach the member notify() of struct efuse_ops. */
enum efuse_notify_code {
	EFUSE_NOTIFY_INVAL_INODE	= 1,
	EFUSE_NOTIFY_INVAL_ENTRY	= 2,
	EFUSE_NOTIFY_DELETE		= 3,
	EFUSE_NOTIFY_STORE		= 4,
};

/* The paths that a READ or WRITE can take; see the member select_path() of struct efuse_ops. */
enum efuse_path {
	EFUSE_PATH_AUTO		= 0,	/* the kernel chooses */
	EFUSE_PATH_DAEMON	= 1,	/* the daemon */
	EFUSE_PATH_DIRECT	= 2,	/* the backing files that the daemon has mapped */
	EFUSE_PATH_CACHE	= 3,	/* the data cache; READ only */
	EFUSE_PATH_DEVICE	= 4,	/* direct I/O to the device of a backing file; READ only */
	EFUSE_NR_PATHS,
};

/* Flags that select_path() may add to a path. */
#define EFUSE_PATH_MEASURE	0x100	/* time the request, then call path_done() */
#define EFUSE_PATH_PROBE	0x200	/* count the request as a probe of the path */

/* What efuse_path_info() returns for a READ or WRITE. */
struct efuse_path_info {
	/*
	 * 1 << EFUSE_PATH_* for each path that can take the request. The device may still be unable
	 * to: efuse_path_resident() tells.
	 */
	__u32	eligible;
	__u32	depth;		/* backing file requests begun on this CPU and not finished */
	__u32	round;		/* paths/round in sysfs */
	__u32	probes;		/* paths/probes in sysfs */
	/* Only for path_done(): */
	__u32	path;		/* the path that was selected */
	__u32	missed;		/* 1: another path answered some or all of the request */
	__u32	note;		/* as passed to efuse_path_predict() */
	__u32	pad;		/* 0 */
	__u64	elapsed_ns;	/* from the selection of the path to the answer */
};

/* What efuse_placement_info() returns for a request; see select_channel() of struct efuse_ops. */
struct efuse_placement_info {
	__u32	opcode;
	__u32	cpu;		/* the CPU that sends the request */
	__u64	nodeid;
	__u32	home;		/* the CPU whose channel is the default for the sender */
	__u32	nr_cpus;	/* all CPU numbers are below this */
	__u32	background;	/* 1: sent in the background, such as a part of a large READ */
	__u32	threshold;	/* channels/threshold in sysfs */
};

/* What efuse_channel_load() returns for a channel. */
struct efuse_channel_load {
	__u32	node;		/* NUMA node of the channel's CPU */
	__u32	depth;		/* requests that wait in the channel's queue */
	__u32	in_flight;	/* requests that the channel's workers are processing */
	__u32	polling;	/* workers that poll for a request and have not been claimed */
	__u32	sleeping;	/* 1: at least one worker sleeps */
	__u32	service_ns;	/* recent mean time to process a request; 0: not known yet */
};

/*
 * Map `events`: a ring buffer of events in the kernel, for one reader at a time. Nothing is added
 * while element 0 of the map `listening` (__u32) is 0. An event that finds the ring full is
 * dropped and counted in element 0 of the map `lost` (__u64).
 */
enum efuse_event_kind {
	EFUSE_EVENT_EVICTED	= 1,	/* a block was evicted from the data cache */
	EFUSE_EVENT_EPOCH	= 2,	/* cached values of an inode or a name are void */
	EFUSE_EVENT_PATH	= 3,	/* READs of a file take another path than before */
};

struct efuse_event {
	__u32	kind;		/* enum efuse_event_kind */
	__u16	opcode;		/* of the request that caused it; 0: a notification */
	__u16	arg;		/* EPOCH, notification: enum efuse_notify_code;
				 * EPOCH, request: the enum efuse_path that carried it out,
				 * EFUSE_PATH_DAEMON or EFUSE_PATH_DIRECT;
				 * PATH: the new enum efuse_path
				 */
	__u64	nodeid;		/* the inode, or the directory of the name */
	__u64	offset;		/* in the file, bytes */
	__u64	length;		/* bytes from there; EPOCH: 0 means the whole file;
				 * PATH: offset and length of the READ at which the path changed
				 */
	__u64	epoch;		/* EVICTED: of the block; EPOCH: from which the values are void */
	__u64	time_ns;	/* CLOCK_MONOTONIC */
};

/*
 * An extent: a range of a file whose bytes are in a backing file. The daemon passes it to
 * EFUSE_IOC_MAP on its descriptor of /dev/efuse. The caller needs CAP_SYS_ADMIN, and all I/O
 * through the extent uses the caller's credentials. A new extent replaces the parts of earlier
 * ones that it overlaps. When the ioctl returns, no I/O goes through the replaced parts any more.
 * All extents of a file end when the kernel forgets its nodeid.
 *
 * The ioctl waits for I/O through the parts that it replaces. That I/O may wait for the lock of
 * the backing file, and the holder of that lock may wait for a page of this very mount. So another
 * thread of the daemon must go on answering requests meanwhile.
 *
 * EAGAIN: a mount of the connection is being set up or torn down; call again.
 * ENOTCONN: the file system is unmounted.
 * ESTALE: the kernel does not hold the nodeid (any more), or the version is earlier than the
 * latest one of the file.
 */
struct efuse_extent {
	__u64	nodeid;
	__u64	offset;		/* in the file, bytes */
	__u64	length;		/* bytes; 0 with EFUSE_EXTENT_TO_EOF */
	__u64	backing_offset;	/* in the backing file, bytes */
	__u64	version;	/* of the file's content, counted by the daemon */
	__s32	fd;		/* the backing file: a regular file, open for reading */
	__u32	flags;		/* EFUSE_EXTENT_* */
};

/* WRITEs use the extent, too. The descriptor must be open for writing. */
#define EFUSE_EXTENT_WRITE	1
/* The extent has no end of its own: the file ends where the backing file currently ends. */
#define EFUSE_EXTENT_TO_EOF	2
/* The extent is valid only until the backing file changes. Not with EFUSE_EXTENT_WRITE. */
#define EFUSE_EXTENT_SEALED	4
/*
 * The kernel need not hold the nodeid yet: the daemon is about to return it in its reply to a
 * request such as CREATE or LOOKUP.
 */
#define EFUSE_EXTENT_NEW	8

/*
 * The range of a file that EFUSE_IOC_UNMAP removes from all extents. When the ioctl returns, no
 * I/O goes through extents in that range any more. If `version` is later than the latest one of
 * the file, the file's extents of earlier versions end everywhere, and none of an earlier version
 * can be mapped afterwards. EFUSE_IOC_UNMAP waits for I/O as EFUSE_IOC_MAP does.
 */
struct efuse_unmap {
	__u64	nodeid;
	__u64	offset;		/* in the file, bytes */
	__u64	length;		/* bytes; 0: to the end of the file */
	__u64	version;	/* of the file's content; 0: keep the current version */
};

#define EFUSE_IOC_MAGIC		229	/* FUSE's magic; eFuse uses numbers from 64 on */
#define EFUSE_IOC_MAP		_IOW(EFUSE_IOC_MAGIC, 64, struct efuse_extent)
#define EFUSE_IOC_UNMAP		_IOW(EFUSE_IOC_MAGIC, 65, struct efuse_unmap)

/*
 * EFUSE_IOC_CHANNEL turns a descriptor of /dev/efuse that FUSE_DEV_IOC_CLONE has attached to a
 * mount into the channel of one CPU. A channel receives the requests of its CPU before those of
 * other CPUs. mmap(2) of the descriptor maps the channel's slots. Slot S has room for a request at
 * offset 2 * S * slot_size, and for the reply slot_size bytes after that. A request begins
 * EFUSE_REQUEST_START bytes into its room, so that the data of a WRITE begins on a page boundary.
 * read(2) and write(2) on the descriptor work as before.
 */
struct efuse_channel_setup {
	__u32	cpu;		/* a possible CPU of the machine that has no channel yet */
	__u32	slots;		/* 1 to EFUSE_MAX_SLOTS */
	__u32	slot_size;	/* bytes, a multiple of the page size: two pages or more */
	__u32	flags;		/* 0 */
};

#define EFUSE_MAX_SLOTS		64
#define EFUSE_NO_SLOT		0xffffffff

/* In bytes: struct fuse_in_header and struct fuse_write_in end with the first page. */
#define EFUSE_REQUEST_START(page_size)	((page_size) - 80)

/*
 * EFUSE_IOC_NEXT on a channel delivers the reply in one slot, as write(2) would, and then reads the
 * next request into another slot, as read(2) would. Any number of threads may call it. A length
 * of 0 returns the slot without a reply in it: the daemon has sent the reply by write(2), or
 * sends none.
 *
 * After EINVAL, or EFAULT because the structure could not be read, nothing was done. After any
 * other error, the reply was consumed and its slot is free. EBADMSG: the slot held no valid reply;
 * a request that was matched with it has failed with EIO. A reply whose error is not in the range
 * 0 to -511 fails its request with EIO as well.
 *
 * A request that fits neither a slot nor the buffer fails: SETXATTR with E2BIG, as for read(2),
 * others with EIO.
 *
 * With O_NONBLOCK the call does not sleep, but may poll for a request for spin_ns (in sysfs) before
 * it fails with EAGAIN. A thread that sleeps in poll(2) instead can do that on any descriptor of
 * the mount.
 */
struct efuse_next {
	__u32	slot;		/* in: of the reply; out: of the request; or EFUSE_NO_SLOT */
	__u32	length;		/* in: of the reply; out: of the request; bytes */
	__u64	buffer;		/* address of a buffer for a request that fits no slot */
	__u32	size;		/* of the buffer, bytes: at least what read(2) requires */
	__u32	flags;		/* EFUSE_NEXT_* */
};

/* Only deliver the reply. The members buffer and size are ignored. */
#define EFUSE_NEXT_REPLY	1

/*
 * Deliver the reply and read a request, but without a buffer: the members buffer and size are
 * ignored. If the next request fits no slot, it stays queued with everything after it, and the call
 * fails with EMSGSIZE. The caller then has to call again with a buffer.
 */
#define EFUSE_NEXT_SMALL	2

#define EFUSE_IOC_CHANNEL	_IOW(EFUSE_IOC_MAGIC, 66, struct efuse_channel_setup)
#define EFUSE_IOC_NEXT		_IOWR(EFUSE_IOC_MAGIC, 67, struct efuse_next)

/*
 * EFUSE_IOC_TAKEOVER on a descriptor of /dev/efuse that belongs to no mount makes it a descriptor
 * of a mount whose daemon has died, while the mount waits for a successor ("recovery" in sysfs).
 * The caller then reads INIT from it, and replies. It must accept what the dead daemon had
 * accepted: otherwise each read(2) of the descriptor fails with ENODEV, and the mount goes on
 * waiting. Requests come after the reply to INIT. They have the nodeids and handles that the dead
 * daemon gave, and FORGETs may count more lookups than the successor has answered.
 *
 * EBADF, EINVAL: `fd` is not on an eFuse mount, or on a submount; the descriptor belongs to a mount
 * already; a member is invalid.
 * EPERM: the caller is neither the user who mounted nor has CAP_SYS_ADMIN, or is in another user or
 * PID namespace than the mount.
 * EBUSY: the mount has a daemon, or another successor is starting.
 * ENOTCONN: the connection has ended.
 */
struct efuse_takeover {
	__s32	fd;		/* any file of the mount; may be opened with O_PATH */
	__u32	flags;		/* 0 */
	__u64	reserved;	/* 0 */
};

#define EFUSE_IOC_TAKEOVER	_IOW(EFUSE_IOC_MAGIC, 68, struct efuse_takeover)

#endif /* _UAPI_LINUX_EFUSE_H */
