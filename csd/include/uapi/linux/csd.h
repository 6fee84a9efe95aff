/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Storage functions: what csd.ko, the functions and user space share.
 *
 * Everything here is fixed width, in host byte order and without implicit padding.
 */
#ifndef _UAPI_LINUX_CSD_H
#define _UAPI_LINUX_CSD_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CSD_NAME_LEN		32	/* of a function, with the NUL */
#define CSD_BLOCK_SIZE		4096	/* bytes that step() is given at a time */
#define CSD_MAX_ARGS		4096
#define CSD_MAX_SCRATCH		(256 << 10)
#define CSD_STEP_OUTPUT		(64 << 10)	/* most that one call of a function may emit */

/* What step() returns: or a negative errno, which ends the run. */
enum csd_verdict {
	CSD_GO_ON	= 0,	/* with the block named by csd_next(), else the next one */
	CSD_DONE	= 1,	/* the run is over; finish() is called */
};

/* What a function is like. */
enum csd_flags {
	CSD_JUMPS	= 1,	/* it seldom looks at the block that follows */
	CSD_PRIVATE	= 2,	/* for its loader's user, and CAP_SYS_ADMIN: others get EACCES */
};

/* Where a function runs. */
enum csd_place {
	CSD_AUTO	= 0,	/* where it is thought to be quicker */
	CSD_DEVICE	= 1,	/* in the device that the file lies on; only the result leaves it */
	CSD_KERNEL	= 2,	/* in this kernel, next to the page cache */
	CSD_NR_PLACES,
};

/* Why a file's blocks are not read by the device itself. */
enum csd_why {
	CSD_WHY_NOT		= 0,	/* they are */
	CSD_WHY_NO_DEVICE	= 1,	/* its file system lies on none */
	CSD_WHY_FILESYSTEM	= 2,	/* not one that is known to keep blocks in their place */
	CSD_WHY_BLOCK_SIZE	= 3,	/* the file system's is another than CSD_BLOCK_SIZE */
	CSD_WHY_CONTENT		= 4,	/* encrypted, verified, journaled, inline, ... */
	CSD_WHY_UNMAPPED	= 5,	/* some block has no place of its own: a hole, shared */
	CSD_WHY_FAILED		= 6,	/* the device did not do it */
	CSD_WHY_ASKED		= 7,	/* the caller wanted another place */
	CSD_WHY_DAEMON		= 8,	/* a FUSE mount: only its daemon knows where they are */
	CSD_WHY_SLOWER		= 9,	/* the device is thought to be slower */
};

/* Why what the kernel looked at was read by way of the file system. */
enum csd_unchained {
	CSD_UNCHAINED_NOT	 = 0,	/* it was not: the device sent a block behind the other */
	CSD_UNCHAINED_FIRST	 = 1,	/* the run has not gone again: it would not pay */
	CSD_UNCHAINED_FOLLOWS	 = 2,	/* the function does not go from block to block */
	CSD_UNCHAINED_FILESYSTEM = 3,	/* not one that waits for chains, and tells of changes */
	CSD_UNCHAINED_WRITTEN	 = 4,	/* the file is open for writing */
	CSD_UNCHAINED_CACHED	 = 5,	/* the page cache had it */
	CSD_UNCHAINED_WARMS	 = 6,	/* the page cache was to have it, now and then */
	CSD_UNCHAINED_UNMAPPED	 = 7,	/* the block has no place of its own: a hole */
	CSD_UNCHAINED_FAILED	 = 8,	/* the device did not do it */
};

/*
 * What a policy is asked: where a batch of blocks of a run is to be looked at. Times are predicted,
 * of all of the batch, in ns; 0: not known.
 */
struct csd_batch {
	char	function[CSD_NAME_LEN];	/* its name */
	__u32	blocks;
	__u32	resident;		/* of them, those that the page cache has */
	__u64	device_ns;		/* with @queue_ns */
	__u64	queue_ns;		/* until the commands that wait at the device are done */
	__u64	kernel_ns;
	__u32	place;			/* enum csd_place: without the policy's word */
	__u32	pad;
};

/*
 * CSD_IOC_RUN on a descriptor of /dev/csd makes a run of a function over a range of a file that
 * is open for reading, and returns a descriptor of the run. read(2) of that brings the next
 * of what the function emits; it returns 0 when the function is done, and fails with the errno
 * that it failed with. A file whose size is 0 is read until read(2) says that it ends; if only user
 * space can read it, making the run fails with EOPNOTSUPP. A signal interrupts read(2), and the
 * next one goes on. With O_NONBLOCK it looks at some blocks, and fails with EAGAIN if the function
 * has emitted nothing by then.
 */
struct csd_setup {
	char	name[CSD_NAME_LEN];	/* of the function */
	__s32	fd;			/* the file */
	__u32	place;			/* enum csd_place */
	__u64	offset;			/* in the file: a multiple of CSD_BLOCK_SIZE */
	__u64	length;			/* bytes from there, 0: to its end */
	__u64	max_steps;		/* 0: as many as the range has blocks */
	__u64	args;			/* address of the function's arguments */
	__u32	args_size;		/* of them in bytes, as the function wants them */
	__u32	flags;			/* 0 */
};

/* CSD_IOC_STATUS on a run: how far it is. */
struct csd_status {
	__u64	position;		/* in the file, bytes: of the block that comes next */
	__u64	end;			/* of the range, or of the file if that is first; of a */
					/* file whose size is 0: where it was read to */
	__u64	steps[CSD_NR_PLACES];	/* blocks that were looked at, by place; [0]: 0 */
	__u64	emitted;		/* bytes of output */
	__u32	done;			/* 1: the function is */
	__u32	why;			/* enum csd_why: of the last block that the kernel took */
	__u64	chained;		/* of the kernel's blocks, those not by the file system */
	__u32	unchained;		/* enum csd_unchained: of the last one that was */
	__u32	pad;
};

/*
 * CSD_IOC_AGAIN on a run, wherever it is: as if it was made anew, with other arguments. What was
 * not read of what it emitted is gone. It is quicker than another run, and so is what follows.
 */
struct csd_again {
	__u64	args;			/* address of the function's arguments */
	__u32	args_size;		/* of them in bytes, as the function wants them */
	__u32	flags;			/* 0 */
};

#define CSD_IOC_MAGIC	0xc5
#define CSD_IOC_RUN	_IOW(CSD_IOC_MAGIC, 0, struct csd_setup)
#define CSD_IOC_STATUS	_IOR(CSD_IOC_MAGIC, 1, struct csd_status)
#define CSD_IOC_AGAIN	_IOW(CSD_IOC_MAGIC, 2, struct csd_again)

#endif /* _UAPI_LINUX_CSD_H */
