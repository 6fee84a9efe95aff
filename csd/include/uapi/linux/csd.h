/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Storage functions: the interface between csd.ko, the functions and user space.
 *
 * All types have a fixed width, host byte order and no implicit padding.
 */
#ifndef _UAPI_LINUX_CSD_H
#define _UAPI_LINUX_CSD_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CSD_NAME_LEN		32	/* bytes of a function's name, with the NUL */
#define CSD_BLOCK_SIZE		4096	/* bytes of a block, the unit that step() gets */
#define CSD_MAX_ARGS		4096
#define CSD_MAX_SCRATCH		(256 << 10)
#define CSD_STEP_OUTPUT		(64 << 10)	/* most bytes that a call may emit */

/* What step() returns. A negative errno ends the run with that error. */
enum csd_verdict {
	CSD_GO_ON	= 0,	/* with the block named by csd_next(), else the following one */
	CSD_DONE	= 1,	/* end the run; finish() is called */
};

/* Properties of a function. */
enum csd_flags {
	CSD_JUMPS	= 1,	/* it seldom looks at the block that follows the last one */
	CSD_PRIVATE	= 2,	/* only its loader's user and CAP_SYS_ADMIN may run it */
};

/* Where a function runs. */
enum csd_place {
	CSD_AUTO	= 0,	/* at the place that is predicted to be quicker */
	CSD_DEVICE	= 1,	/* in the device that the file lies on; only the result leaves it */
	CSD_KERNEL	= 2,	/* in this kernel, next to the page cache */
	CSD_NR_PLACES,
};

/* Why the device itself does not read a file's blocks. */
enum csd_why {
	CSD_WHY_NOT		= 0,	/* it does read them */
	CSD_WHY_NO_DEVICE	= 1,	/* the file system is not on a device of csd.ko */
	CSD_WHY_FILESYSTEM	= 2,	/* the file system is not known to keep blocks in place */
	CSD_WHY_BLOCK_SIZE	= 3,	/* the file system's block size is not CSD_BLOCK_SIZE */
	CSD_WHY_CONTENT		= 4,	/* encrypted, verified, journaled, inline, ... */
	CSD_WHY_UNMAPPED	= 5,	/* a block has no place of its own: a hole, or shared */
	CSD_WHY_FAILED		= 6,	/* the device failed */
	CSD_WHY_ASKED		= 7,	/* the caller asked for another place */
	CSD_WHY_DAEMON		= 8,	/* a FUSE mount: only its daemon knows where they are */
	CSD_WHY_SLOWER		= 9,	/* the device is predicted to be slower */
};

/*
 * Why the kernel read blocks through the file system, and not in a chain below it. A chain reads
 * each block as soon as the one before has arrived.
 */
enum csd_unchained {
	CSD_UNCHAINED_NOT	 = 0,	/* it did not: a chain read them */
	CSD_UNCHAINED_FIRST	 = 1,	/* the first pass of a run: a chain would not pay off */
	CSD_UNCHAINED_FOLLOWS	 = 2,	/* the function looks at blocks one after the other */
	CSD_UNCHAINED_FILESYSTEM = 3,	/* the file system does not support chains */
	CSD_UNCHAINED_WRITTEN	 = 4,	/* the file is open for writing */
	CSD_UNCHAINED_CACHED	 = 5,	/* the page cache has the block */
	CSD_UNCHAINED_WARMS	 = 6,	/* some passes keep the page cache filled */
	CSD_UNCHAINED_UNMAPPED	 = 7,	/* the block has no place of its own: a hole */
	CSD_UNCHAINED_FAILED	 = 8,	/* the device failed */
};

/*
 * What a policy is asked: where to look at a batch of blocks of a run. The times are predictions
 * for the whole batch, in ns; 0 if they are not known.
 */
struct csd_batch {
	char	function[CSD_NAME_LEN];	/* name of the function */
	__u32	blocks;
	__u32	resident;		/* number of these blocks that are in the page cache */
	__u64	device_ns;		/* at the device, with @queue_ns */
	__u64	queue_ns;		/* until the commands that wait at the device are done */
	__u64	kernel_ns;
	__u32	place;			/* enum csd_place: the choice without a policy */
	__u32	pad;
};

/*
 * CSD_IOC_RUN on a descriptor of /dev/csd makes a run of a function over a range of a file, which
 * has to be open for reading, and returns a descriptor of the run.
 *
 * read(2) of the run returns the next bytes that the function emits. It returns 0 when the function
 * is done, and fails with the errno that the function failed with. A signal interrupts read(2), and
 * the next read(2) goes on. With O_NONBLOCK, read(2) looks at some blocks, and fails with EAGAIN if
 * the function has not emitted anything by then.
 *
 * A file of size 0 is read until read(2) of it returns 0. If only user space can read the file,
 * CSD_IOC_RUN fails with EOPNOTSUPP.
 */
struct csd_setup {
	char	name[CSD_NAME_LEN];	/* name of the function */
	__s32	fd;			/* descriptor of the file */
	__u32	place;			/* enum csd_place */
	__u64	offset;			/* in the file: a multiple of CSD_BLOCK_SIZE */
	__u64	length;			/* bytes of the range; 0: up to the end of the file */
	__u64	max_steps;		/* 0: as many as the range has blocks */
	__u64	args;			/* address of the function's arguments */
	__u32	args_size;		/* bytes: the args_size of the function */
	__u32	flags;			/* 0 */
};

/* CSD_IOC_STATUS on a run: how far it is. */
struct csd_status {
	__u64	position;		/* offset of the next block in the file, in bytes */
	__u64	end;			/* of the range, or of the file if that is less, bytes; */
					/* in a file of size 0: the end of what was read so far */
	__u64	steps[CSD_NR_PLACES];	/* blocks looked at, by place; [0] is 0 */
	__u64	emitted;		/* bytes of output so far */
	__u32	done;			/* 1: the function is done */
	__u32	why;			/* enum csd_why of the kernel's last block */
	__u64	chained;		/* of the kernel's blocks, those that chains read */
	__u32	unchained;		/* enum csd_unchained of the last that no chain read */
	__u32	pad;
};

/*
 * CSD_IOC_RESTART on a run, in any state, restarts it with other arguments. Output that was not
 * read yet is lost. It is quicker than making a new run, and so are the reads of the run that
 * follow.
 */
struct csd_restart {
	__u64	args;			/* address of the function's arguments */
	__u32	args_size;		/* bytes: the args_size of the function */
	__u32	flags;			/* 0 */
};

#define CSD_IOC_MAGIC	0xc5
#define CSD_IOC_RUN	_IOW(CSD_IOC_MAGIC, 0, struct csd_setup)
#define CSD_IOC_STATUS	_IOR(CSD_IOC_MAGIC, 1, struct csd_status)
#define CSD_IOC_RESTART	_IOW(CSD_IOC_MAGIC, 2, struct csd_restart)

#endif /* _UAPI_LINUX_CSD_H */
