// SPDX-License-Identifier: GPL-2.0
/*
 * Access to backing files for other modules: csd.ko reads them to run functions over their data.
 *
 * A read of the backing file returns the same data as a READ by the direct path. Access is refused
 * where no READ may take the direct path, by the open file, the extents or a forced path. The other
 * module then has to read the file itself.
 *
 * The programs of the mount do not decide: there is no request to ask read() or select_path()
 * about. A caller who has the file open for reading gets its bytes.
 */
#include "io_i.h"

#include <linux/efuse_lower.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>

/* noexport.h removes the exports of fs/fuse. The functions here must be exported. */
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL_GPL(symbol) _EXPORT_SYMBOL(symbol, "GPL")

/* The connection of a regular eFuse file that READs may read from backing files, or NULL. */
static struct efuse_conn *efuse_lower_conn(const struct file *file)
{
	const struct super_block *sb = file_inode(file)->i_sb;
	const struct fuse_file *ff = file->private_data;
	struct efuse_conn *ec;

	if (sb->s_magic != FUSE_SUPER_MAGIC || sb->s_type->owner != THIS_MODULE ||
	    !S_ISREG(file_inode(file)->i_mode) || fuse_is_bad(file_inode(file)))
		return NULL;
	ec = efuse_conn_get(ff->fm->fc);
	if (!ec || !efuse_connected(ff->fm->fc) || ff->open_flags & FOPEN_DIRECT_IO ||
	    !xa_load(&ec->backed, ff->nodeid))
		return NULL;
	return efuse_path_backed(ec) ? ec : NULL;
}

/* Write back what was written to the file, so that a read of the backing file finds it. */
static int efuse_lower_flush(struct inode *inode)
{
	bool stored = mapping_writably_mapped(inode->i_mapping);
	int err;

	if (!stored && efuse_file_clean(inode))
		return 0;
	err = inode_lock_killable(inode);
	if (err)
		return err;
	/* A store through a mapping marks the page dirty when it is unmapped, at the latest. */
	if (stored)
		unmap_mapping_pages(inode->i_mapping, 0, 0, false);
	err = filemap_write_and_wait(inode->i_mapping);
	/* FUSE may end write-back when it has copied the pages. Wait for its WRITEs, too. */
	fuse_set_nowrite(inode);
	fuse_release_nowrite(inode);
	inode_unlock(inode);
	return err;
}

/*
 * Find the range in an extent. The daemon may have been @asked for the size. On success the extent
 * is held and the credentials are overridden.
 */
static int efuse_lower_find(struct efuse_conn *ec, const struct file *file, u64 position,
			    u64 length, bool asked, struct efuse_lower *lower)
{
	struct fuse_file *ff = file->private_data;
	struct fuse_args args = {
		.opcode = FUSE_READ, .nodeid = ff->nodeid, .efuse.asked = asked,
	};
	struct efuse_req req = { .ec = ec, .fm = ff->fm, .args = &args };
	u64 room, size, end = U64_MAX;
	bool told;
	struct efuse_backing *eb;
	struct efuse_use *use;

	use = efuse_extent_begin(&req, position, &room);
	if (!use)
		return -EOPNOTSUPP;
	eb = use->extent;
	lower->position = position - eb->offset + eb->backing_offset;
	size = i_size_read(file_inode(eb->file));
	/* An extent of fixed length does not end the file: the daemon's size does. */
	told = efuse_extent_ends(eb) || (efuse_size_settled(ec, ff->nodeid) &&
					 efuse_size_told(ec, ff->fm, &args, ff->nodeid, &end));
	/* The seal of an extent would have to be checked again after each read. */
	if (!told || eb->flags & EFUSE_EXTENT_SEALED || lower->position >= size ||
	    position >= end) {
		efuse_extent_end(ec, use);
		return -EOPNOTSUPP;
	}
	lower->length = min(min3(length, room, size - lower->position), end - position);
	lower->file = eb->file;
	lower->use = use;
	lower->atime = inode_get_atime(file_inode(eb->file));
	lower->cred = efuse_act_as(eb->cred);
	return 0;
}

/**
 * efuse_lower_begin - find the backing file of a range of a file, and hold it
 * @file: a file of any file system, open for reading
 * @position: offset of the range in the file, bytes
 * @length: length of the range, bytes; not 0
 * @lower: filled in; its length may be less than @length
 *
 * Data that was written to the file before is in the backing file afterwards. Until
 * efuse_lower_end(), the calling task has the credentials of the task that mapped the extent, and
 * unmapping the range waits.
 *
 * Context: process context, may sleep; takes the inode's lock if the file has unwritten data.
 * Return: 0, then efuse_lower_end() must be called by the same task; -EOPNOTSUPP if the data can
 *	   only be read through @file; or another negative errno
 */
int efuse_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower)
{
	struct efuse_conn *ec = efuse_lower_conn(file);
	bool asked = false;
	int err;

	if (!ec)
		return -EOPNOTSUPP;
	err = efuse_lower_flush(file_inode(file));
	if (err)
		return err;
	/* If the daemon cannot be asked, it decides whether it can be read. */
	if (efuse_extents_size(ec, file, 0, &asked))
		return -EOPNOTSUPP;
	lower->inode = file_inode(file);
	return efuse_lower_find(ec, file, position, length, asked, lower);
}
EXPORT_SYMBOL_GPL(efuse_lower_begin);

/**
 * efuse_lower_end - release the range that efuse_lower_begin() has found
 * @lower: the range
 *
 * Restores the task's credentials and updates the access time.
 *
 * Context: process context, may sleep; the task that called efuse_lower_begin().
 */
void efuse_lower_end(struct efuse_lower *lower)
{
	struct efuse_conn *ec = efuse_conn_get(get_fuse_conn(lower->inode));

	efuse_act_as(lower->cred);
	if (READ_ONCE(ec->consistency) != EFUSE_EXCLUSIVE)
		efuse_content_shown(ec, get_node_id(lower->inode), lower->use->extent);
	efuse_backing_accessed(ec, get_node_id(lower->inode), file_inode(lower->file),
			       lower->atime);
	fuse_invalidate_atime(lower->inode);
	efuse_extent_end(ec, lower->use);
}
EXPORT_SYMBOL_GPL(efuse_lower_end);
