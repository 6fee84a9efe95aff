// SPDX-License-Identifier: GPL-2.0
/*
 * The content of a backing file: has it changed since FUSE's page cache and the data cache last
 * showed it?
 */
#include "io_i.h"

#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/timekeeping.h>

/* FAT rounds times to 2 s, but its s_time_gran does not tell. */
#define EFUSE_COARSEST_TIME_NS	(2 * NSEC_PER_SEC)

/* An overlay inode only has copies of the real inode's fields, which may be out of date. */
struct inode *efuse_content_inode(const struct file *file)
{
	return d_real_inode(file_dentry(file));
}

/*
 * Could a change right now leave the ctime as it is? Times of files have a granularity, so a second
 * change shortly after the first may not show.
 */
static bool efuse_ctime_racy(const struct inode *inode, struct timespec64 ctime)
{
	u64 grain_ns = max_t(u64, TICK_NSEC, inode->i_sb->s_time_gran);
	struct timespec64 now;

	if (!ctime.tv_nsec)
		grain_ns = EFUSE_COARSEST_TIME_NS;
	grain_ns *= 2;
	ktime_get_coarse_real_ts64(&now);
	return timespec64_to_ns(&now) - timespec64_to_ns(&ctime) <= (s64)grain_ns;
}

/* Can another machine, or a daemon, change the file? */
static bool efuse_inode_remote(const struct inode *inode)
{
	switch (inode->i_sb->s_magic) {
	case FUSE_SUPER_MAGIC:
	case NFS_SUPER_MAGIC:
	case SMB_SUPER_MAGIC:
	case SMB2_SUPER_MAGIC:
	case CIFS_SUPER_MAGIC:
	case V9FS_MAGIC:
	case CEPH_SUPER_MAGIC:
	case AFS_SUPER_MAGIC:
	case AFS_FS_MAGIC:
	case CODA_SUPER_MAGIC:
		return true;
	}
	return false;
}

/* May the content change without a change of the ctime, or before the ctime changes? */
static bool efuse_content_untold(const struct inode *inode)
{
	/*
	 * Only the first store through a mapping changes the times, and only where pages are
	 * written back.
	 */
	return efuse_inode_remote(inode) || inode->i_sb->s_stack_depth > 0 ||
	       mapping_writably_mapped(inode->i_mapping) ||
	       !mapping_can_writeback(inode->i_mapping);
}

/* Is the inode's lock held exclusively, or does a task wait to hold it exclusively? */
static bool efuse_inode_write_locked(struct inode *inode)
{
	if (!inode_is_locked(inode))
		return false;
	if (!inode_trylock_shared(inode))
		return true;
	inode_unlock_shared(inode);
	return false;
}

/**
 * efuse_content_look - note which content a backing file has now
 * @content: filled in
 * @file: the backing file
 *
 * A write(2) sets the ctime before it copies, which may take long. It holds the inode's lock until
 * it is done. Asynchronous direct I/O drops the lock early, but is counted in i_dio_count until it
 * is done.
 */
void efuse_content_look(struct efuse_content *content, const struct file *file)
{
	struct inode *inode = efuse_content_inode(file);

	content->ctime = inode_get_ctime(inode);
	content->size = i_size_read(inode);
	smp_rmb(); /* A write(2) that begins after this sets a later ctime. */
	content->racy = efuse_inode_write_locked(inode);
	smp_rmb(); /* Direct I/O is counted before it drops the lock. */
	content->racy |= atomic_read(&inode->i_dio_count) || efuse_content_untold(inode) ||
			 efuse_ctime_racy(inode, content->ctime);
}

static bool efuse_content_same(const struct efuse_content *content, const struct inode *inode)
{
	struct timespec64 ctime = inode_get_ctime(inode);

	return timespec64_equal(&content->ctime, &ctime) && content->size == i_size_read(inode);
}

/*
 * Sets the content of an extent. @racy is true during the change, so that a lockless reader does
 * not take a mix of old and new values for a known content.
 */
static void efuse_content_note(struct efuse_backing *eb, const struct efuse_content *content)
{
	spin_lock(&eb->content_lock);
	WRITE_ONCE(eb->content.racy, true);
	smp_wmb(); /* Pairs with efuse_content_seen(). */
	eb->content.ctime = content->ctime;
	eb->content.size = content->size;
	smp_wmb(); /* Pairs with efuse_content_seen(). */
	WRITE_ONCE(eb->content.racy, content->racy);
	spin_unlock(&eb->content_lock);
}

/*
 * To be called after the content of a backing file was read. The data cache and FUSE's page cache
 * may hold older content. After a byte of the new content was shown, no older byte may be shown.
 * @before is the result of efuse_content_look() before the read: a change during the read shows at
 * the next look.
 *
 * Returns true if the content may have changed without a change of its times. Then only the bytes
 * just read are known to be new, and the function that shows them has to drop FUSE's pages of them.
 * It is not done here for all pages: a writable mapping of the backing file makes this true for
 * every READ, and each READ would drop all pages.
 */
bool efuse_content_seen(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb,
			const struct efuse_content *before)
{
	bool same = efuse_content_same(&eb->content, efuse_content_inode(eb->file));

	smp_rmb(); /* Pairs with efuse_content_note(). */
	if (same && !READ_ONCE(eb->content.racy) && !before->racy)
		return false;
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_CONTENT));
	if (!same || !before->racy)
		efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
	efuse_content_note(eb, before);
	return same && before->racy;
}

/**
 * efuse_content_shown - a backing file's content was shown by another way than a READ
 * @ec: connection
 * @nodeid: nodeid of the file above
 * @eb: the extent, held
 *
 * FUSE's pages and the data cache show nothing older afterwards. Not to be called in exclusive
 * mode.
 */
void efuse_content_shown(struct efuse_conn *ec, u64 nodeid, struct efuse_backing *eb)
{
	struct efuse_content now;

	efuse_content_look(&now, eb->file);
	if (efuse_content_seen(ec, nodeid, eb, &now))
		efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_PAGES));
}
