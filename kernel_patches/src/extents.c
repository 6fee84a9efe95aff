// SPDX-License-Identifier: GPL-2.0
/*
 * Extents: which ranges of which files lie in which backing files. The daemon maps
 * them by ioctl(2); nothing but that makes a byte of a backing file reachable.
 *
 * A file's extents are a maple tree of ranges. Readers walk it under the
 * connection's SRCU, which they hold during their I/O, too: what is taken out of the
 * tree is freed behind it. An extent may stand in several ranges, since a later one
 * may have cut it in two; it counts them.
 */
#include "efuse_i.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs_stack.h>
#include <linux/iversion.h>
#include <linux/maple_tree.h>
#include <linux/uaccess.h>

#define EFUSE_EXTENT_FLAGS	(EFUSE_EXTENT_WRITE | EFUSE_EXTENT_TO_EOF | EFUSE_EXTENT_SEALED)

/**
 * struct efuse_backed - a file with extents
 * @extents: struct efuse_backing by offset; written under the connection's extents_mutex
 * @only: the extent that is all of them, if one is; to find it is most of a warm READ
 * @version: extents of an earlier one are void
 * @rcu: for freeing
 */
struct efuse_backed {
	struct maple_tree extents;
	struct efuse_backing *only;
	u64 version;
	struct rcu_head rcu;
};

static void efuse_backing_free(struct rcu_head *rcu)
{
	struct efuse_backing *eb = container_of(rcu, struct efuse_backing, rcu);

	fput(eb->file);
	put_cred(eb->cred);
	kfree(eb);
}

static void efuse_backed_free(struct rcu_head *rcu)
{
	struct efuse_backed *file = container_of(rcu, struct efuse_backed, rcu);
	struct efuse_backing *eb;
	unsigned long index = 0;

	/* Nobody else can reach it by now. */
	mt_for_each(&file->extents, eb, index, ULONG_MAX)
		if (!--eb->ranges)
			efuse_backing_free(&eb->rcu);
	mtree_destroy(&file->extents);
	kfree(file);
}

/* The bytes of the backing file are those of the registration: nobody may hold a way in. */
static bool efuse_seal_read(struct file *file, u64 *seal)
{
	struct inode *inode = file_inode(file);

	if (mapping_writably_mapped(file->f_mapping))
		return false;
	*seal = inode_query_iversion(inode);
	return true;
}

bool efuse_seal_holds(const struct efuse_backing *eb)
{
	u64 seal;

	return efuse_seal_read(eb->file, &seal) && seal == eb->seal;
}

/*
 * Stacked file systems end somewhere, and never in a circle: a backing file lies
 * on a file system of a lower depth than ours.
 */
static bool efuse_stack_deepen(struct efuse_conn *ec, const struct file *file)
{
	int depth = file_inode(file)->i_sb->s_stack_depth + 1;
	struct fuse_mount *fm;

	if (depth > FILESYSTEM_MAX_STACK_DEPTH)
		return false;
	down_read(&ec->fc->killsb);
	list_for_each_entry(fm, &ec->fc->mounts, fc_entry) {
		if (!fm->sb || file_inode(file)->i_sb == fm->sb) {
			up_read(&ec->fc->killsb);
			return false;
		}
		if (fm->sb->s_stack_depth < depth)
			fm->sb->s_stack_depth = depth;
	}
	up_read(&ec->fc->killsb);
	return true;
}

static int efuse_extent_check(const struct efuse_extent *extent)
{
	bool to_eof = extent->flags & EFUSE_EXTENT_TO_EOF;
	u64 length = to_eof ? 1 : extent->length;

	if (extent->flags & ~EFUSE_EXTENT_FLAGS || !extent->nodeid ||
	    (extent->flags & EFUSE_EXTENT_WRITE && extent->flags & EFUSE_EXTENT_SEALED) ||
	    (to_eof && extent->length) || !length)
		return -EINVAL;
	if (extent->offset > LLONG_MAX || extent->backing_offset > LLONG_MAX ||
	    length > LLONG_MAX - extent->offset || length > LLONG_MAX - extent->backing_offset)
		return -EOVERFLOW;
	return 0;
}

static int efuse_backing_check(struct efuse_conn *ec, struct file *file, u32 flags)
{
	if (S_ISDIR(file_inode(file)->i_mode))
		return -EISDIR;
	if (!S_ISREG(file_inode(file)->i_mode))
		return -EINVAL;
	if (!(file->f_mode & FMODE_READ) || !(file->f_mode & FMODE_CAN_READ) ||
	    !file->f_op->read_iter)
		return -EBADF;
	if (flags & EFUSE_EXTENT_WRITE) {
		if (!(file->f_mode & FMODE_WRITE) || !(file->f_mode & FMODE_CAN_WRITE) ||
		    !file->f_op->write_iter)
			return -EBADF;
		/* Its writes would all go to the end. */
		if (file->f_flags & O_APPEND)
			return -EINVAL;
	}
	if (flags & EFUSE_EXTENT_SEALED && !IS_I_VERSION(file_inode(file)))
		return -EOPNOTSUPP;
	return efuse_stack_deepen(ec, file) ? 0 : -ELOOP;
}

static struct efuse_backing *efuse_backing_new(struct efuse_conn *ec,
					       const struct efuse_extent *extent)
{
	struct efuse_backing *eb;
	struct file *file;
	int err;

	file = fget(extent->fd);
	if (!file)
		return ERR_PTR(-EBADF);
	err = efuse_backing_check(ec, file, extent->flags);
	if (err)
		goto out_put;
	err = -ENOMEM;
	eb = kzalloc(sizeof(*eb), GFP_KERNEL);
	if (!eb)
		goto out_put;
	eb->file = file;
	eb->offset = extent->offset;
	eb->backing_offset = extent->backing_offset;
	eb->version = extent->version;
	eb->flags = extent->flags;
	eb->ranges = 1;
	eb->resident = efuse_device_reads(file);
	err = -ETXTBSY;
	if (eb->flags & EFUSE_EXTENT_SEALED && !efuse_seal_read(file, &eb->seal))
		goto out_free;
	eb->cred = get_current_cred();
	return eb;

out_free:
	kfree(eb);
out_put:
	fput(file);
	return ERR_PTR(err);
}

/*
 * [first, last] is about to be stored over, or (@undo) was not after all: counts the
 * ranges of what stands there. Returns those that are in no range any more.
 */
static struct efuse_backing *efuse_backed_displace(struct efuse_backed *file,
						   unsigned long first, unsigned long last,
						   bool undo)
{
	MA_STATE(mas, &file->extents, first, first);
	struct efuse_backing *eb, *gone = NULL;

	rcu_read_lock();
	mas_for_each(&mas, eb, last) {
		int cut = (mas.index < first) + (mas.last > last) - 1;

		eb->ranges += undo ? -cut : cut;
		if (!eb->ranges) {
			eb->gone = gone;
			gone = eb;
		}
	}
	rcu_read_unlock();
	return gone;
}

/* @eb is NULL for a range without extents. */
static int efuse_backed_store(struct efuse_conn *ec, struct efuse_backed *file,
			      unsigned long first, unsigned long last, struct efuse_backing *eb)
{
	struct efuse_backing *gone, *next;
	int err;

	/* Not found any more before it is freed. */
	WRITE_ONCE(file->only, NULL);
	gone = efuse_backed_displace(file, first, last, false);
	err = mtree_store_range(&file->extents, first, last, eb, GFP_KERNEL);
	if (err) {
		efuse_backed_displace(file, first, last, true);
		return err;
	}
	if (!first && last == LLONG_MAX)
		smp_store_release(&file->only, eb); /* Whole, with the tree. */
	for (; gone; gone = next) {
		next = gone->gone;
		call_srcu(&ec->io_srcu, &gone->rcu, efuse_backing_free);
	}
	return 0;
}

/* The file's extents, made if there are none. Under extents_mutex and io_srcu. */
static struct efuse_backed *efuse_backed_get(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backed *file = xa_load(&ec->backed, nodeid);
	int err;

	if (file)
		return file;
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return ERR_PTR(-ENOMEM);
	mt_init_flags(&file->extents, MT_FLAGS_USE_RCU);
	err = xa_err(xa_store(&ec->backed, nodeid, file, GFP_KERNEL));
	if (err) {
		kfree(file);
		return ERR_PTR(err);
	}
	return file;
}

static u64 efuse_range_last(u64 offset, u64 length)
{
	return length ? offset + length - 1 : LLONG_MAX;
}

/*
 * Extents have changed: blocks that were kept may be of another content. In this order:
 * who reads after the change of the epoch finds the new extents.
 */
static void efuse_backed_changed(struct efuse_conn *ec, u64 nodeid, struct efuse_backed *file,
				 u64 version)
{
	if (version > file->version)
		WRITE_ONCE(file->version, version);
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_DATA));
	efuse_epoch_bump(ec, efuse_bucket_inode(nodeid, EFUSE_KIND_WHOLE));
}

/* What forgets the nodeid meanwhile finds the file, or has made it an orphan of io_srcu. */
static int efuse_backed_map(struct efuse_conn *ec, const struct efuse_extent *extent,
			    struct efuse_backing *eb)
{
	struct efuse_backed *file = efuse_backed_get(ec, extent->nodeid);
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	if (extent->version < file->version)
		return -ESTALE;
	err = efuse_backed_store(ec, file, extent->offset,
				 efuse_range_last(extent->offset, extent->length), eb);
	if (!err)
		efuse_backed_changed(ec, extent->nodeid, file, extent->version);
	return err;
}

static int efuse_map(struct efuse_conn *ec, const struct efuse_extent *extent)
{
	struct efuse_backing *eb;
	int err, idx;

	err = efuse_extent_check(extent);
	if (err)
		return err;
	eb = efuse_backing_new(ec, extent);
	if (IS_ERR(eb))
		return PTR_ERR(eb);

	mutex_lock(&ec->extents_mutex);
	ec->mapped = true;
	if (eb->resident)
		WRITE_ONCE(ec->on_device, true);
	idx = srcu_read_lock(&ec->io_srcu);
	err = efuse_backed_map(ec, extent, eb);
	srcu_read_unlock(&ec->io_srcu, idx);
	mutex_unlock(&ec->extents_mutex);
	if (err)
		efuse_backing_free(&eb->rcu);
	return err;
}

static int efuse_unmap(struct efuse_conn *ec, const struct efuse_unmap *range)
{
	struct efuse_backed *file;
	int err = 0, idx;

	if (!range->nodeid)
		return -EINVAL;
	if (range->offset > LLONG_MAX || range->length > LLONG_MAX - range->offset)
		return -EOVERFLOW;

	mutex_lock(&ec->extents_mutex);
	idx = srcu_read_lock(&ec->io_srcu);
	file = range->version ? efuse_backed_get(ec, range->nodeid) :
				xa_load(&ec->backed, range->nodeid);
	if (IS_ERR(file)) {
		err = PTR_ERR(file);
	} else if (file) {
		err = efuse_backed_store(ec, file, range->offset,
					 efuse_range_last(range->offset, range->length), NULL);
		if (!err)
			efuse_backed_changed(ec, range->nodeid, file, range->version);
	}
	srcu_read_unlock(&ec->io_srcu, idx);
	mutex_unlock(&ec->extents_mutex);

	/* Who found an extent before has done its I/O. */
	synchronize_srcu(&ec->io_srcu);
	return err;
}

/**
 * efuse_extents_ioctl - EFUSE_IOC_MAP and EFUSE_IOC_UNMAP
 * @ec: connection
 * @cmd: which
 * @argp: its argument
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno
 */
long efuse_extents_ioctl(struct efuse_conn *ec, unsigned int cmd, void __user *argp)
{
	struct efuse_extent extent;
	struct efuse_unmap range;

	/* As for FUSE's own backing files: they show up in no list of open files. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (cmd == EFUSE_IOC_MAP)
		return copy_from_user(&extent, argp, sizeof(extent)) ? -EFAULT :
		       efuse_map(ec, &extent);
	return copy_from_user(&range, argp, sizeof(range)) ? -EFAULT : efuse_unmap(ec, &range);
}

/**
 * efuse_extent_find - the extent that a byte of a file lies in
 * @req: a request for the file
 * @pos: of the byte
 * @length: how many bytes from there on lie in it, too
 *
 * Context: within an io_srcu read section of the connection, until whose end the
 * extent stands.
 * Return: the extent, or NULL where the daemon has to be asked; @req->reason says why.
 */
const struct efuse_backing *efuse_extent_find(struct efuse_req *req, u64 pos, u64 *length)
{
	struct efuse_backed *file = xa_load(&req->ec->backed, req->args->nodeid);
	/* Pairs with efuse_backed_store(). */
	const struct efuse_backing *eb = file ? smp_load_acquire(&file->only) : NULL;

	if (eb) {
		*length = LLONG_MAX - pos + 1ULL;
	} else if (file) {
		MA_STATE(mas, &file->extents, pos, pos);

		rcu_read_lock();
		eb = mas_walk(&mas);
		*length = mas.last - pos + 1;
		rcu_read_unlock();
	}
	if (!eb) {
		req->reason = EFUSE_UNMAPPED;
		return NULL;
	}
	if (eb->version < READ_ONCE(file->version) || !efuse_sealed(eb)) {
		req->reason = EFUSE_STALE;
		return NULL;
	}
	/* Ours may have been stacked upon meanwhile, and made into a circle. */
	if (file_inode(eb->file)->i_sb->s_stack_depth >= req->fm->sb->s_stack_depth) {
		req->reason = EFUSE_DECLINED;
		return NULL;
	}
	return eb;
}

static void efuse_backed_forget(struct efuse_conn *ec, u64 nodeid)
{
	struct efuse_backed *file = xa_erase(&ec->backed, nodeid);

	if (file)
		call_srcu(&ec->io_srcu, &file->rcu, efuse_backed_free);
}

/* The nodeid may come back as another file. */
void efuse_extents_forget(struct efuse_conn *ec, u64 nodeid)
{
	/* Most connections have none. */
	if (!xa_empty(&ec->backed))
		efuse_backed_forget(ec, nodeid);
}

int efuse_extents_init(struct efuse_conn *ec)
{
	mutex_init(&ec->extents_mutex);
	xa_init(&ec->backed);
	return init_srcu_struct(&ec->io_srcu);
}

/* The connection is unmounted: nothing is read or written any more. */
void efuse_extents_clear(struct efuse_conn *ec)
{
	struct efuse_backed *file;
	unsigned long nodeid;

	xa_for_each(&ec->backed, nodeid, file)
		efuse_backed_forget(ec, nodeid);
}

/* Waits until the backing files of an unmounted connection are let go. */
void efuse_extents_settle(struct efuse_conn *ec)
{
	if (!ec->mapped)
		return;
	srcu_barrier(&ec->io_srcu);
	flush_delayed_fput();
}

void efuse_extents_exit(struct efuse_conn *ec)
{
	efuse_extents_clear(ec);
	srcu_barrier(&ec->io_srcu);
	cleanup_srcu_struct(&ec->io_srcu);
	xa_destroy(&ec->backed);
}
