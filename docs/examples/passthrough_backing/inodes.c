// SPDX-License-Identifier: LGPL-2.1-or-later
/* The inodes that the kernel knows, with their lookup counts. */
#include "passthrough.h"

#include <pthread.h>
#include <stdlib.h>

#define BUCKETS 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct inode *buckets[BUCKETS];
static struct inode root = { .fd = -1 };

int inodes_open_root(const char *source)
{
	root.fd = open(source, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root.fd < 0 ? -1 : 0;
}

struct inode *inode_of(fuse_ino_t nodeid)
{
	return nodeid == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)nodeid;
}

fuse_ino_t nodeid_of(const struct inode *inode)
{
	return inode == &root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)inode;
}

int inode_fd(fuse_ino_t nodeid)
{
	return inode_of(nodeid)->fd;
}

static struct inode **bucket(dev_t dev, ino_t ino)
{
	return &buckets[(ino ^ dev * 31) % BUCKETS];
}

/*
 * Returns the inode of a lower file, with its lookup count incremented, or NULL if there is no
 * memory. Takes over @fd: the inode keeps it, or it is closed.
 */
static struct inode *count(int fd, const struct stat *st)
{
	struct inode **head = bucket(st->st_dev, st->st_ino);
	struct inode *inode;

	pthread_mutex_lock(&lock);
	for (inode = *head; inode; inode = inode->next)
		if (inode->ino == st->st_ino && inode->dev == st->st_dev)
			break;
	if (inode) {
		close(fd);
	} else {
		inode = calloc(1, sizeof(*inode));
		if (!inode) {
			close(fd);
			goto out;
		}
		inode->fd = fd;
		inode->dev = st->st_dev;
		inode->ino = st->st_ino;
		inode->next = *head;
		*head = inode;
	}
	inode->lookups++;
out:
	pthread_mutex_unlock(&lock);
	return inode;
}

/**
 * inode_find - look a name up and increment the lookup count of its inode
 * @parent: nodeid of the directory
 * @name: name in the directory
 * @entry: the entry to fill in
 *
 * Return: 0 or an errno.
 */
int inode_find(fuse_ino_t parent, const char *name, struct fuse_entry_param *entry)
{
	struct inode *inode;
	int fd, err;

	memset(entry, 0, sizeof(*entry));
	fd = openat(inode_fd(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno;
	if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) {
		err = errno;
		close(fd);
		return err;
	}
	inode = count(fd, &entry->attr);
	if (!inode)
		return ENOMEM;
	entry->ino = nodeid_of(inode);
	entry->attr_timeout = options.timeout;
	entry->entry_timeout = options.timeout;
	return 0;
}

/**
 * inode_forget - decrease the lookup count of an inode, and free the inode at 0
 * @nodeid: nodeid of the inode; nothing happens for the root
 * @lookups: number to subtract from the lookup count
 */
void inode_forget(fuse_ino_t nodeid, uint64_t lookups)
{
	struct inode *inode = inode_of(nodeid);
	struct inode **link;

	if (inode == &root)
		return;
	backing_forget(inode);
	pthread_mutex_lock(&lock);
	inode->lookups -= lookups;
	if (inode->lookups) {
		inode = NULL;
	} else {
		for (link = bucket(inode->dev, inode->ino); *link != inode; link = &(*link)->next)
			;
		*link = inode->next;
	}
	pthread_mutex_unlock(&lock);
	if (inode) {
		close(inode->fd);
		free(inode);
	}
}
