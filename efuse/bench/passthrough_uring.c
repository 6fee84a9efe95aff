// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A FUSE daemon without libfuse that serves another directory over io_uring, with or without zero
 * copy: passthrough_uring -f [-o OPTION,...] SOURCE MOUNTPOINT
 *
 *   timeout=0		the kernel keeps no attributes and names
 *   cache=never	files bypass the page cache of the mount
 *   writeback		the kernel's write-back cache
 *   zero_copy		READs and WRITEs move data between the lower file and the pages of the
 *			request; otherwise they move it through a buffer of the daemon
 *   max_size=BYTES	most bytes of a READ or WRITE, whole pages, by default 1 MiB
 *   max_read=BYTES	most bytes of a READ, any number from 4096
 *   counts=FILE	a file in which the daemon counts what it does, see struct counts
 *
 * There is a ring for each CPU, with a thread that carries out the requests that this CPU sends.
 * The data of a READ is moved by io_uring, too: the operation on the lower file is linked to the
 * command that delivers the reply, so a READ costs one system call with zero copy and without. If
 * the operation moves fewer bytes than wanted, io_uring drops the linked command, and the thread
 * sends another one with the right reply. A WRITE is the same with zero copy. Without it, the reply
 * overwrites the data, so the data is written by pwrite(2) before.
 *
 * With zero copy, io_uring's table of buffers has a slot for each entry of the ring. The kernel
 * puts the pages of a request into the slot of the entry that brings the request.
 *
 * Extended attributes, locks and special files are not supported. New files belong to the daemon's
 * user.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/*
 * What Linux 7.3 adds to <linux/fuse.h>, under names of our own: the headers of an older kernel do
 * not have it.
 */
#define INIT_OVER_IO_URING	(1ULL << 41)
#define INIT_HAS_BUFPOOL	(1ULL << 43)
#define OPEN_ZERO_COPY		(1U << 8)

enum command { REGISTER = 1, COMMIT_AND_FETCH = 2, ADD_QUEUE = 3, ADD_BUFPOOL = 4 };

#define QUEUE_ZERO_COPY		1ULL
#define REQUEST_ZERO_COPY	1ULL

/**
 * struct header - what kernel and daemon exchange for a request, except for its payload
 * @in_out: struct fuse_in_header, then the reply's struct fuse_out_header
 * @argument: the opcode's own structure
 * @flags: REQUEST_ZERO_COPY or 0
 * @commit: number of the request, for the command that delivers the reply
 * @payload_size: bytes of the payload, of the request or of the reply
 * @offset: place of the payload in the queue's buffers, bytes
 * @reserved: not used
 */
struct header {
	union {
		struct fuse_in_header in;
		struct fuse_out_header out;
		char room[128];
	} in_out;
	char argument[128];
	uint64_t flags;
	uint64_t commit;
	uint32_t payload_size;
	uint32_t offset;
	uint64_t reserved;
};

_Static_assert(sizeof(struct header) == 288, "the kernel's header of a request");

/* The argument of a command, in the second half of its submission. */
struct argument {
	uint64_t flags;
	uint64_t commit;
	uint16_t queue;
	uint8_t padding[6];
	union {
		struct {
			uint64_t address;
			uint32_t size;
			uint32_t reserved;
		} pool;
		uint16_t slot;
	};
};

_Static_assert(sizeof(struct argument) == 40, "the kernel's argument of a command");

#define ENTRIES		8U		/* requests of a ring that are in work at the same time */
#define LEAST_BUFFER	(1UL << 20)	/* the kernel may need more for a buffer than max_size */
#define BUCKETS		4096U
#define OF_A_MOVE	1ULL		/* in user_data, with the address of an entry */

/**
 * struct counts - what the daemon has done, shared with the processes that map the same file
 * @requests: requests that came over a ring
 * @data: READs and WRITEs
 * @zero_copied: READs and WRITEs whose data was moved to or from the pages of the request
 * @bytes: bytes that io_uring moved to or from lower files, which /proc/PID/io does not count
 */
struct counts {
	uint64_t requests;
	uint64_t data;
	uint64_t zero_copied;
	uint64_t bytes;
};

/**
 * struct node - a file, directory or link that the kernel knows; its address is its number
 * @fd: the lower file, open with O_PATH
 * @device: device of the lower file
 * @inode: inode number of the lower file
 * @lookups: the kernel's references
 * @next: next in the bucket
 */
struct node {
	int fd;
	dev_t device;
	ino_t inode;
	uint64_t lookups;
	struct node *next;
};

/**
 * struct entry - one of a ring's places for requests
 * @header: shared with the kernel
 * @in: the request's header, which the reply overwrites
 * @iov: describes @header to the kernel
 * @slot: index in the ring's table of buffers, with zero copy
 * @wanted: bytes that the operation on the lower file is to move; 0 if there is none
 */
struct entry {
	struct header header;
	struct fuse_in_header in;
	struct iovec iov[2];
	uint16_t slot;
	uint32_t wanted;
};

/**
 * struct queue - the requests of a CPU
 * @ring: used by @thread only
 * @thread: carries out the requests
 * @number: number of the CPU
 * @pool: buffers for payloads, from which the kernel takes one for each request that needs it
 * @entries: places for requests
 */
struct queue {
	struct io_uring ring;
	pthread_t thread;
	unsigned int number;
	char *pool;
	struct entry entries[ENTRIES];
};

static int device;
static const char *mountpoint;
static bool direct, writeback, zero_copy;
static uint32_t max_size = 1U << 20, max_read = 1U << 20;
static struct counts unshared, *counts = &unshared;

static struct node root = { .lookups = 2 };
static struct node *buckets[BUCKETS];
static pthread_mutex_t nodes_lock = PTHREAD_MUTEX_INITIALIZER;

static void count(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* Ends the daemon without leaving a mount that nothing serves. */
static void __attribute__((noreturn)) end(const char *what, int error)
{
	errno = error;
	warn("%s", what);
	umount2(mountpoint, MNT_DETACH);
	_exit(1);
}

/* Nodes */

static struct node *node_of(uint64_t number)
{
	return number == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)number;
}

static struct node **place_of(dev_t dev, ino_t inode)
{
	struct node **at = &buckets[(inode ^ dev) % BUCKETS];

	while (*at && ((*at)->inode != inode || (*at)->device != dev))
		at = &(*at)->next;
	return at;
}

static void forget(uint64_t number, uint64_t lookups)
{
	struct node *node = node_of(number), **at;

	if (node == &root)
		return;
	pthread_mutex_lock(&nodes_lock);
	node->lookups -= lookups;
	if (!node->lookups) {
		at = place_of(node->device, node->inode);
		*at = node->next;
		close(node->fd);
		free(node);
	}
	pthread_mutex_unlock(&nodes_lock);
}

/* The path of a node for calls that do not take a descriptor of O_PATH. */
static const char *path_of(const struct node *node, char path[32])
{
	snprintf(path, 32, "/proc/self/fd/%d", node->fd);
	return path;
}

static void attributes(struct fuse_attr *attr, const struct stat *st)
{
	*attr = (struct fuse_attr){
		.ino = st->st_ino, .size = st->st_size, .blocks = st->st_blocks,
		.atime = st->st_atim.tv_sec, .atimensec = st->st_atim.tv_nsec,
		.mtime = st->st_mtim.tv_sec, .mtimensec = st->st_mtim.tv_nsec,
		.ctime = st->st_ctim.tv_sec, .ctimensec = st->st_ctim.tv_nsec,
		.mode = st->st_mode, .nlink = st->st_nlink, .uid = st->st_uid,
		.gid = st->st_gid, .rdev = st->st_rdev, .blksize = st->st_blksize,
	};
}

/* Each function below answers a request: it returns the size of the reply or a negative errno. */

static int get_attributes(const struct node *node, struct fuse_attr_out *out)
{
	struct stat st;

	if (fstatat(node->fd, "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
		return -errno;
	memset(out, 0, sizeof(*out));
	attributes(&out->attr, &st);
	return sizeof(*out);
}

static int look_up(const struct node *parent, const char *name, struct fuse_entry_out *out)
{
	int fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct node **at, *node;
	struct stat st;

	if (fd < 0)
		return -errno;
	if (fstatat(fd, "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) {
		int error = errno;

		close(fd);
		return -error;
	}
	pthread_mutex_lock(&nodes_lock);
	at = place_of(st.st_dev, st.st_ino);
	node = *at;
	if (node) {
		close(fd);
	} else {
		node = calloc(1, sizeof(*node));
		if (!node)
			end("no memory", ENOMEM);
		*node = (struct node){ .fd = fd, .device = st.st_dev, .inode = st.st_ino };
		*at = node;
	}
	node->lookups++;
	pthread_mutex_unlock(&nodes_lock);
	memset(out, 0, sizeof(*out));
	out->nodeid = (uintptr_t)node;
	attributes(&out->attr, &st);
	return sizeof(*out);
}

static int set_attributes(const struct node *node, const struct fuse_setattr_in *in,
			  struct fuse_attr_out *out)
{
	uid_t uid = in->valid & FATTR_UID ? in->uid : (uid_t)-1;
	gid_t gid = in->valid & FATTR_GID ? in->gid : (gid_t)-1;
	struct timespec times[2] = {
		{ .tv_sec = in->atime, .tv_nsec = in->atimensec },
		{ .tv_sec = in->mtime, .tv_nsec = in->mtimensec },
	};
	char path[32];

	if (in->valid & FATTR_MODE && chmod(path_of(node, path), in->mode))
		return -errno;
	if (in->valid & (FATTR_UID | FATTR_GID) &&
	    fchownat(node->fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (in->valid & FATTR_SIZE &&
	    (in->valid & FATTR_FH ? ftruncate((int)in->fh, in->size) :
				    truncate(path_of(node, path), in->size)))
		return -errno;
	if (in->valid & (FATTR_ATIME | FATTR_MTIME)) {
		if (in->valid & FATTR_ATIME_NOW)
			times[0].tv_nsec = UTIME_NOW;
		else if (!(in->valid & FATTR_ATIME))
			times[0].tv_nsec = UTIME_OMIT;
		if (in->valid & FATTR_MTIME_NOW)
			times[1].tv_nsec = UTIME_NOW;
		else if (!(in->valid & FATTR_MTIME))
			times[1].tv_nsec = UTIME_OMIT;
		if (utimensat(AT_FDCWD, path_of(node, path), times, 0))
			return -errno;
	}
	return get_attributes(node, out);
}

/* The flags by which a lower file is opened. The kernel may read what the program only writes. */
static int lower_flags(int flags)
{
	if (writeback && (flags & O_ACCMODE) == O_WRONLY)
		flags = (flags & ~O_ACCMODE) | O_RDWR;
	if (writeback)
		flags &= ~O_APPEND;
	return (flags & ~O_NOFOLLOW) | O_CLOEXEC;
}

static void opened(struct fuse_open_out *out, int fd)
{
	memset(out, 0, sizeof(*out));
	out->fh = (uint64_t)fd;
	out->open_flags = (direct ? FOPEN_DIRECT_IO : 0) | (zero_copy ? OPEN_ZERO_COPY : 0);
}

static int open_file(const struct node *node, const struct fuse_open_in *in,
		     struct fuse_open_out *out)
{
	char path[32];
	int fd = open(path_of(node, path), lower_flags((int)in->flags & ~(O_CREAT | O_EXCL)));

	if (fd < 0)
		return -errno;
	opened(out, fd);
	return sizeof(*out);
}

static int create_file(const struct node *parent, const char *name,
		       const struct fuse_create_in *in, char *reply)
{
	int fd = openat(parent->fd, name, lower_flags((int)in->flags) | O_CREAT | O_NOFOLLOW,
			in->mode);
	int size;

	if (fd < 0)
		return -errno;
	size = look_up(parent, name, (struct fuse_entry_out *)reply);
	if (size < 0) {
		close(fd);
		return size;
	}
	opened((struct fuse_open_out *)(reply + size), fd);
	return size + (int)sizeof(struct fuse_open_out);
}

static int open_directory(const struct node *node, struct fuse_open_out *out)
{
	int fd = openat(node->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);

	if (!directory)
		return -errno;
	memset(out, 0, sizeof(*out));
	out->fh = (uintptr_t)directory;
	return sizeof(*out);
}

static int read_directory(const struct fuse_read_in *in, char *reply)
{
	DIR *directory = (DIR *)(uintptr_t)in->fh;
	const struct dirent *found;
	uint32_t size = 0;

	seekdir(directory, (long)in->offset);
	for (;;) {
		struct fuse_dirent *entry = (struct fuse_dirent *)(reply + size);
		size_t length;

		errno = 0;
		found = readdir(directory);
		if (!found)
			return errno && !size ? -errno : (int)size;
		length = strlen(found->d_name);
		if (size + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length) > in->size)
			return (int)size;
		memset(entry, 0, FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length));
		entry->ino = found->d_ino;
		entry->off = (uint64_t)found->d_off;
		entry->namelen = (uint32_t)length;
		entry->type = found->d_type;
		memcpy(entry->name, found->d_name, length);
		size += (uint32_t)FUSE_DIRENT_SIZE(entry);
	}
}

static int read_link(const struct node *node, char *reply)
{
	ssize_t size = readlinkat(node->fd, "", reply, 4095);

	return size < 0 ? -errno : (int)size;
}

static int status_of(const struct node *node, struct fuse_statfs_out *out)
{
	struct statvfs st;

	if (fstatvfs(node->fd, &st))
		return -errno;
	memset(out, 0, sizeof(*out));
	out->st = (struct fuse_kstatfs){
		.blocks = st.f_blocks, .bfree = st.f_bfree, .bavail = st.f_bavail,
		.files = st.f_files, .ffree = st.f_ffree, .bsize = (uint32_t)st.f_bsize,
		.namelen = (uint32_t)st.f_namemax, .frsize = (uint32_t)st.f_frsize,
	};
	return sizeof(*out);
}

static int made(int result, const struct node *parent, const char *name, void *reply)
{
	return result ? -errno : look_up(parent, name, reply);
}

static int done(int result)
{
	return result ? -errno : 0;
}

/* The second of two names in a payload. */
static const char *second(const char *data)
{
	return data + strlen(data) + 1;
}

/* Carries out a request other than READ and WRITE. @data is its payload and that of the reply. */
static int answer(const struct fuse_in_header *in, const void *argument, char *data)
{
	const struct node *node = node_of(in->nodeid);
	char path[32], name[NAME_MAX + 1];

	switch (in->opcode) {
	case FUSE_LOOKUP:
	case FUSE_MKDIR:
	case FUSE_CREATE:
	case FUSE_LINK:
		/* The reply overwrites the name. */
		snprintf(name, sizeof(name), "%s", data);
		break;
	case FUSE_SYMLINK:
		snprintf(name, sizeof(name), "%s", data);
		return made(symlinkat(second(data), node->fd, name), node, name, data);
	}
	switch (in->opcode) {
	case FUSE_LOOKUP:
		return look_up(node, name, (struct fuse_entry_out *)data);
	case FUSE_GETATTR:
		return get_attributes(node, (struct fuse_attr_out *)data);
	case FUSE_SETATTR:
		return set_attributes(node, argument, (struct fuse_attr_out *)data);
	case FUSE_READLINK:
		return read_link(node, data);
	case FUSE_MKDIR:
		return made(mkdirat(node->fd, name, ((const struct fuse_mkdir_in *)argument)->mode),
			    node, name, data);
	case FUSE_UNLINK:
		return done(unlinkat(node->fd, data, 0));
	case FUSE_RMDIR:
		return done(unlinkat(node->fd, data, AT_REMOVEDIR));
	case FUSE_RENAME: {
		const struct fuse_rename_in *to = argument;

		return done(renameat(node->fd, data, node_of(to->newdir)->fd,
				     second(data)));
	}
	case FUSE_RENAME2: {
		const struct fuse_rename2_in *to = argument;

		return done(renameat2(node->fd, data, node_of(to->newdir)->fd,
				      second(data), to->flags));
	}
	case FUSE_LINK: {
		const struct fuse_link_in *from = argument;

		return made(linkat(AT_FDCWD, path_of(node_of(from->oldnodeid), path), node->fd,
				   name, AT_SYMLINK_FOLLOW), node, name, data);
	}
	case FUSE_OPEN:
		return open_file(node, argument, (struct fuse_open_out *)data);
	case FUSE_CREATE:
		return create_file(node, name, argument, data);
	case FUSE_STATFS:
		return status_of(node, (struct fuse_statfs_out *)data);
	case FUSE_RELEASE:
		return done(close((int)((const struct fuse_release_in *)argument)->fh));
	case FUSE_FLUSH:
		return done(close(dup((int)((const struct fuse_flush_in *)argument)->fh)));
	case FUSE_FSYNC: {
		const struct fuse_fsync_in *file = argument;

		return done(file->fsync_flags & FUSE_FSYNC_FDATASYNC ? fdatasync((int)file->fh) :
			    fsync((int)file->fh));
	}
	case FUSE_FALLOCATE: {
		const struct fuse_fallocate_in *range = argument;

		return done(fallocate((int)range->fh, (int)range->mode, (off_t)range->offset,
				      (off_t)range->length));
	}
	case FUSE_OPENDIR:
		return open_directory(node, (struct fuse_open_out *)data);
	case FUSE_READDIR:
		return read_directory(argument, data);
	case FUSE_RELEASEDIR: {
		const struct fuse_release_in *file = argument;

		return done(closedir((DIR *)(uintptr_t)file->fh));
	}
	case FUSE_FSYNCDIR: {
		const struct fuse_fsync_in *file = argument;

		return done(fsync(dirfd((DIR *)(uintptr_t)file->fh)));
	}
	case FUSE_DESTROY:
		return 0;
	default:
		return -ENOSYS;
	}
}

/* Rings */

static struct io_uring_sqe *submission(struct queue *queue)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	if (!sqe)
		end("the ring is full", ENOSPC);
	return sqe;
}

/* Adds a command for the kernel's FUSE. Returns its argument. */
static struct argument *command(struct queue *queue, enum command number, struct entry *entry)
{
	struct io_uring_sqe *sqe = submission(queue);

	/* liburing clears only the first half of a submission. */
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = device;
	sqe->cmd_op = number;
	io_uring_sqe_set_data(sqe, entry);
	((struct argument *)sqe->cmd)->queue = (uint16_t)queue->number;
	return (struct argument *)sqe->cmd;
}

/* Sets the reply of an entry's request: @size bytes, or a negative errno. */
static void reply(struct entry *entry, int size)
{
	struct fuse_out_header *out = &entry->header.in_out.out;

	*out = (struct fuse_out_header){ .unique = entry->in.unique };
	out->error = size < 0 ? size : 0;
	entry->header.payload_size = size < 0 ? 0 : (uint32_t)size;
	out->len = (uint32_t)sizeof(*out) + entry->header.payload_size;
}

static void commit(struct queue *queue, struct entry *entry)
{
	command(queue, COMMIT_AND_FETCH, entry)->commit = entry->header.commit;
}

static char *payload_of(struct queue *queue, struct entry *entry)
{
	return queue->pool + entry->header.offset;
}

/* Sets the reply of a READ or WRITE that has moved @moved bytes, or failed with a negative errno. */
static void reply_moved(struct queue *queue, struct entry *entry, int moved)
{
	if (entry->in.opcode == FUSE_WRITE && moved >= 0) {
		struct fuse_write_out *out = (struct fuse_write_out *)payload_of(queue, entry);

		*out = (struct fuse_write_out){ .size = (uint32_t)moved };
		moved = (int)sizeof(*out);
	}
	reply(entry, moved);
}

/*
 * Submits the operation on the lower file for a READ or WRITE. The next submission is linked to it.
 * Only a failure of the operation is reported.
 */
static void move(struct queue *queue, struct entry *entry, const struct fuse_read_in *in)
{
	bool in_place = entry->header.flags & REQUEST_ZERO_COPY;
	struct io_uring_sqe *sqe = submission(queue);

	memset(sqe, 0, 2 * sizeof(*sqe));
	/* The address in a buffer that the kernel has registered is the offset from its start. */
	if (!in_place)
		io_uring_prep_read(sqe, (int)in->fh, payload_of(queue, entry), in->size,
				   in->offset);
	else if (entry->in.opcode == FUSE_READ)
		io_uring_prep_read_fixed(sqe, (int)in->fh, NULL, in->size, in->offset, entry->slot);
	else
		io_uring_prep_write_fixed(sqe, (int)in->fh, NULL, in->size, in->offset,
					  entry->slot);
	sqe->flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
	io_uring_sqe_set_data64(sqe, (uintptr_t)entry | OF_A_MOVE);
	count(&counts->bytes, in->size);
}

static void read_or_write(struct queue *queue, struct entry *entry)
{
	/* struct fuse_write_in begins like this, too. */
	const struct fuse_read_in *in = (const void *)entry->header.argument;

	count(&counts->data, 1);
	entry->wanted = in->size;
	if (entry->header.flags & REQUEST_ZERO_COPY) {
		count(&counts->zero_copied, 1);
	} else if (entry->in.opcode == FUSE_WRITE) {
		ssize_t moved = pwrite((int)in->fh, payload_of(queue, entry), in->size,
				       (off_t)in->offset);

		reply_moved(queue, entry, moved < 0 ? -errno : (int)moved);
		return;
	}
	move(queue, entry, in);
	reply_moved(queue, entry, (int)in->size);
}

static void take(struct queue *queue, struct entry *entry)
{
	entry->in = entry->header.in_out.in;
	count(&counts->requests, 1);
	if (entry->in.opcode == FUSE_READ || entry->in.opcode == FUSE_WRITE)
		read_or_write(queue, entry);
	else
		reply(entry, answer(&entry->in, entry->header.argument, payload_of(queue, entry)));
	commit(queue, entry);
}

static void completed(struct queue *queue, const struct io_uring_cqe *cqe)
{
	struct entry *entry = (struct entry *)(uintptr_t)(cqe->user_data & ~OF_A_MOVE);

	if (cqe->user_data & OF_A_MOVE) {
		/* It has failed, or moved too little: the reply has not been delivered. */
		count(&counts->bytes, (uint64_t)(cqe->res > 0 ? cqe->res : 0) - entry->wanted);
		reply_moved(queue, entry, cqe->res);
		commit(queue, entry);
	} else if (!cqe->res) {
		take(queue, entry);
	} else if (cqe->res != -ENOTCONN && cqe->res != -ECONNABORTED && cqe->res != -ECANCELED) {
		/* Otherwise the mount is gone, which the thread that reads the device notices. */
		end("FUSE over io_uring", -cqe->res);
	}
}

/* Submits a command that sets something up, and waits for its end. */
static void carry_out(struct queue *queue, const char *what)
{
	struct io_uring_cqe *cqe;
	int error = io_uring_submit(&queue->ring);

	if (error >= 0)
		error = io_uring_wait_cqe(&queue->ring, &cqe);
	if (error < 0 || cqe->res < 0)
		end(what, error < 0 ? -error : -cqe->res);
	io_uring_cqe_seen(&queue->ring, cqe);
}

static void set_up(struct queue *queue)
{
	size_t size = ENTRIES * (max_size > LEAST_BUFFER ? max_size : LEAST_BUFFER);
	struct io_uring_params parameters = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN,
	};
	struct argument *argument;
	unsigned int i;
	int error;

	/* An entry has two submissions at a time at most, or three if an operation has failed. */
	error = io_uring_queue_init_params(4 * ENTRIES, &queue->ring, &parameters);
	if (!error && zero_copy)
		error = io_uring_register_buffers_sparse(&queue->ring, ENTRIES);
	if (error)
		end("io_uring", -error);
	queue->pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (queue->pool == MAP_FAILED)
		end("no memory", errno);
	command(queue, ADD_QUEUE, NULL)->flags = zero_copy ? QUEUE_ZERO_COPY : 0;
	carry_out(queue, zero_copy ? "a queue with zero copy" : "a queue");
	argument = command(queue, ADD_BUFPOOL, NULL);
	argument->pool.address = (uintptr_t)queue->pool;
	argument->pool.size = (uint32_t)size;
	carry_out(queue, "a pool of buffers");
	for (i = 0; i < ENTRIES; i++) {
		struct entry *entry = &queue->entries[i];
		struct io_uring_sqe *sqe;

		entry->iov[0] = (struct iovec){ &entry->header, sizeof(entry->header) };
		entry->slot = (uint16_t)i;
		argument = command(queue, REGISTER, entry);
		argument->slot = zero_copy ? entry->slot : 0;
		sqe = (struct io_uring_sqe *)((char *)argument - offsetof(struct io_uring_sqe, cmd));
		sqe->addr = (uintptr_t)entry->iov;
		sqe->len = 2;
	}
}

static void *serve(void *of)
{
	struct queue *queue = of;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(queue->number, &cpus);
	/* The CPU may be offline: then the queue has no requests. */
	sched_setaffinity(0, sizeof(cpus), &cpus);
	set_up(queue);
	for (;;) {
		int error = io_uring_submit_and_wait(&queue->ring, 1);
		struct io_uring_cqe *cqe;
		unsigned int head, seen = 0;

		if (error < 0 && error != -EINTR)
			end("io_uring", -error);
		io_uring_for_each_cqe(&queue->ring, head, cqe) {
			completed(queue, cqe);
			seen++;
		}
		io_uring_cq_advance(&queue->ring, seen);
	}
}

static void start_queues(void)
{
	/* FUSE uses rings once each possible CPU has one. */
	long i, nr = sysconf(_SC_NPROCESSORS_CONF);
	struct queue *queues = calloc((size_t)nr, sizeof(*queues));

	if (!queues)
		end("no memory", ENOMEM);
	for (i = 0; i < nr; i++) {
		queues[i].number = (unsigned int)i;
		if (pthread_create(&queues[i].thread, NULL, serve, &queues[i]))
			end("no thread", EAGAIN);
	}
}

/* The device, which brings INIT, and what has no reply */

static void answer_on_device(uint64_t unique, int error, const void *data, size_t size)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + size), .error = error, .unique = unique,
	};
	struct iovec iov[2] = { { &out, sizeof(out) }, { (void *)data, size } };

	if (writev(device, iov, 2) < 0 && errno != ENOENT)
		end("a reply", errno);
}

static void initialize(const struct fuse_in_header *in, const struct fuse_init_in *init)
{
	uint64_t wanted = INIT_OVER_IO_URING | INIT_HAS_BUFPOOL;
	uint64_t offered = init->flags | (uint64_t)init->flags2 << 32;
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = init->max_readahead, .time_gran = 1,
		.max_write = max_size, .max_pages = (uint16_t)(max_size / 4096),
		.flags2 = INIT_OVER_IO_URING >> 32,
	};

	if ((offered & wanted) != wanted)
		end("this kernel's FUSE has no io_uring with pools of buffers", EOPNOTSUPP);
	out.flags = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES |
		    FUSE_AUTO_INVAL_DATA | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
		    FUSE_INIT_EXT | (writeback ? FUSE_WRITEBACK_CACHE : 0);
	out.flags &= init->flags;
	answer_on_device(in->unique, 0, &out, sizeof(out));
	start_queues();
}

static void forget_all(const struct fuse_batch_forget_in *in)
{
	const struct fuse_forget_one *each = (const void *)(in + 1);
	uint32_t i;

	for (i = 0; i < in->count; i++)
		forget(each[i].nodeid, each[i].nlookup);
}

static void serve_device(void)
{
	/* The kernel wants room for the largest WRITE. */
	size_t size = max_size + 8192;
	char *buffer = malloc(size);

	if (!buffer)
		end("no memory", ENOMEM);
	for (;;) {
		const struct fuse_in_header *in = (const void *)buffer;
		const void *argument = in + 1;
		ssize_t got = read(device, buffer, size);

		if (got < 0 && errno == ENODEV)
			return;
		if (got < 0 && errno != EINTR && errno != ENOENT && errno != EAGAIN)
			end("/dev/fuse", errno);
		if (got < (ssize_t)sizeof(*in))
			continue;
		switch (in->opcode) {
		case FUSE_INIT:
			initialize(in, argument);
			break;
		case FUSE_FORGET:
			forget(in->nodeid, ((const struct fuse_forget_in *)argument)->nlookup);
			break;
		case FUSE_BATCH_FORGET:
			forget_all(argument);
			break;
		case FUSE_INTERRUPT:
			break;
		default:
			answer_on_device(in->unique, -ENOSYS, NULL, 0);
		}
	}
}

static void mount_at(const char *source)
{
	char options[128];
	struct stat st;

	root.fd = open(source, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root.fd < 0 || fstat(root.fd, &st))
		err(1, "%s", source);
	root.device = st.st_dev;
	root.inode = st.st_ino;
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0)
		err(1, "/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=%o,user_id=%u,group_id=%u,max_read=%u",
		 device, st.st_mode & S_IFMT, getuid(), getgid(), max_read);
	if (mount("passthrough_uring", mountpoint, "fuse.passthrough_uring",
		  MS_NOSUID | MS_NODEV, options))
		err(1, "%s", mountpoint);
}

static void map_counts(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*counts)))
		err(1, "%s", file);
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (counts == MAP_FAILED)
		err(1, "%s", file);
	close(fd);
}

static void set_option(const char *name)
{
	if (!strcmp(name, "cache=never"))
		direct = true;
	else if (!strcmp(name, "writeback"))
		writeback = true;
	else if (!strcmp(name, "zero_copy"))
		zero_copy = true;
	else if (!strncmp(name, "max_size=", 9))
		max_size = (uint32_t)strtoul(name + 9, NULL, 10);
	else if (!strncmp(name, "max_read=", 9))
		max_read = (uint32_t)strtoul(name + 9, NULL, 10);
	else if (!strncmp(name, "counts=", 7))
		map_counts(name + 7);
	else if (strcmp(name, "timeout=0"))
		errx(2, "unknown option: %s", name);
}

int main(int argc, char **argv)
{
	char *option;
	int letter;

	while ((letter = getopt(argc, argv, "fo:")) != -1) {
		if (letter == '?')
			return 2;
		if (letter != 'o')
			continue;
		for (option = strtok(optarg, ","); option; option = strtok(NULL, ","))
			set_option(option);
	}
	if (argc - optind != 2)
		errx(2, "usage: passthrough_uring -f [-o OPTION,...] SOURCE MOUNTPOINT");
	if (!max_size || max_size % 4096 || max_size / 4096 > UINT16_MAX)
		errx(2, "max_size has to be whole pages");
	mountpoint = argv[optind + 1];
	mount_at(argv[optind]);
	serve_device();
	return 0;
}
