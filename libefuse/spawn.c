// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Threads and processes that a handler starts must not stay on the worker's CPU.
 *
 * pthread_atfork() in loop.c handles fork(). The other functions that make a process are replaced
 * here one by one, because calls between functions of glibc cannot be intercepted. For vfork(), the
 * functions by which its child executes another program are replaced.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "next.h"

#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/**
 * struct call - a function and its arguments, to be called without being pinned to a CPU
 * @run: calls the function
 * @argument: the arguments in their order; for posix_spawn(3), preceded by the function itself
 * @result: what the function returned
 */
struct call {
	int (*run)(struct call *call);
	const void *argument[7];
	union {
		FILE *file;
		int number;
	} result;
};

static int run(void *arg)
{
	struct call *call = arg;

	return call->run(call);
}

static int create(struct call *call)
{
	return NEXT(pthread_create)((pthread_t *)call->argument[0], call->argument[1],
				    (void *(*)(void *))call->argument[2],
				    (void *)call->argument[3]);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
			  void *(*function)(void *arg), void *arg)
{
	struct call call = {
		.run = create,
		.argument = { thread, attr, (const void *)function, arg },
	};

	return loop_unpinned(run, &call);
}

typedef int spawn_function(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
			   const posix_spawnattr_t *attr, char *const argv[], char *const envp[]);

static int spawn(struct call *call)
{
	spawn_function *function = (spawn_function *)call->argument[0];

	return function((pid_t *)call->argument[1], call->argument[2], call->argument[3],
			call->argument[4], (char *const *)call->argument[5],
			(char *const *)call->argument[6]);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		       const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	struct call call = {
		.run = spawn,
		.argument = { NEXT(posix_spawn), pid, path, actions, attr, argv, envp },
	};

	return loop_unpinned(run, &call);
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	struct call call = {
		.run = spawn,
		.argument = { NEXT(posix_spawnp), pid, file, actions, attr, argv, envp },
	};

	return loop_unpinned(run, &call);
}

static int run_system(struct call *call)
{
	return NEXT(system)(call->argument[0]);
}

EXPORT int system(const char *command)
{
	struct call call = { .run = run_system, .argument = { command } };

	return loop_unpinned(run, &call);
}

static int run_popen(struct call *call)
{
	call->result.file = NEXT(popen)(call->argument[0], call->argument[1]);
	return 0;
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	struct call call = { .run = run_popen, .argument = { command, mode } };

	loop_unpinned(run, &call);
	return call.result.file;
}

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
	loop_unpin();
	return NEXT(execve)(path, argv, envp);
}

EXPORT int execv(const char *path, char *const argv[])
{
	loop_unpin();
	return NEXT(execv)(path, argv);
}

EXPORT int execvp(const char *file, char *const argv[])
{
	loop_unpin();
	return NEXT(execvp)(file, argv);
}

EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
	loop_unpin();
	return NEXT(execvpe)(file, argv, envp);
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
	loop_unpin();
	return NEXT(fexecve)(fd, argv, envp);
}

/* Number of arguments, without the NULL at the end. */
static size_t count(const char *first, va_list more)
{
	size_t number = 0;

	for (; first; first = va_arg(more, const char *))
		number++;
	return number;
}

/*
 * An array of the arguments, on the caller's stack, because a child of vfork() must not allocate.
 */
#define ARGUMENTS(array, first, more) \
	va_list more; \
	va_start(more, first); \
	size_t number_ = count(first, more); \
	va_end(more); \
	char *array[number_ + 1]; \
	va_start(more, first); \
	array[0] = (char *)first; \
	for (size_t i_ = 1; i_ <= number_; i_++) \
		array[i_] = va_arg(more, char *)

EXPORT int execl(const char *path, const char *first, ...)
{
	ARGUMENTS(argv, first, more);
	va_end(more);
	return execv(path, argv);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	ARGUMENTS(argv, first, more);
	va_end(more);
	return execvp(file, argv);
}

EXPORT int execle(const char *path, const char *first, ...)
{
	char *const *envp;

	ARGUMENTS(argv, first, more);
	envp = va_arg(more, char *const *);
	va_end(more);
	return execve(path, argv, envp);
}
