// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Measure how long requests take: each thread sends one request after another.
 *
 *   load FILE SIZE stat|read BLOCK MILLISECONDS CPU...
 *
 * There is one thread per CPU argument, pinned to that CPU; a CPU may be given more than once.
 * `stat` is fstat(2), `read` is pread(2) of BLOCK bytes. FILE has SIZE bytes, and each eight bytes
 * of it hold their own offset: every answer is checked. The program prints one line of JSON. If an
 * answer is wrong or missing, it exits with status 1.
 *
 * A daemon can report in st_mtim when it took a request (see stamp.c). If it does so in all
 * answers, the output includes how long requests waited until the daemon took them, else null.
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

/* A histogram of times: 2^CLASS_BITS classes for each power of two; exact below that. */
#define CLASS_BITS	7
#define CLASSES		(1U << CLASS_BITS)
#define NR_CLASSES	((64 - CLASS_BITS + 1) * CLASSES)

/**
 * struct caller - a thread that sends requests
 * @thread: the thread
 * @cpu: CPU to which the thread is pinned
 * @end_ns: when the thread got its last answer, CLOCK_MONOTONIC
 * @requests: number of requests sent
 * @switches: number of voluntary context switches of the thread
 * @preempted: number of involuntary context switches of the thread
 * @stamped: number of answers in which the daemon reported when it took the request
 * @times: histogram of the time from sending a request to its answer
 * @waits: histogram of the time from sending a request to the daemon taking it
 */
struct caller {
	pthread_t thread;
	int cpu;
	uint64_t end_ns;
	uint64_t requests;
	uint64_t switches;
	uint64_t preempted;
	uint64_t stamped;
	uint32_t times[NR_CLASSES];
	uint32_t waits[NR_CLASSES];
};

static const char *path;
static uint64_t size, block, begin_ns, length_ns;
static bool reads;
static pthread_barrier_t ready;

static uint64_t in_ns(const struct timespec *t)
{
	return t->tv_sec * 1000000000ULL + t->tv_nsec;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return in_ns(&t);
}

static unsigned int class_of(uint64_t ns)
{
	int shift;

	if (ns < CLASSES)
		return ns;
	shift = 63 - __builtin_clzll(ns) - CLASS_BITS;
	return shift * CLASSES + (ns >> shift);
}

/* Returns the middle of a class, in ns. */
static uint64_t time_of(unsigned int class)
{
	unsigned int shift;

	if (class < 2 * CLASSES)
		return class;
	shift = class / CLASSES - 1;
	return ((uint64_t)(class % CLASSES + CLASSES) << shift) + (1ULL << shift) / 2;
}

/* Returns st_mtim, in which the daemon may report when it took the request. */
static uint64_t ask_status(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		err(1, "fstat of %s", path);
	if ((uint64_t)st.st_size != size)
		errx(1, "%s: wrong size %lld", path, (long long)st.st_size);
	return in_ns(&st.st_mtim);
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
	uint64_t start, taken, offset = (uint64_t)caller->cpu * block % size;
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
		/* Fault the pages in before the first time is taken. */
	memset(buf, 1, block);
	memset(caller->times, 0, sizeof(caller->times));
	memset(caller->waits, 0, sizeof(caller->waits));
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&ready);
	getrusage(RUSAGE_THREAD, &before);
	do {
		taken = 0;
		start = now_ns();
		if (reads)
			ask_data(fd, buf, offset);
		else
			taken = ask_status(fd);
		caller->end_ns = now_ns();
		if (taken >= start && taken <= caller->end_ns) {
			caller->waits[class_of(taken - start)]++;
			caller->stamped++;
		}
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

/* Returns the smallest time that at least the fraction @share of the @all times does not exceed. */
static uint64_t quantile_ns(const uint64_t *sum, uint64_t all, double share)
{
	uint64_t wanted = all * share, seen = 0;
	unsigned int class;

	for (class = 0; class < NR_CLASSES; class++) {
		seen += sum[class];
		if (seen > wanted)
			break;
	}
	return time_of(class);
}

static void print_quantiles(const char *name, const uint64_t *sum, uint64_t all)
{
	if (all)
		printf(", \"%s_p50_ns\": %llu, \"%s_p99_ns\": %llu",
		       name, (unsigned long long)quantile_ns(sum, all, 0.50),
		       name, (unsigned long long)quantile_ns(sum, all, 0.99));
	else
		printf(", \"%s_p50_ns\": null, \"%s_p99_ns\": null", name, name);
}

int main(int argc, char **argv)
{
	uint64_t requests = 0, switches = 0, preempted = 0, stamped = 0, end_ns = 0;
	static uint64_t times[NR_CLASSES], waits[NR_CLASSES];
	struct caller *callers;
	int i, j, nr = argc - 6;

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
	/* The time begins when all threads have opened the file; only then do they start. */
	pthread_barrier_wait(&ready);
	begin_ns = now_ns();
	pthread_barrier_wait(&ready);
	for (i = 0; i < nr; i++) {
		pthread_join(callers[i].thread, NULL);
		requests += callers[i].requests;
		switches += callers[i].switches;
		preempted += callers[i].preempted;
		stamped += callers[i].stamped;
		for (j = 0; j < (int)NR_CLASSES; j++) {
			times[j] += callers[i].times[j];
			waits[j] += callers[i].waits[j];
		}
		if (callers[i].end_ns > end_ns)
			end_ns = callers[i].end_ns;
	}
	printf("{\"requests\": %llu, \"elapsed_ns\": %llu, \"switches\": %llu, \"preempted\": %llu",
	       (unsigned long long)requests, (unsigned long long)(end_ns - begin_ns),
	       (unsigned long long)switches, (unsigned long long)preempted);
	print_quantiles("latency", times, requests);
	print_quantiles("queueing", waits, stamped == requests ? requests : 0);
	puts("}");
	return 0;
}
