// SPDX-License-Identifier: GPL-2.0
/*
 * The version of an inode: a hash of its number, size, mtime and ctime as the daemon reported them
 * last. Data, extended attributes and links that were read of a version stay true for as long as
 * new attributes have the same version, also when their timeout has ended. So a daemon that
 * promises nothing need not send the same bytes again. Its files are at most as old as in NFS,
 * which compares the attributes at open(2), too.
 *
 * The version is noted when a request is issued. What the request brings is at least as new. That
 * counts only if each later change has another version, as far as this is in the kernel's power:
 * the version must be settled, see efuse_version_settled(). It is racy before, as in the index of
 * Git. A READ shows what its handle shows, which may be an older file of that name. So its data has
 * the version that the file had when it was opened, too.
 *
 * If this machine's clock is set back, a change may get the times of an earlier one: all versions
 * are other ones from then on. With write-back FUSE decides the times itself, and there are no
 * versions.
 */
#include "cache_i.h"

#include <linux/siphash.h>

/* The coarsest granularity of times, that of FAT. */
#define EFUSE_GRAIN_SECS	2

/* How often this machine's clock has been set back since the mount. */
static u64 efuse_clock_steps(struct efuse_conn *ec)
{
	s64 offset = ktime_mono_to_real(0), last = atomic64_read(&ec->clock_offset);

	/* The step is counted before other CPUs see the new offset. */
	if (offset < last)
		atomic64_inc(&ec->clock_steps);
	if (offset != last)
		atomic64_try_cmpxchg(&ec->clock_offset, &last, offset);
	return atomic64_read(&ec->clock_steps);
}

/**
 * efuse_version_hash - make a version
 * @ec: connection
 * @ino: number of the inode
 * @size: in bytes
 * @mtime: time of the last change of its data
 * @ctime: time of its last change
 *
 * Return: the version, without the steps of the clock; 0: none
 */
u64 efuse_version_hash(const struct efuse_conn *ec, u64 ino, u64 size, struct timespec64 mtime,
		       struct timespec64 ctime)
{
	const u64 words[] = {
		ino, size, mtime.tv_sec, ctime.tv_sec, (u64)mtime.tv_nsec << 32 | ctime.tv_nsec,
	};

	if (ec->fc->writeback_cache || !(mtime.tv_sec | ctime.tv_sec))
		return 0;
	return siphash(words, sizeof(words), &ec->caller_key) ?: 1;
}

static struct timespec64 efuse_attr_time(u64 secs, u32 nsecs)
{
	/* As FUSE takes it. */
	return (struct timespec64) { secs, min_t(u32, nsecs, NSEC_PER_SEC - 1) };
}

/**
 * efuse_version_came - an inode has received attributes of the daemon
 * @inode: the inode
 * @attr: the attributes
 *
 * Context: under the lock of struct fuse_inode
 */
void efuse_version_came(struct inode *inode, const struct fuse_attr *attr)
{
	const struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(inode));
	struct efuse_version *version = &get_fuse_inode(inode)->efuse_version;
	struct timespec64 mtime = efuse_attr_time(attr->mtime, attr->mtimensec);
	struct timespec64 ctime = efuse_attr_time(attr->ctime, attr->ctimensec);
	u64 number = ec ? efuse_version_hash(ec, attr->ino, attr->size, mtime, ctime) : 0;

	if (version->number == number)
		return;
	version->number = number;
	/* The version may come back, but not what FUSE's pages have seen meanwhile. */
	version->pages = 0;
	version->since_ns = ktime_get_ns();
	version->newest = max(mtime.tv_sec, ctime.tv_sec);
}

/*
 * Will the next change of an inode have another version? Yes, if the newest time of this one is
 * longer ago than times are granular. And if it has been known for longer than that: then the clock
 * that stamps the change has gone on as well, wherever it is.
 */
bool efuse_version_settled(const struct efuse_version *version)
{
	return ktime_get_real_seconds() - version->newest > EFUSE_GRAIN_SECS ||
	       ktime_get_ns() - version->since_ns > EFUSE_GRAIN_SECS * NSEC_PER_SEC;
}

/* A version of efuse_version_hash() with the steps of the clock; 0: none. */
u64 efuse_version_stepped(struct efuse_conn *ec, u64 number)
{
	return number ? number + efuse_clock_steps(ec) : 0;
}

/* The version that an inode has; 0: none. Under fuse_inode.lock. */
u64 efuse_version_now(struct efuse_conn *ec, const struct fuse_inode *fi)
{
	return efuse_version_stepped(ec, fi->efuse_version.number);
}

/**
 * efuse_version_mixed - FUSE's pages of a file need not have one version any more
 * @inode: the file. A page that has come in another way than by a READ is in its page cache
 */
void efuse_version_mixed(struct inode *inode)
{
	struct fuse_inode *fi = get_fuse_inode(inode);

	spin_lock(&fi->lock);
	fi->efuse_version.pages = 0;
	fi->efuse_version.filled = true;
	spin_unlock(&fi->lock);
}
