// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A FUSE daemon without any library, statically linked: raw_daemon HOW MOUNTPOINT...
 *
 * Serves a read-only file system with the file "f" and the symbolic link "link" in each MOUNTPOINT
 * until all are unmounted. HOW is a list of words with commas:
 *
 *   mount, int80, fsopen, setfd	how it mounts; int80: by the 32-bit interface; setfd: as fsopen,
 *					but with the descriptor as a number
 *   blk=DEVICE				the type fuseblk
 *   fork				go into the background before mounting, by two forks
 *   signals				signals arrive all the time
 *   twice				fails unless a mount on a missing directory fails with ENOENT
 *   file=PATH				fails unless a mount on this file fails with ENOTDIR
 *   shared				another process mounts, with the same descriptor
 *   dup				serve by a duplicate of the descriptor
 *   odd				first make system calls that do not exist, under an odd name
 *   sync_init				fails unless FUSE_DEV_IOC_SYNC_INIT fails with ENOTTY
 *   landlock				first restrict itself by Landlock
 *   restricted				first run a child that restricts itself by Landlock
 *   long				a source of 300 bytes
 *   proc, dev				mount on a link to a descriptor of MOUNTPOINT
 *   below				mount on a path below such a link to its parent
 *   hex				the number of the descriptor in hexadecimal
 *   epoll				watch the descriptor before mounting
 *   again				mount and unmount 20 times before
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/landlock.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST	8
#define TEXT	"what the daemon has\n"

static const char *how;

static const char *word(const char *name)
{
	size_t length = strlen(name);
	const char *at;

	for (at = how; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, name, length) && strchr(",=", at[length]))
			return at + length + (at[length] == '=');
	return NULL;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

#ifdef __x86_64__
/* mount(2) of the 32-bit interface. Its arguments must lie in the first 4 GiB. */
static long mount_int80(const char *source, const char *target, const char *type,
			unsigned long flags, const char *data)
{
	char *low = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	long result;

	strcpy(low, source);
	strcpy(low + 4096, target);
	strcpy(low + 8192, type);
	strcpy(low + 12288, data);
	asm volatile("int $0x80" : "=a" (result) : "a" (21), "b" (low), "c" (low + 4096),
		     "d" (low + 8192), "S" (flags), "D" (low + 12288) : "memory", "r8", "r9",
		     "r10", "r11");
	errno = result < 0 ? (int)-result : 0;
	return result < 0 ? -1 : 0;
}
#endif

static int mount_newly(int fd, const char *target, const char *type)
{
	int fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), made;
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", "raw", 0) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "rootmode", "40000", 0) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "user_id", "0", 0) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "group_id", "0", 0) ||
	    (word("setfd") ? syscall(SYS_fsconfig, fs, FSCONFIG_SET_FD, "fd", NULL, fd) :
			     syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "fd", number, 0)) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return -1;
	made = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID);
	if (made < 0 || close(fs) ||
	    syscall(SYS_move_mount, made, "", AT_FDCWD, target,
		    MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS))
		return -1;
	return close(made);
}

static int mount_at(int fd, const char *target)
{
	const char *device = word("blk");
	char options[128], source[301] = "raw", link[256];

	if (word("long"))
		memset(source, 'x', sizeof(source) - 1);
	if (word("proc") || word("dev")) {
		snprintf(link, sizeof(link), word("proc") ? "/proc/self/fd/%d" : "/dev/fd/%d",
			 open(target, O_PATH | O_CLOEXEC));
		target = link;
	} else if (word("below")) {
		const char *name = strrchr(target, '/');

		snprintf(link, sizeof(link), "%.*s", (int)(name - target), target);
		snprintf(link, sizeof(link), "/proc/self/fd/%d%s", open(link, O_PATH | O_CLOEXEC),
			 name);
		target = link;
	}

	snprintf(options, sizeof(options), word("hex") ? "fd=0x%x,%s" : "fd=%d,%s", fd,
		 "rootmode=40000,user_id=0,group_id=0");
	if (word("fsopen") || word("setfd"))
		return mount_newly(fd, target, "fuse");
#ifdef __x86_64__
	if (word("int80"))
		return (int)mount_int80("raw", target, "fuse.raw", MS_NOSUID | MS_NODEV, options);
#endif
	return (int)syscall(SYS_mount, device ? device : source, target,
			    device ? "fuseblk.raw" : "fuse.raw", MS_NOSUID | MS_NODEV, options);
}

static void answer(int fd, const struct fuse_in_header *in, int error, const void *data,
		   size_t length)
{
	static char reply[65536];
	struct fuse_out_header *out = (void *)reply;

	out->len = (uint32_t)(sizeof(*out) + (error ? 0 : length));
	out->error = -error;
	out->unique = in->unique;
	memcpy(reply + sizeof(*out), data, error ? 0 : length);
	if (write(fd, reply, out->len) < 0 && errno != ENOENT)
		fail("write");
}

static struct fuse_attr attributes(uint64_t nodeid)
{
	struct fuse_attr attr = { .ino = nodeid, .nlink = 1, .mode = S_IFREG | 0644 };

	if (nodeid == FUSE_ROOT_ID)
		attr.mode = S_IFDIR | 0755;
	else if (nodeid == 3)
		attr.mode = S_IFLNK | 0777;
	else
		attr.size = strlen(TEXT);
	return attr;
}

static uint64_t nodeid_of(const char *name)
{
	return !strcmp(name, "f") ? 2 : !strcmp(name, "link") ? 3 : 0;
}

static void serve(int fd, const char *request)
{
	const struct fuse_in_header *in = (const void *)request;
	struct fuse_attr_out attr = { .attr_valid = 600, .attr = attributes(in->nodeid) };
	struct fuse_entry_out entry = { .entry_valid = 600, .attr_valid = 600 };
	struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION,
		.minor = 31,
		.max_write = 4096,
	};
	struct fuse_open_out opened = { 0 };

	switch (in->opcode) {
	case FUSE_INIT:
		answer(fd, in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		entry.nodeid = nodeid_of(request + sizeof(*in));
		entry.attr = attributes(entry.nodeid);
		answer(fd, in, entry.nodeid ? 0 : ENOENT, &entry, sizeof(entry));
		break;
	case FUSE_READLINK:
		answer(fd, in, 0, "f", 1);
		break;
	case FUSE_GETATTR:
		answer(fd, in, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		answer(fd, in, 0, &opened, sizeof(opened));
		break;
	case FUSE_READ:
		answer(fd, in, 0, TEXT, strlen(TEXT));
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_READDIR:
		answer(fd, in, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		break;
	default:
		answer(fd, in, ENOSYS, NULL, 0);
	}
}

static void ignore(int number)
{
	(void)number;
}

static void restrict_itself(void)
{
	struct landlock_ruleset_attr attr = {
		.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_BLOCK,
	};
	int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);

	if (rules < 0 || syscall(SYS_landlock_restrict_self, rules, 0))
		fail("landlock");
}

static void be_odd(void)
{
	prctl(PR_SET_NAME, "\xff\xfe\n");
	syscall(SYS_mount | 1L << 31, "raw", "/", "fuse.raw", 0, "");
	syscall(SYS_fsopen | 3L << 30, "fuse", 0);
	if (syscall(SYS_mount, "raw", "/", (char *)8, 0, "") != -1 || errno != EFAULT)
		exit(4);
}

/* Mount as HOW tells, maybe in another process. Return what the mount has returned. */
static int mount_as_told(int fd, const char *target)
{
	int status;

	if (!word("shared"))
		return mount_at(fd, target);
	if (!fork())
		_exit(!!mount_at(fd, target));
	wait(&status);
	return status;
}

int main(int argc, char **argv)
{
	struct pollfd served[MOST];
	static char request[1 << 17];
	int i, again, other = -1, left = argc - 2;
	char file[256] = "";

	if (argc < 3 || left > MOST)
		return 2;
	how = argv[1];
	if (word("fork") && (fork() || (setsid(), fork())))
		_exit(0);
	if (word("signals")) {
		struct itimerval often = { { 0, 500 }, { 0, 500 } };

		signal(SIGALRM, ignore);
		setitimer(ITIMER_REAL, &often, NULL);
	}
	if (word("odd"))
		be_odd();
	if (word("landlock"))
		restrict_itself();
	if (word("restricted")) {
		if (!fork()) {
			restrict_itself();
			_exit(0);
		}
		wait(NULL);
	}
	if (word("file"))
		snprintf(file, sizeof(file), "%.*s", (int)strcspn(word("file"), ","), word("file"));
	for (i = 0; i < left; i++) {
		served[i].fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
		served[i].events = POLLIN;
		if (word("twice") &&
		    (!mount_at(served[i].fd, "/no/such/directory") || errno != ENOENT))
			return 3;
		if (word("file") && (!mount_at(served[i].fd, file) || errno != ENOTDIR))
			return 5;
		if (word("sync_init") &&
		    (ioctl(served[i].fd, _IO(229, 3)) != -1 || errno != ENOTTY))
			return 6;
		if (word("dup"))
			other = dup(served[i].fd);
		if (word("epoll")) {
			struct epoll_event event = { .events = EPOLLIN };

			if (epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, served[i].fd, &event))
				fail("epoll");
		}
		for (again = 0; word("again") && again < 20; again++) {
			int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

			if (mount_at(fd, argv[2 + i]) || umount2(argv[2 + i], 0) || close(fd))
				fail("again");
		}
		if (mount_as_told(served[i].fd, argv[2 + i]))
			fail("mount");
		if (word("dup")) {
			close(served[i].fd);
			served[i].fd = other;
		}
	}
	while (left) {
		if (poll(served, (nfds_t)(argc - 2), -1) < 0)
			continue;
		for (i = 0; i < argc - 2; i++) {
			if (served[i].fd < 0 || !served[i].revents)
				continue;
			if (read(served[i].fd, request, sizeof(request)) > 0) {
				serve(served[i].fd, request);
			} else if (errno == ENODEV) {
				close(served[i].fd);
				served[i].fd = -1;
				left--;
			}
		}
	}
	return 0;
}
