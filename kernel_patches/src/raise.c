// SPDX-License-Identifier: GPL-2.0
/*
 * Replies of the daemon, before the caller sees them: the bits that are the
 * kernel's own are taken out, and in exclusive mode FUSE's time-outs are raised,
 * since its dentry and inode caches are faster than any handler.
 */
#include "efuse_i.h"

/* What no daemon may claim. */
void efuse_strip(struct fuse_args *args)
{
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (entry)
		entry->attr.flags &= ~EFUSE_ATTR_UNCOUNTED;
	if (open)
		open->open_flags &= ~EFUSE_FOPEN_LOCAL;
}

static void efuse_raise_entry(const struct efuse_req *req, struct fuse_entry_out *entry)
{
	/* A dentry is seen by all callers. */
	if (efuse_conn_caller_free(req->ec))
		entry->entry_valid = EFUSE_RAISED_SECS;
	if (entry->nodeid)
		entry->attr_valid = EFUSE_RAISED_SECS;
}

static void efuse_raise_dirents(const struct efuse_req *req)
{
	struct page *page = efuse_out_page(req->args);
	size_t left = req->ret > 0 ? min_t(size_t, req->ret, PAGE_SIZE) : 0;
	char *buf;

	if (!page)
		return;
	buf = page_address(page);
	while (left >= FUSE_NAME_OFFSET_DIRENTPLUS) {
		struct fuse_direntplus *dirent = (struct fuse_direntplus *)buf;
		size_t size = FUSE_DIRENTPLUS_SIZE(dirent);

		if (size > left)
			break;
		if (dirent->entry_out.nodeid)
			efuse_raise_entry(req, &dirent->entry_out);
		buf += size;
		left -= size;
	}
}

/**
 * efuse_raise - raise the time-outs of a reply, in exclusive mode
 * @req: a request that the daemon answered, learned from already
 *
 * LOOKUP's ENOENT becomes nodeid 0, which says the same and has a time-out.
 */
void efuse_raise(struct efuse_req *req)
{
	struct fuse_args *args = req->args;
	struct fuse_entry_out *entry = efuse_out_entry(args);
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_open_out *open = efuse_out_open(args);

	if (READ_ONCE(req->ec->consistency) != EFUSE_EXCLUSIVE)
		return;
	if (args->opcode == FUSE_LOOKUP && req->error == -ENOENT && entry &&
	    efuse_conn_caller_free(req->ec)) {
		memset(entry, 0, sizeof(*entry));
		req->error = 0;
		req->ret = 0;
	}
	if (req->error)
		return;

	if (entry)
		efuse_raise_entry(req, entry);
	if (attr)
		attr->attr_valid = EFUSE_RAISED_SECS;
	if (open && !(open->open_flags & (FOPEN_DIRECT_IO | FOPEN_PASSTHROUGH)) &&
	    !(efuse_arg_flags(args) & O_TRUNC))
		open->open_flags |= FOPEN_KEEP_CACHE |
				    (args->opcode == FUSE_OPENDIR ? FOPEN_CACHE_DIR : 0);
	if (args->opcode == FUSE_READDIRPLUS)
		efuse_raise_dirents(req);
}
