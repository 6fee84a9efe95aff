/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Declarations that the source files of this program share. */
#ifndef PASSTHROUGH_H
#define PASSTHROUGH_H

#define _GNU_SOURCE
#define FUSE_USE_VERSION 312

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A lower inode that the kernel knows. Its nodeid is its address; the nodeid of the root is 1. */
struct inode {
	struct inode *next;	/* in the same hash bucket */
	dev_t dev;
	ino_t ino;
	int fd;			/* O_PATH; keeps the inode number from being used again */
	uint64_t lookups;	/* lookup count */
	int mapped;		/* MAPPED_* */
};

/* Whether the kernel may read, or read and write, the lower file by itself. */
enum { MAPPED_NOT, MAPPED_READ, MAPPED_WRITE };

struct options {
	char *source;
	double timeout;		/* entry and attribute timeout in seconds */
	int writeback;		/* use the kernel's write-back cache */
	int keep_cache;		/* keep the pages of a file when it is opened again */
};

extern struct options options;

/* The path "/proc/self/fd/N", by which system calls reach the file of an O_PATH descriptor. */
struct fd_path {
	char text[32];
};

static inline struct fd_path fd_path(int fd)
{
	struct fd_path path;

	snprintf(path.text, sizeof(path.text), "/proc/self/fd/%d", fd);
	return path;
}

/* Replies with errno if @failed, else with success. */
static inline void reply(fuse_req_t req, bool failed)
{
	fuse_reply_err(req, failed ? errno : 0);
}

/* inodes.c */
int inodes_open_root(const char *source);
struct inode *inode_of(fuse_ino_t nodeid);
fuse_ino_t nodeid_of(const struct inode *inode);
int inode_fd(fuse_ino_t nodeid);
int inode_find(fuse_ino_t parent, const char *name, struct fuse_entry_param *entry);
void inode_forget(fuse_ino_t nodeid, uint64_t lookups);

/* backing.c */
void backing_start(int device);
void backing_map(struct inode *inode, int fd, int flags, bool created);
void backing_forget(struct inode *inode);
void backing_unmap(struct inode *inode);

/* Each function fills in the operations of one source file. */
void attributes_operations(struct fuse_lowlevel_ops *ops);
void directories_operations(struct fuse_lowlevel_ops *ops);
void files_operations(struct fuse_lowlevel_ops *ops);
void names_operations(struct fuse_lowlevel_ops *ops);
void xattrs_operations(struct fuse_lowlevel_ops *ops);

/* names.c: gives a new file in the directory @parent to the user of @ctx. */
void names_give(const struct fuse_ctx *ctx, int parent, const char *name);

#endif
