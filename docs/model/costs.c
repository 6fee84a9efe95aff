// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Measures times for measure.py. Prints one line of JSON, with times in nanoseconds.
 *
 *   costs parts FILE          Time a system call, a message through a pipe, a switch to a
 *                             process on the same CPU and on another, and a stat of FILE.
 *   costs load FILE MS CPU... Call fstat(2) on FILE for MS milliseconds, in one thread on each
 *                             CPU.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS	2000

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void stay_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		err(1, "CPU %d", cpu);
}

static void put(int fd)
{
	if (write(fd, "", 1) != 1)
		err(1, "write");
}

static void take(int fd)
{
	char byte;

	if (read(fd, &byte, 1) != 1)
		err(1, "read");
}

static double system_call_ns(void)
{
	uint64_t begin = now_ns(CLOCK_MONOTONIC);
	int i;

	for (i = 0; i < ROUNDS; i++)
		syscall(SYS_getppid);
	return (double)(now_ns(CLOCK_MONOTONIC) - begin) / ROUNDS;
}

static double status_ns(const char *file)
{
	uint64_t begin;
	struct stat st;
	int i, fd = open(file, O_PATH);

	if (fd < 0)
		err(1, "open of %s", file);
	begin = now_ns(CLOCK_MONOTONIC);
	for (i = 0; i < ROUNDS; i++)
		if (fstatat(fd, "", &st, AT_EMPTY_PATH))
			err(1, "fstatat");
	return (double)(now_ns(CLOCK_MONOTONIC) - begin) / ROUNDS;
}

/* The time to write a byte into a pipe and read it again. No thread waits. */
static double message_ns(void)
{
	uint64_t begin;
	int i, ends[2];

	if (pipe(ends))
		err(1, "pipe");
	begin = now_ns(CLOCK_MONOTONIC);
	for (i = 0; i < ROUNDS; i++) {
		put(ends[1]);
		take(ends[0]);
	}
	return (double)(now_ns(CLOCK_MONOTONIC) - begin) / ROUNDS;
}

/* The time to send a byte to a process that sleeps on @cpu: half of a round trip. */
static double away_ns(int cpu)
{
	int i, there[2], back[2];
	uint64_t begin;
	pid_t child;

	if (pipe(there) || pipe(back))
		err(1, "pipe");
	child = fork();
	if (child < 0)
		err(1, "fork");
	stay_on(child ? 0 : cpu);
	for (i = 0; !child && i <= ROUNDS; i++) {
		take(there[0]);
		put(back[1]);
	}
	if (!child)
		_exit(0);
	put(there[1]);
	take(back[0]);
	begin = now_ns(CLOCK_MONOTONIC);
	for (i = 0; i < ROUNDS; i++) {
		put(there[1]);
		take(back[0]);
	}
	begin = now_ns(CLOCK_MONOTONIC) - begin;
	waitpid(child, NULL, 0);
	return begin / 2.0 / ROUNDS;
}

static int parts(const char *file)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	double message;

	stay_on(0);
	message = message_ns();
	printf("{\"system_call\": %.0f, \"status\": %.0f, \"message\": %.0f, ",
	       system_call_ns(), status_ns(file), message);
	printf("\"switch\": %.0f", away_ns(0) - message);
	if (cpus > 1)
		printf(", \"switch_away\": %.0f", away_ns(1) - message);
	printf("}\n");
	return 0;
}

struct caller {
	pthread_t thread;
	int cpu;
	uint64_t requests;
};

static const char *asked;
static uint64_t end_ns;

static void *call(void *arg)
{
	struct caller *caller = arg;
	int fd = open(asked, O_RDONLY);
	struct stat st;

	if (fd < 0)
		err(1, "open of %s", asked);
	stay_on(caller->cpu);
	while (now_ns(CLOCK_MONOTONIC) < end_ns) {
		if (fstat(fd, &st))
			err(1, "fstat");
		caller->requests++;
	}
	close(fd);
	return NULL;
}

static int load(const char *file, uint64_t length_ns, int nr, char **cpus)
{
	struct caller *callers = calloc(nr, sizeof(*callers));
	uint64_t begin, requests = 0;
	int i;

	if (!callers)
		err(1, "no memory");
	asked = file;
	begin = now_ns(CLOCK_MONOTONIC);
	end_ns = begin + length_ns;
	for (i = 0; i < nr; i++) {
		callers[i].cpu = atoi(cpus[i]);
		if (pthread_create(&callers[i].thread, NULL, call, &callers[i]))
			errx(1, "no thread");
	}
	for (i = 0; i < nr; i++) {
		pthread_join(callers[i].thread, NULL);
		requests += callers[i].requests;
	}
	printf("{\"requests\": %llu, \"elapsed\": %llu, \"caller\": %llu}\n",
	       (unsigned long long)requests,
	       (unsigned long long)(now_ns(CLOCK_MONOTONIC) - begin),
	       (unsigned long long)now_ns(CLOCK_PROCESS_CPUTIME_ID));
	free(callers);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "parts"))
		return parts(argv[2]);
	if (argc > 4 && !strcmp(argv[1], "load"))
		return load(argv[2], strtoull(argv[3], NULL, 10) * 1000000, argc - 4, argv + 4);
	errx(2, "usage: costs parts FILE | costs load FILE MS CPU...");
}
