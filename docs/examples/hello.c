// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A file system with one file, "hello". It uses libfuse's low-level interface and libefuse's loop:
 *
 *	cc -o hello hello.c $(pkg-config --cflags --libs libefuse)
 *	efuse run -- ./hello -f /mnt	# over channels
 *	./hello -f /mnt			# plain FUSE
 */
#define FUSE_USE_VERSION 312
#include <efuse.h>
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NODEID	2
#define TIMEOUT_S	1.0

static const char text[] = "Hello, world!\n";

static bool attributes(fuse_ino_t nodeid, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = nodeid;
	st->st_nlink = 1;
	st->st_mode = S_IFREG | 0444;
	st->st_size = sizeof(text) - 1;
	if (nodeid == FUSE_ROOT_ID) {
		st->st_nlink = 2;
		st->st_mode = S_IFDIR | 0755;
		st->st_size = 0;
	}
	return nodeid == FUSE_ROOT_ID || nodeid == FILE_NODEID;
}

static void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (attributes(nodeid, &st))
		fuse_reply_attr(req, &st, TIMEOUT_S);
	else
		fuse_reply_err(req, ENOENT);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {
		.ino = FILE_NODEID,
		.attr_timeout = TIMEOUT_S,
		.entry_timeout = TIMEOUT_S,
	};

	if (parent != FUSE_ROOT_ID || strcmp(name, "hello")) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	attributes(FILE_NODEID, &entry.attr);
	fuse_reply_entry(req, &entry);
}

/* Replies with up to @size bytes of @data, beginning at @offset. */
static void reply_part(fuse_req_t req, const char *data, size_t length, off_t offset, size_t size)
{
	size_t begin = (size_t)offset < length ? (size_t)offset : length;

	fuse_reply_buf(req, data + begin, length - begin < size ? length - begin : size);
}

static void op_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		       struct fuse_file_info *fi)
{
	struct stat st;
	char entries[128];
	size_t length;

	(void)fi;
	attributes(FILE_NODEID, &st);
	length = fuse_add_direntry(req, entries, sizeof(entries), "hello", &st, sizeof(entries));
	if (nodeid != FUSE_ROOT_ID)
		fuse_reply_err(req, ENOTDIR);
	else
		reply_part(req, entries, offset ? 0 : length, 0, size);
}

static void op_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	(void)fi;
	(void)nodeid;
	reply_part(req, text, sizeof(text) - 1, offset, size);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = op_lookup,
	.getattr = op_getattr,
	.readdir = op_readdir,
	.read = op_read,
};

static int serve(struct fuse_session *se, const struct fuse_cmdline_opts *options)
{
	int result = 1;

	if (fuse_set_signal_handlers(se))
		return 1;
	if (!fuse_session_mount(se, options->mountpoint)) {
		fuse_daemonize(options->foreground);
		result = efuse_session_loop_mt(se, 0);
		fuse_session_unmount(se);
	}
	fuse_remove_signal_handlers(se);
	return result;
}

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	struct fuse_cmdline_opts options;
	struct fuse_session *se;
	int result = 1;

	if (fuse_parse_cmdline(&args, &options))
		return 1;
	if (!options.mountpoint) {
		fuse_log(FUSE_LOG_ERR, "usage: %s [-f] MOUNTPOINT\n", argv[0]);
		return 1;
	}
	se = fuse_session_new(&args, &operations, sizeof(operations), NULL);
	if (se) {
		result = serve(se, &options);
		fuse_session_destroy(se);
	}
	free(options.mountpoint);
	fuse_opt_free_args(&args);
	return result ? 1 : 0;
}
