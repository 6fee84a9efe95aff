// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * loop_daemon MAX_THREADS MOUNTPOINT...: a daemon that uses libfuse's own loop; 0 threads means
 * libfuse's default. What a read of a file does depends on its name. One process serves all mounts.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <dlfcn.h>
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE		300000	/* of each file, in bytes; more than a slot holds */
#define SIGCANCEL	32	/* the signal of glibc's pthread_cancel() */

struct mount {
	struct fuse_session *se;
	const char *mountpoint;
	unsigned int max_threads;
	pthread_t thread;
	int result;
};

struct answer {
	fuse_req_t req;
	size_t size;
	off_t offset;
};

static char data[SIZE];

static const struct mount *mount_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static void reply(fuse_req_t req, size_t size, off_t offset)
{
	if (offset > SIZE)
		offset = SIZE;
	if (size > (size_t)(SIZE - offset))
		size = SIZE - offset;
	fuse_reply_buf(req, data + offset, size);
}

static pthread_mutex_t repliers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t repliers_gone = PTHREAD_COND_INITIALIZER;
static int repliers;

static void *reply_in_thread(void *arg)
{
	struct answer *answer = arg;

	reply(answer->req, answer->size, answer->offset);
	free(answer);
	pthread_mutex_lock(&repliers_lock);
	if (!--repliers)
		pthread_cond_signal(&repliers_gone);
	pthread_mutex_unlock(&repliers_lock);
	return NULL;
}

static void wait_for_repliers(void)
{
	pthread_mutex_lock(&repliers_lock);
	while (repliers)
		pthread_cond_wait(&repliers_gone, &repliers_lock);
	pthread_mutex_unlock(&repliers_lock);
}

/* Waits until the test writes a byte. */
static void wait_for_test(void)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
		;
}

static int cpus(void)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	return CPU_COUNT(&set);
}

static int init_cpus;

static void *count_cpus(void *arg)
{
	*(int *)arg = cpus();
	return NULL;
}

static int cpus_of_thread(void)
{
	pthread_t thread;
	int count = -1;

	if (!pthread_create(&thread, NULL, count_cpus, &count))
		pthread_join(thread, NULL);
	return count;
}

static int status_of(pid_t child)
{
	int status;

	return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1;
}

static int cpus_of_child(void)
{
	pid_t child = fork();

	if (!child)
		_exit(cpus());
	return status_of(child);
}

#define COUNT "exit $(nproc)"

static int cpus_of_spawned(void)
{
	char *const words[] = { "sh", "-c", COUNT, NULL };
	pid_t child;

	return posix_spawnp(&child, "sh", NULL, NULL, words, environ) ? -1 : status_of(child);
}

/* A function of its own, because the child of vfork() shares the caller's frame. */
static __attribute__((noinline)) int cpus_of_vforked(bool by_list)
{
	char *const words[] = { "sh", "-c", COUNT, NULL };
	pid_t child = vfork();

	if (!child) {
		if (by_list)
			execlp("sh", "sh", "-c", COUNT, NULL);
		else
			execvp("sh", words);
		_exit(255);
	}
	return status_of(child);
}

/* A child that pins itself to one CPU. */
static int cpus_of_bound(void)
{
	cpu_set_t one;
	pid_t child = fork();

	if (child)
		return status_of(child);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	execlp("sh", "sh", "-c", COUNT, NULL);
	_exit(255);
}

static int cpus_of_piped(void)
{
	FILE *child = popen(COUNT, "r");
	int status = child ? pclose(child) : -1;

	return status < 0 ? -1 : WEXITSTATUS(status);
}

static void do_plain(fuse_req_t req, size_t size, off_t offset)
{
	reply(req, size, offset);
}

/* Another thread replies, perhaps after this one has taken the next request. */
static void do_thread(fuse_req_t req, size_t size, off_t offset)
{
	struct answer *answer = malloc(sizeof(*answer));
	pthread_t thread;

	*answer = (struct answer){ req, size, offset };
	pthread_mutex_lock(&repliers_lock);
	repliers++;
	pthread_mutex_unlock(&repliers_lock);
	if (pthread_create(&thread, NULL, reply_in_thread, answer))
		abort();
	pthread_detach(thread);
}

/* After its reply, the handler does not return until the test writes a byte. */
static void do_early(fuse_req_t req, size_t size, off_t offset)
{
	reply(req, size, offset);
	wait_for_test();
}

static void do_block(fuse_req_t req, size_t size, off_t offset)
{
	wait_for_test();
	reply(req, size, offset);
}

static void do_notify(fuse_req_t req, size_t size, off_t offset);

static void do_exit(fuse_req_t req, size_t size, off_t offset)
{
	struct fuse_session *se = mount_of(req)->se;

	reply(req, size, offset);
	fuse_session_exit(se);
}

static atomic_bool is_held, cancelled_in_write;
static pthread_t held;
static sem_t cancelled;

/* The session ends, and the worker is cancelled just before it writes its reply. */
static void do_cancelled(fuse_req_t req, size_t size, off_t offset)
{
	struct fuse_session *se = mount_of(req)->se;

	reply(req, size, offset);
	held = pthread_self();
	atomic_store(&is_held, true);
	fuse_session_exit(se);
}

static bool is_held_thread(pthread_t thread)
{
	return atomic_load(&is_held) && pthread_equal(thread, held);
}

/*
 * Reproduces a race of glibc's pthread_cancel(): the worker takes a request after pthread_cancel()
 * has looked at the thread, and before the signal arrives.
 */
static atomic_bool is_crossing;
static atomic_int worker_tid;
static sem_t goes_on, signalled;

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int cancel_late(int (*cancel)(pthread_t thread))
{
	pthread_t other;

	/* The first pthread_cancel() installs the handler of the signal. */
	pthread_create(&other, NULL, wait_for_ever, NULL);
	cancel(other);
	pthread_join(other, NULL);
	puts("cancelling");
	fflush(stdout);
	sem_wait(&goes_on);
	tgkill(getpid(), atomic_load(&worker_tid), SIGCANCEL);
	sem_post(&signalled);
	return 0;
}

static int (*setcancelstate)(int state, int *before);

/* Find it early: a thread that is cancelled during dlsym() would keep a lock. */
static __attribute__((constructor)) void find_setcancelstate(void)
{
	setcancelstate = dlsym(RTLD_NEXT, "pthread_setcancelstate");
}

/* Replaces libc's, also for libefuse. A worker calls it before it waits or is cancelled. */
int pthread_setcancelstate(int state, int *before)
{
	if (state == PTHREAD_CANCEL_ENABLE && atomic_load(&is_crossing) &&
	    atomic_exchange(&worker_tid, gettid()))
		sem_post(&goes_on);
	return setcancelstate(state, before);
}

/* The first read arms the race, a later one takes part in it. */
static void do_crossed(fuse_req_t req, size_t size, off_t offset)
{
	if (atomic_exchange(&is_crossing, true)) {
		puts("begun");
		sem_post(&goes_on);
		sem_wait(&signalled);
		puts("ended");
	}
	reply(req, size, offset);
}

/* Replaces libc's, also for libefuse. */
int pthread_cancel(pthread_t thread)
{
	int (*next)(pthread_t) = dlsym(RTLD_NEXT, "pthread_cancel");
	int result = atomic_load(&is_crossing) ? cancel_late(next) : next(thread);

	if (is_held_thread(thread))
		sem_post(&cancelled);
	return result;
}

/*
 * Replaces libc's, also for libefuse. The held worker waits up to a second to be cancelled. If the
 * loop ends only after the reply is written, the wait is in vain.
 */
ssize_t write(int fd, const void *buffer, size_t size)
{
	ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
	struct timespec end;

	if (is_held_thread(pthread_self())) {
		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_sec++;
		if (!sem_timedwait(&cancelled, &end))
			atomic_store(&cancelled_in_write, true);
	}
	return next(fd, buffer, size);
}

static void do_affinity(fuse_req_t req, size_t size, off_t offset)
{
	char text[100];
	int before = cpus();
	int length = snprintf(text, sizeof(text), "%d %d %d %d %d %d %d %d %d %d %d\n", before,
			      cpus(), init_cpus, cpus_of_thread(), cpus_of_child(),
			      cpus_of_spawned(), cpus_of_vforked(true), cpus_of_vforked(false),
			      cpus_of_piped(), WEXITSTATUS(system(COUNT)), cpus_of_bound());

	(void)size;
	fuse_reply_buf(req, text, offset ? 0 : length);
}

static void reply_interrupted(fuse_req_t req, void *unused)
{
	(void)unused;
	fuse_reply_err(req, EINTR);
}

/* Only an interrupt ends it. */
static void do_interrupt(fuse_req_t req, size_t size, off_t offset)
{
	(void)size;
	(void)offset;
	fuse_req_interrupt_func(req, reply_interrupted, NULL);
	fputs("waiting\n", stdout);
	fflush(stdout);
}

static const struct file {
	const char *name;
	void (*read)(fuse_req_t req, size_t size, off_t offset);
} files[] = {
	{ "plain", do_plain },
	{ "thread", do_thread },
	{ "early", do_early },
	{ "block", do_block },
	{ "notify", do_notify },
	{ "exit", do_exit },
	{ "cancelled", do_cancelled },
	{ "crossed", do_crossed },
	{ "affinity", do_affinity },
	{ "interrupt", do_interrupt },
};

#define NR_FILES	(sizeof(files) / sizeof(files[0]))
#define FIRST_NODEID	2
#define NOTIFY_NODEID	(FIRST_NODEID + 4)

/* Until the reply arrives, the kernel holds the locks of the pages that are read. */
static void do_notify(fuse_req_t req, size_t size, off_t offset)
{
	struct fuse_session *se = mount_of(req)->se;

	reply(req, size, offset);
	fuse_lowlevel_notify_inval_inode(se, NOTIFY_NODEID, offset, size);
}

static void attributes(fuse_ino_t nodeid, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = nodeid;
	st->st_nlink = 1;
	st->st_mode = nodeid == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
	st->st_size = nodeid == FUSE_ROOT_ID ? 0 : SIZE;
}

static void op_init(void *mount, struct fuse_conn_info *conn)
{
	(void)mount;
	(void)conn;
	init_cpus = cpus_of_thread();
}

static void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	attributes(nodeid, &st);
	fuse_reply_attr(req, &st, 0);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = { 0 };
	unsigned int i;

	for (i = 0; i < NR_FILES && strcmp(files[i].name, name); i++)
		;
	if (parent != FUSE_ROOT_ID || i == NR_FILES) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	entry.ino = FIRST_NODEID + i;
	attributes(entry.ino, &entry.attr);
	fuse_reply_entry(req, &entry);
}

static void op_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	fi->direct_io = nodeid != NOTIFY_NODEID;
	fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	(void)fi;
	files[nodeid - FIRST_NODEID].read(req, size, offset);
}

static const struct fuse_lowlevel_ops operations = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.open = op_open,
	.read = op_read,
};

static void *serve(void *arg)
{
	struct mount *mount = arg;
	struct fuse_loop_config *config = fuse_loop_cfg_create();

	if (mount->max_threads)
		fuse_loop_cfg_set_max_threads(config, mount->max_threads);
	mount->result = fuse_session_loop_mt(mount->se, config);
	fuse_loop_cfg_destroy(config);
	wait_for_repliers();
	fuse_session_unmount(mount->se);
	return NULL;
}

static int begin(struct mount *mount, char *program)
{
	char *argv[] = { program, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);

	mount->se = fuse_session_new(&args, &operations, sizeof(operations), mount);
	fuse_opt_free_args(&args);
	return mount->se ? fuse_session_mount(mount->se, mount->mountpoint) : -1;
}

int main(int argc, char **argv)
{
	struct mount *mounts = calloc(argc, sizeof(*mounts));
	int i, count = argc - 2, result;

	sem_init(&cancelled, 0, 0);
	sem_init(&goes_on, 0, 0);
	sem_init(&signalled, 0, 0);
	for (i = 0; i < SIZE; i++)
		data[i] = (char)(i * 31 + i / 251);
	for (i = 0; i < count; i++) {
		mounts[i].mountpoint = argv[i + 2];
		mounts[i].max_threads = (unsigned int)atoi(argv[1]);
		if (begin(&mounts[i], argv[0]))
			return 100;
	}
	fuse_set_signal_handlers(mounts[0].se);
	for (i = 1; i < count; i++)
		pthread_create(&mounts[i].thread, NULL, serve, &mounts[i]);
	serve(&mounts[0]);
	for (i = 1; i < count; i++)
		pthread_join(mounts[i].thread, NULL);
	fuse_remove_signal_handlers(mounts[0].se);
	result = mounts[0].result;
	for (i = 0; i < count; i++)
		fuse_session_destroy(mounts[i].se);
	free(mounts);
	if (atomic_load(&cancelled_in_write))
		puts("cancelled");
	return result < 0 ? 99 : result;
}
