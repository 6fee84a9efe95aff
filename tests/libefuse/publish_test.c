// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Tests of libefuse/publish.c on plain memory: publish_test TEST; see main() for the tests.
 * The reader in this file locks a tag in the way of the kernel's blocks.c.
 */
#include "publish.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/seccomp.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

#define BLOCK EFUSE_BLOCK_SIZE

static struct efuse_cache new_cache(uint32_t sets)
{
	struct efuse_cache cache = { .sets = sets };

	cache.tags = calloc(sets, sizeof(*cache.tags));
	cache.blocks = calloc((size_t)sets * EFUSE_WAYS, sizeof(*cache.blocks));
	CHECK(cache.tags && cache.blocks);
	return cache;
}

static void end_cache(struct efuse_cache *cache)
{
	free(cache->tags);
	free(cache->blocks);
}

/* Returns the slot that holds the block, and its tag; NULL if there is none. */
static const uint8_t *find(const struct efuse_cache *cache, uint64_t nodeid, uint64_t block,
			   struct efuse_tag **tag)
{
	uint32_t i;

	for (i = 0; i < cache->sets * EFUSE_WAYS; i++) {
		*tag = &cache->tags[i / EFUSE_WAYS].way[i % EFUSE_WAYS];
		if ((*tag)->nodeid == nodeid && (*tag)->block == block)
			return cache->blocks[i].data;
	}
	*tag = NULL;
	return NULL;
}

static uint8_t *noise(size_t size)
{
	uint8_t *data = malloc(size);
	uint32_t x = 1;
	size_t i;

	CHECK(data);
	for (i = 0; i < size; i++) {
		x = x * 1664525 + 1013904223;
		data[i] = x >> 24;
	}
	return data;
}

static void test_thousand_blocks(void)
{
	struct efuse_cache cache = new_cache(4096);
	struct efuse_data range = {
		.nodeid = 7, .block = 5, .size = 1000 * BLOCK + 100, .end = 1, .epoch = 42,
		.expires_ns = 99,
	};
	struct efuse_published done;
	uint8_t *data = noise(range.size);
	static const uint8_t zeroes[BLOCK];
	struct efuse_tag *tag;
	const uint8_t *slot;
	uint64_t i;

	range.data = data;
	memset(cache.blocks, 0xff, (size_t)cache.sets * EFUSE_WAYS * BLOCK);
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 1001 && !done.busy && !done.newer);
	for (i = 0; i < 1001; i++) {
		uint32_t len = i < 1000 ? BLOCK : 100;

		slot = find(&cache, 7, 5 + i, &tag);
		CHECK(slot);
		CHECK(!memcmp(slot, data + i * BLOCK, len));
		CHECK(!memcmp(slot + len, zeroes, BLOCK - len));
		CHECK(tag->len == len && tag->epoch == 42 && tag->expires_ns == 99);
		CHECK(!tag->lock && !tag->used);
	}
	end_cache(&cache);
	free(data);
}

static void test_ends(void)
{
	struct efuse_cache cache = new_cache(16);
	struct efuse_data range = { .nodeid = 1, .epoch = 1, .size = BLOCK + 9 };
	struct efuse_published done;
	uint8_t *data = noise(range.size);
	struct efuse_tag *tag;

	range.data = data;
	/* Data that does not fill a block is not stored. */
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 1 && !find(&cache, 1, 1, &tag));
	/* The end of a file of whole blocks is at the start of the next block. */
	range.size = BLOCK;
	range.end = 1;
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 2 && find(&cache, 1, 1, &tag) && tag->len == 0);
	range.size = 0;
	range.nodeid = 2;
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 1 && find(&cache, 2, 0, &tag) && tag->len == 0);
	end_cache(&cache);
	free(data);
}

static void test_full_set(void)
{
	struct efuse_cache cache = new_cache(1);
	struct efuse_data range = { .nodeid = 1, .epoch = 1, .size = 100 * BLOCK };
	struct efuse_published done;
	uint8_t *data = noise(range.size);
	int i, found = 0;
	struct efuse_tag *tag;

	range.data = data;
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 100);
	for (i = 0; i < 100; i++) {
		const uint8_t *slot = find(&cache, 1, i, &tag);

		if (slot)
			CHECK(!memcmp(slot, data + i * BLOCK, BLOCK));
		found += !!slot;
	}
	CHECK(found == EFUSE_WAYS);

	/* A block that was not read is evicted before blocks that were. */
	for (i = 0; i < EFUSE_WAYS; i++)
		cache.tags->way[i].used = i != 3;
	range = (struct efuse_data){ .nodeid = 2, .data = data, .size = BLOCK };
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 1 && cache.tags->way[3].nodeid == 2);
	/* A block that is already in the cache keeps its place. */
	range.epoch = 5;
	efuse_publish(&cache, &range, &done);
	CHECK(done.stored == 1 && cache.tags->way[3].epoch == 5);
	for (i = found = 0; i < EFUSE_WAYS; i++)
		found += cache.tags->way[i].nodeid == 2;
	CHECK(found == 1);
	end_cache(&cache);
	free(data);
}

static void test_newer(void)
{
	struct efuse_cache cache = new_cache(1);
	uint8_t *old = noise(BLOCK), new[BLOCK] = { 1 };
	struct efuse_data range = { .nodeid = 1, .data = new, .size = BLOCK, .epoch = 9 };
	struct efuse_published done;
	struct efuse_tag *tag;

	efuse_publish(&cache, &range, &done);
	range.data = old;
	range.epoch = 8;
	efuse_publish(&cache, &range, &done);
	CHECK(done.newer == 1 && !done.stored && !done.busy);
	CHECK(!memcmp(find(&cache, 1, 0, &tag), new, BLOCK) && tag->epoch == 9 && !tag->lock);
	end_cache(&cache);
	free(old);
}

static void test_locked(void)
{
	static const uint32_t locks[] = { 1, INT_MAX, EFUSE_TAG_WRITER, UINT_MAX };
	struct efuse_cache cache = new_cache(1);
	uint8_t *data = noise(8 * BLOCK);
	struct efuse_data range = { .nodeid = 1, .data = data, .size = 8 * BLOCK, .epoch = 1 };
	struct efuse_published done;
	struct efuse_tag before;
	size_t i, n;

	for (n = 0; n < sizeof(locks) / sizeof(*locks); n++) {
		/* A writer died while it held an empty slot, or the lock word is garbage. */
		memset(cache.tags, 0, sizeof(*cache.tags));
		cache.tags->way[2].lock = locks[n];
		cache.tags->way[5].lock = locks[n];
		cache.tags->way[5].nodeid = 1;
		cache.tags->way[5].block = 6;
		before = cache.tags->way[5];
		efuse_publish(&cache, &range, &done);
		CHECK(done.stored == 7 && done.busy == 1);
		CHECK(cache.tags->way[2].lock == locks[n] && !cache.tags->way[2].nodeid);
		CHECK(!memcmp(&cache.tags->way[5], &before, sizeof(before)));
		/* No slot is available at all: the publisher must not wait. */
		for (i = 0; i < EFUSE_WAYS; i++)
			cache.tags->way[i].lock = locks[n];
		range.nodeid = 2;
		efuse_publish(&cache, &range, &done);
		CHECK(!done.stored && done.busy == 8);
		range.nodeid = 1;
	}
	end_cache(&cache);
	free(data);
}

static void test_memory(void)
{
	test_thousand_blocks();
	test_ends();
	test_full_set();
	test_newer();
	test_locked();
}

/* Only read(2), write(2) and exit(2) are allowed: any other system call kills the child. */
static void test_system_calls(void)
{
	struct efuse_cache cache = new_cache(512);
	uint8_t *data = noise(1000 * BLOCK);
	struct efuse_data range = { .nodeid = 1, .data = data, .size = 1000 * BLOCK, .epoch = 1 };
	struct efuse_published done = {};
	int pipes[2], status, i;
	pid_t pid;

	for (i = 0; i < 2; i++) {
		CHECK(!pipe(pipes));
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
			if (i)
				syscall(SYS_getppid);
			efuse_publish(&cache, &range, &done);
			syscall(SYS_exit, write(pipes[1], &done, sizeof(done)) != sizeof(done));
		}
		close(pipes[1]);
		CHECK(waitpid(pid, &status, 0) == pid);
		if (i) {
			CHECK(WIFSIGNALED(status));
		} else {
			CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
			CHECK(read(pipes[0], &done, sizeof(done)) == sizeof(done));
			CHECK(done.stored == 1000);
		}
		close(pipes[0]);
	}
	end_cache(&cache);
	free(data);
}

#define ROUNDS 20000

static struct efuse_cache shared;
static int running;
static uint64_t seen, stored;

/* All words of a block hold the same number, which is the block's epoch. */
static void *publisher(void *arg)
{
	uint64_t epoch, words[2 * BLOCK / 8], first = (uintptr_t)arg, mine = 0;
	struct efuse_data range = { .nodeid = 1, .data = words, .size = sizeof(words) };
	struct efuse_published done;
	size_t i;

	for (epoch = first; epoch < ROUNDS; epoch += 2) {
		for (i = 0; i < sizeof(words) / 8; i++)
			words[i] = epoch;
		range.epoch = epoch;
		range.block = epoch % 11;
		efuse_publish(&shared, &range, &done);
		CHECK(done.stored + done.busy + done.newer == 2);
		mine += done.stored;
	}
	__atomic_fetch_add(&stored, mine, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&running, 1, __ATOMIC_RELAXED);
	return NULL;
}

static bool read_lock(struct efuse_tag *tag)
{
	uint32_t old = __atomic_load_n(&tag->lock, __ATOMIC_RELAXED);

	do {
		if ((int)old < 0 || old == INT_MAX)
			return false;
	} while (!__atomic_compare_exchange_n(&tag->lock, &old, old + 1, true, __ATOMIC_ACQUIRE,
					      __ATOMIC_RELAXED));
	return true;
}

static void *reader(void *arg)
{
	uint64_t words[BLOCK / 8];
	struct efuse_tag copy;
	unsigned int n;
	size_t i;

	(void)arg;
	for (n = 0; __atomic_load_n(&running, __ATOMIC_RELAXED); n++) {
		unsigned int slot = n % (shared.sets * EFUSE_WAYS);
		struct efuse_tag *tag = &shared.tags[slot / EFUSE_WAYS].way[slot % EFUSE_WAYS];

		if (!read_lock(tag))
			continue;
		memcpy(&copy, tag, sizeof(copy));
		memcpy(words, shared.blocks[slot].data, sizeof(words));
		__atomic_store_n(&tag->used, 1, __ATOMIC_RELAXED);
		__atomic_fetch_sub(&tag->lock, 1, __ATOMIC_RELEASE);
		if (!copy.nodeid)
			continue;
		CHECK(copy.nodeid == 1 && copy.len == BLOCK && copy.block < 12);
		CHECK(copy.block == copy.epoch % 11 || copy.block == copy.epoch % 11 + 1);
		for (i = 0; i < sizeof(words) / 8; i++)
			CHECK(words[i] == copy.epoch);
		seen++;
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[3];
	int i;

	shared = new_cache(1);
	running = 2;
	for (i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, publisher, (void *)(uintptr_t)(i + 1)));
	CHECK(!pthread_create(&threads[2], NULL, reader, NULL));
	for (i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(stored > ROUNDS && seen > 100);
	for (i = 0; i < EFUSE_WAYS; i++)
		CHECK(!shared.tags->way[i].lock);
	end_cache(&shared);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "memory"))
		test_memory();
	else if (argc == 2 && !strcmp(argv[1], "system-calls"))
		test_system_calls();
	else if (argc == 2 && !strcmp(argv[1], "threads"))
		test_threads();
	else
		return 2;
	return 0;
}
