// SPDX-License-Identifier: GPL-2.0
/*
 * Backing files for other modules that read: csd.ko runs functions over them.
 *
 * What is read there is what a READ by the direct path would bring, and it is refused where such a
 * READ would be: whoever asks has FUSE's own way left.
 */
#include "efuse_i.h"

#include <linux/efuse_lower.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pagemap.h>

/* noexport.h is about the names of fs/fuse. */
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL_GPL(symbol) _EXPORT_SYMBOL(symbol, "GPL")

/* The connection of a regular file of ours that a READ may pass the daemon by for. */
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

/* What was written to the file goes where READ finds it. */
static int efuse_lower_flush(struct inode *inode)
{
	bool stored = mapping_writably_mapped(inode->i_mapping);
	int err;

	if (!stored && efuse_file_clean(inode))
		return 0;
	err = inode_lock_killable(inode);
	if (err)
		return err;
	/* What is stored through a map makes a page dirty at the latest when that is taken away. */
	if (stored)
		unmap_mapping_pages(inode->i_mapping, 0, 0, false);
	err = filemap_write_and_wait(inode->i_mapping);
	/* FUSE ends write-back when it has copied the pages: its WRITEs are waited for, too. */
	fuse_set_nowrite(inode);
	fuse_release_nowrite(inode);
	inode_unlock(inode);
	return err;
}

/* The extent is held on success. */
static int efuse_lower_find(struct efuse_conn *ec, const struct file *file, u64 position,
			    u64 length, struct efuse_lower *lower)
{
	struct fuse_file *ff = file->private_data;
	struct fuse_args args = { .opcode = FUSE_READ, .nodeid = ff->nodeid };
	struct efuse_req req = { .ec = ec, .fm = ff->fm, .args = &args };
	u64 room, size, end = U64_MAX;
	struct efuse_backing *eb;
	struct efuse_use *use;

	use = efuse_extent_begin(&req, position, &room);
	if (!use)
		return -EOPNOTSUPP;
	eb = use->extent;
	lower->position = position - eb->offset + eb->backing_offset;
	size = i_size_read(file_inode(eb->file));
	/* In an extent of fixed length the file ends where FUSE says. */
	if (!(eb->flags & EFUSE_EXTENT_TO_EOF))
		end = i_size_read(file_inode(file));
	/* What is sealed would have to be looked at again behind each read. */
	if (eb->flags & EFUSE_EXTENT_SEALED || lower->position >= size || position >= end) {
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
 * efuse_lower_begin - find out where a range of a file lies, and keep it there
 * @file: open for reading, of any file system
 * @position: of the range in the file
 * @length: of it in bytes, not 0
 * @lower: is told; its length may be less than @length
 *
 * What was written to the file before is in the backing file then. Until
 * efuse_lower_end() the caller acts as who mapped the range, and who unmaps it waits.
 *
 * Context: process context, may sleep; takes the inode's lock if something was written.
 * Return: 0, to be followed by efuse_lower_end() in the same task; -EOPNOTSUPP: only
 *         read(2) has the bytes; or another negative errno
 */
int efuse_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower)
{
	struct efuse_conn *ec = efuse_lower_conn(file);
	int err;

	if (!ec)
		return -EOPNOTSUPP;
	err = efuse_lower_flush(file_inode(file));
	if (err)
		return err;
	lower->inode = file_inode(file);
	return efuse_lower_find(ec, file, position, length, lower);
}
EXPORT_SYMBOL_GPL(efuse_lower_begin);

/**
 * efuse_lower_end - let go what efuse_lower_begin() has found
 * @lower: it
 *
 * Context: as efuse_lower_begin(), in the same task.
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
