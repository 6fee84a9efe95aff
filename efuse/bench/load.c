// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Threads that send one request after the other, and how long each waited.
 *
 *   load FILE SIZE stat|read BLOCK MILLISECONDS CPU...
 *
 * One thread for each CPU that is named, pinned there; a CPU may be named more than once.
 * `stat` is fstat(2); `read` is pread(2) of BLOCK bytes. FILE has SIZE bytes, of which each
 * eight hold the number of the first of them: every answer is looked at. Prints one line of
 * JSON; an answer that is wrong, or none, ends it with a status of 1.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE	4096U

/* Times are kept as counts: each power of two in so many classes, all below it exactly. */
#define CLASS_BITS	7
#define CLASSES		(1U << CLASS_BITS)
#define NR_CLASSES	((64 - CLASS_BITS + 1) * CLASSES)

/**
 * struct caller - a thread
 * @thread: it
 * @cpu: where it runs
 * @end_ns: when its last answer was there
 * @requests: how many it sent
 * @switches: how often it gave the CPU away meanwhile
 * @preempted: how often the CPU was taken from it
 * @times: of its requests by how long they took
 */
struct caller {
	pthread_t thread;
	int cpu;
	uint64_t end_ns;
	uint64_t requests;
	uint64_t switches;
	uint64_t preempted;
	uint32_t times[NR_CLASSES];
};

static const char *path;
static uint64_t size, block, begin_ns, length_ns;
static bool reads;
static pthread_barrier_t ready;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static unsigned int class_of(uint64_t ns)
{
	int shift;

	if (ns < CLASSES)
		return ns;
	shift = 63 - __builtin_clzll(ns) - CLASS_BITS;
	return shift * CLASSES + (ns >> shift);
}

/* The middle of a class. */
static uint64_t time_of(unsigned int class)
{
	unsigned int shift;

	if (class < 2 * CLASSES)
		return class;
	shift = class / CLASSES - 1;
	return ((uint64_t)(class % CLASSES + CLASSES) << shift) + (1ULL << shift) / 2;
}

static void ask_status(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		err(1, "fstat of %s", path);
	if ((uint64_t)st.st_size != size)
		errx(1, "%s: wrong size %lld", path, (long long)st.st_size);
}

static void ask_data(int fd, char *buf, uint64_t offset)
{
	ssize_t got = pread(fd, buf, block, offset);
	uint64_t at, first, last;

	if (got < 0)
		err(1, "pread of %s", path);
	if ((uint64_t)got != block)
		errx(1, "%s: %zd bytes at %llu", path, got, (unsigned long long)offset);
	for (at = 0; at < block; at += PAGE) {
		memcpy(&first, buf + at, sizeof(first));
		memcpy(&last, buf + at + PAGE - sizeof(last), sizeof(last));
		if (first != offset + at || last != offset + at + PAGE - sizeof(last))
			errx(1, "%s: wrong data at %llu", path, (unsigned long long)(offset + at));
	}
}

static void *call(void *arg)
{
	struct caller *caller = arg;
	uint64_t start, offset = (uint64_t)caller->cpu * block % size;
	struct rusage before, after;
	int fd = open(path, O_RDONLY);
	char *buf = malloc(block);
	cpu_set_t cpus;

	if (fd < 0)
		err(1, "open of %s", path);
	if (!buf)
		err(1, "malloc");
	CPU_ZERO(&cpus);
	CPU_SET(caller->cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		err(1, "CPU %d", caller->cpu);
	/* Its pages are there before the first time is taken. */
	memset(buf, 1, block);
	memset(caller->times, 0, sizeof(caller->times));
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&ready);
	getrusage(RUSAGE_THREAD, &before);
	do {
		start = now_ns();
		if (reads)
			ask_data(fd, buf, offset);
		else
			ask_status(fd);
		caller->end_ns = now_ns();
		caller->times[class_of(caller->end_ns - start)]++;
		caller->requests++;
		offset = (offset + block) % size;
	} while (caller->end_ns - begin_ns < length_ns);
	getrusage(RUSAGE_THREAD, &after);
	caller->switches = after.ru_nvcsw - before.ru_nvcsw;
	caller->preempted = after.ru_nivcsw - before.ru_nivcsw;
	free(buf);
	close(fd);
	return NULL;
}

/* How long so many of @all requests took, at most. */
static uint64_t quantile_ns(const struct caller *callers, int nr, uint64_t all, double share)
{
	uint64_t wanted = all * share, seen = 0;
	unsigned int class;
	int i;

	for (class = 0; class < NR_CLASSES; class++) {
		for (i = 0; i < nr; i++)
			seen += callers[i].times[class];
		if (seen > wanted)
			break;
	}
	return time_of(class);
}

int main(int argc, char **argv)
{
	uint64_t requests = 0, switches = 0, preempted = 0, end_ns = 0;
	struct caller *callers;
	int i, nr = argc - 6;

	if (nr < 1)
		errx(2, "usage: load FILE SIZE stat|read BLOCK MILLISECONDS CPU...");
	path = argv[1];
	size = strtoull(argv[2], NULL, 10);
	reads = !strcmp(argv[3], "read");
	block = strtoull(argv[4], NULL, 10);
	length_ns = strtoull(argv[5], NULL, 10) * 1000000;
	if (!block || block % PAGE || !size || size % block)
		errx(2, "SIZE has to be blocks, and BLOCK pages");
	callers = calloc(nr, sizeof(*callers));
	if (!callers || pthread_barrier_init(&ready, NULL, nr + 1))
		err(1, "no memory");
	for (i = 0; i < nr; i++) {
		callers[i].cpu = atoi(argv[6 + i]);
		if (pthread_create(&callers[i].thread, NULL, call, &callers[i]))
			errx(1, "no thread");
	}
	/* When all have opened the file the time begins, and then they do. */
	pthread_barrier_wait(&ready);
	begin_ns = now_ns();
	pthread_barrier_wait(&ready);
	for (i = 0; i < nr; i++) {
		pthread_join(callers[i].thread, NULL);
		requests += callers[i].requests;
		switches += callers[i].switches;
		preempted += callers[i].preempted;
		if (callers[i].end_ns > end_ns)
			end_ns = callers[i].end_ns;
	}
	printf("{\"requests\": %llu, \"elapsed_ns\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu, "
	       "\"switches\": %llu, \"preempted\": %llu}\n",
	       (unsigned long long)requests, (unsigned long long)(end_ns - begin_ns),
	       (unsigned long long)quantile_ns(callers, nr, requests, 0.50),
	       (unsigned long long)quantile_ns(callers, nr, requests, 0.99),
	       (unsigned long long)switches, (unsigned long long)preempted);
	return 0;
}
