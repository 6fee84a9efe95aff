// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Look keys up in a B+ tree, one after another: lookup FILE WAY DIRECT WARM < KEYS
 *
 * WAY: device, kernel or auto use a run of btree_lookup at that place; pread walks from block to
 * block in this program. DIRECT: 1 opens FILE with O_DIRECT. WARM: number of keys at the beginning
 * that are not measured. KEYS are 8 bytes each, in host byte order. For the measured keys, the
 * first line of output has the total time in ns, the number of blocks at which the device and the
 * kernel looked, and how many of the kernel's blocks were read below the file system. Then follows
 * one line per measured key: the value in hex, or nothing.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/csd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define VALUE_SIZE	64
#define MOST_KEYS	(1 << 20)
#define MAGIC		0x3165657274625f65ULL

/* The structures of btree.bpf.h. */
struct header {
	uint64_t magic;
	uint64_t blocks;
	uint64_t root;
	uint32_t level;
	uint32_t pad;
};

struct node {
	uint32_t magic;
	uint16_t level;
	uint16_t count;
	uint64_t next;
};

struct item {
	uint64_t key;
	uint8_t value[VALUE_SIZE];
};

struct child {
	uint64_t key;
	uint64_t block;
};

struct answer {
	ssize_t size;
	uint8_t value[VALUE_SIZE];
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Lookups with pread(2) */

static _Alignas(CSD_BLOCK_SIZE) uint8_t block[CSD_BLOCK_SIZE];

static void read_block(int fd, uint64_t number)
{
	ssize_t size = pread(fd, block, sizeof(block), number * CSD_BLOCK_SIZE);

	if (size < 0)
		err(1, "block %llu", (unsigned long long)number);
	if (size != sizeof(block))
		errx(1, "block %llu: the file is too short", (unsigned long long)number);
}

/* Returns the last entry whose key is not greater than @key, or the first entry. */
static const void *search(const void *entries, unsigned int count, size_t size, uint64_t key)
{
	unsigned int low = 0;

	while (count > 1) {
		unsigned int half = count / 2;

		if (*(const uint64_t *)((const char *)entries + (low + half) * size) <= key) {
			low += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return (const char *)entries + low * size;
}

static void look_up(int fd, uint64_t key, struct answer *answer)
{
	const struct header *header = (const void *)block;
	const struct node *node = (const void *)block;
	const struct item *item;

	read_block(fd, 0);
	if (header->magic != MAGIC)
		errx(1, "no tree");
	for (read_block(fd, header->root); node->level;) {
		const struct child *child = search(node + 1, node->count, sizeof(*child), key);

		read_block(fd, child->block);
	}
	item = search(node + 1, node->count, sizeof(*item), key);
	answer->size = node->count && item->key == key ? VALUE_SIZE : 0;
	memcpy(answer->value, item->value, answer->size);
}

/* Lookups with runs of btree_lookup */

static int begin(int fd, uint32_t place, const uint64_t *key)
{
	struct csd_setup setup = {
		.name = "btree_lookup",
		.fd = fd,
		.place = place,
		.args = (uintptr_t)key,
		.args_size = sizeof(*key),
	};
	int control = open("/dev/csd", O_RDWR);
	int run = control < 0 ? -1 : ioctl(control, CSD_IOC_RUN, &setup);

	if (run < 0)
		err(1, "btree_lookup");
	return run;
}

static void ask(int run, const uint64_t *key, struct answer *answer)
{
	struct csd_restart restart = { .args = (uintptr_t)key, .args_size = sizeof(*key) };

	if (ioctl(run, CSD_IOC_RESTART, &restart))
		err(1, "restart");
	answer->size = read(run, answer->value, VALUE_SIZE);
	if (answer->size < 0)
		err(1, "btree_lookup");
}

static void add_status(int run, uint64_t *device, uint64_t *kernel, uint64_t *chained)
{
	struct csd_status status;

	if (ioctl(run, CSD_IOC_STATUS, &status))
		err(1, "status");
	*device += status.steps[CSD_DEVICE];
	*kernel += status.steps[CSD_KERNEL];
	*chained += status.chained;
}

static uint32_t place_of(const char *way)
{
	if (!strcmp(way, "device"))
		return CSD_DEVICE;
	return strcmp(way, "kernel") ? CSD_AUTO : CSD_KERNEL;
}

int main(int argc, char **argv)
{
	static uint64_t keys[MOST_KEYS];
	uint64_t ns = 0, device = 0, kernel = 0, chained = 0;
	size_t count = fread(keys, sizeof(*keys), MOST_KEYS, stdin);
	size_t warm, i;
	struct answer *answers;
	int fd, run = -1;

	if (argc != 5)
		errx(2, "lookup FILE WAY DIRECT WARM < KEYS");
	fd = open(argv[1], O_RDONLY | (atoi(argv[3]) ? O_DIRECT : 0));
	if (fd < 0)
		err(1, "%s", argv[1]);
	warm = atoi(argv[4]);
	answers = calloc(count, sizeof(*answers));
	if (!answers || warm >= count)
		errx(2, "too many keys, or too few");
	if (strcmp(argv[2], "pread"))
		run = begin(fd, place_of(argv[2]), keys);
	for (i = 0; i < count; i++) {
		uint64_t start = now_ns();

		if (run < 0)
			look_up(fd, keys[i], &answers[i]);
		else
			ask(run, &keys[i], &answers[i]);
		if (i < warm)
			continue;
		ns += now_ns() - start;
		if (run >= 0)
			add_status(run, &device, &kernel, &chained);
	}
	printf("%llu %llu %llu %llu\n", (unsigned long long)ns, (unsigned long long)device,
	       (unsigned long long)kernel, (unsigned long long)chained);
	for (i = warm; i < count; i++) {
		for (ssize_t at = 0; at < answers[i].size; at++)
			printf("%02x", answers[i].value[at]);
		putchar('\n');
	}
	return 0;
}
