// SPDX-License-Identifier: LGPL-2.1-or-later
/* passthrough_backing: the command line and the session. */
#include "passthrough.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>

struct options options = { .timeout = 1.0 };

static const struct fuse_opt option_list[] = {
	{ "timeout=%lf", offsetof(struct options, timeout), 0 },
	{ "writeback", offsetof(struct options, writeback), 1 },
	{ "keep_cache", offsetof(struct options, keep_cache), 1 },
	FUSE_OPT_END,
};

/* The first argument is the lower directory. libfuse takes the second one, the mountpoint. */
static int take_source(void *data, const char *word, int key, struct fuse_args *args)
{
	(void)data;
	(void)args;
	if (key != FUSE_OPT_KEY_NONOPT || options.source)
		return 1;
	options.source = realpath(word, NULL);
	if (options.source)
		return 0;
	fprintf(stderr, "%s: %m\n", word);
	return -1;
}

static void op_init(void *data, struct fuse_conn_info *conn)
{
	(void)data;
	/* The daemon writes as root, so the kernel has to clear set-user-id bits. */
	conn->want &= ~FUSE_CAP_HANDLE_KILLPRIV;
	if (options.writeback)
		conn->want |= conn->capable & FUSE_CAP_WRITEBACK_CACHE;
}

static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int serve_on_threads(struct fuse_session *session, const struct fuse_cmdline_opts *cmdline)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int result;

	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_clone_fd(config, cmdline->clone_fd);
	fuse_loop_cfg_set_max_threads(config, cmdline->max_threads);
	result = fuse_session_loop_mt(session, config);
	fuse_loop_cfg_destroy(config);
	return result;
}

static int serve(struct fuse_session *session, const struct fuse_cmdline_opts *cmdline)
{
	int result;

	fuse_daemonize(cmdline->foreground);
	backing_start(fuse_session_fd(session));
	result = cmdline->singlethread ? fuse_session_loop(session) :
					 serve_on_threads(session, cmdline);
	/* A positive result is the signal that ended the loop, which is no error. */
	return result < 0;
}

static int mount_and_serve(struct fuse_args *args, const struct fuse_cmdline_opts *cmdline)
{
	struct fuse_lowlevel_ops ops = { .init = op_init };
	struct fuse_session *session;
	int status = 1;

	attributes_operations(&ops);
	directories_operations(&ops);
	files_operations(&ops);
	names_operations(&ops);
	xattrs_operations(&ops);
	session = fuse_session_new(args, &ops, sizeof(ops), NULL);
	if (!session)
		return 1;
	if (!fuse_set_signal_handlers(session)) {
		if (!fuse_session_mount(session, cmdline->mountpoint)) {
			status = serve(session, cmdline);
			fuse_session_unmount(session);
		}
		fuse_remove_signal_handlers(session);
	}
	fuse_session_destroy(session);
	return status;
}

static void usage(const char *program)
{
	printf("usage: %s [options] SOURCE MOUNTPOINT\n\n"
	       "    -o timeout=SECONDS     believe names and attributes so long (1)\n"
	       "    -o writeback           let the kernel gather writes\n"
	       "    -o keep_cache          keep a file's pages when it is opened again\n", program);
	fuse_cmdline_help();
	fuse_lowlevel_help();
}

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	struct fuse_cmdline_opts cmdline = { 0 };
	int status = 1;

	if (fuse_opt_parse(&args, &options, option_list, take_source) ||
	    fuse_opt_add_arg(&args, "-odefault_permissions") ||
	    fuse_parse_cmdline(&args, &cmdline))
		goto out;
	if (cmdline.show_help || cmdline.show_version || !options.source || !cmdline.mountpoint) {
		usage(argv[0]);
		status = !cmdline.show_help;
		goto out;
	}
	if (inodes_open_root(options.source)) {
		fprintf(stderr, "%s: %m\n", options.source);
		goto out;
	}
	umask(0);
	raise_descriptor_limit();
	status = mount_and_serve(&args, &cmdline);
out:
	free(cmdline.mountpoint);
	free(options.source);
	fuse_opt_free_args(&args);
	return status;
}
