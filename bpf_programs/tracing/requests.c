// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the requests of all connections of one FUSE module, by opcode, and the time of each from
 * the moment when it is handed to the daemon until its answer.
 *
 * On a CPU, the kernel does not run a program while the same program is running. So the counters of
 * a CPU are incremented without atomics.
 */
#include "tracing.bpf.h"

EITHER(req_owner, 1, fuse_req, chan, fuse_req, fm)
FIELD(req_opcode, 2, fuse_req, in.h.opcode)
FIELD(req_error, 3, fuse_req, out.h.error)
EITHER(owner_conn, 4, fuse_chan, conn, fuse_mount, fc)
FIELD(conn_dev, 5, fuse_conn, dev)

#define BUCKETS		28	/* below 256 ns, one for each power of two, from 17 s on */
#define SHORTEST_BITS	8
#define LONGEST_BITS	34
#define OPCODES		64

struct key {
	u32 connection;		/* device number, in the kernel's encoding */
	u32 opcode;
};

struct count {
	u64 first_ns;		/* time of the CPU's first answer */
	u64 requests;
	u64 errors;
	u64 ns;
	u64 latency[BUCKETS];
};

_Static_assert(sizeof(struct count) == 256, "count");

/* The time at which the request at an address was sent. */
BPF_HASH(sent_ns, u64, u64, 16384);
BPF_TABLE("percpu_hash", struct key, struct count, counts, 2048);
/* Number of requests for which one of the maps had no room. */
BPF_TABLE("percpu_array", int, u64, missed, 1);

/* Reads a request by the type that the kernel knows: without a copy or a check at run time. */
#define AT(type, pointer, offset)	(*(type *)((pointer) + (offset)))

static inline struct key key_of(u64 req)
{
	u64 owner = AT(u64, req, req_owner());
	u64 conn = AT(u64, owner, owner_conn());
	struct key key = {
		.connection = AT(u32, conn, conn_dev()),
		.opcode = AT(u32, req, req_opcode()),
	};

	return key;
}

static inline void miss(void)
{
	int zero = 0;
	u64 *count = missed.lookup(&zero);

	if (count)
		++*count;
}

static inline u32 bucket_of(u64 ns)
{
	u32 rest = ns >> SHORTEST_BITS;
	u32 bits = 0;
	u32 step;

	if (ns >> LONGEST_BITS)
		return BUCKETS - 1;
	step = (rest > 0xffff) << 4;
	rest >>= step;
	bits += step;
	step = (rest > 0xff) << 3;
	rest >>= step;
	bits += step;
	step = (rest > 0xf) << 2;
	rest >>= step;
	bits += step;
	step = (rest > 3) << 1;
	rest >>= step;
	bits += step;
	bits += rest > 1 ? 2 : rest;
	return bits;
}

static inline void sent(u64 req)
{
	u64 address = req;	/* a scalar copy, since a map key is no pointer */
	struct key key;
	u32 opcode;
	u64 now;

	if (AT(u32, req, req_opcode()) == FUSE_INIT) {
		/*
		 * The first request of a connection: counters under its number belong to an earlier
		 * one.
		 */
		key = key_of(req);
		for (opcode = 0; opcode < OPCODES; opcode++) {
			key.opcode = opcode;
			counts.delete(&key);
		}
	}
	now = bpf_ktime_get_ns();
	if (sent_ns.update(&address, &now))
		miss();
}

static inline struct count *new_count(struct key *key, u64 now)
{
	struct count none = { .first_ns = now };

	/* Fails if another CPU was first. */
	counts.insert(key, &none);
	return counts.lookup(key);
}

static inline void ended(u64 req)
{
	u64 address = req;
	u64 *since = sent_ns.lookup(&address);
	struct count *count;
	struct key key;
	u64 now, ns;
	u32 bucket;

	if (!since)
		return;
	now = bpf_ktime_get_ns();
	ns = now - *since;
	sent_ns.delete(&address);
	key = key_of(req);
	count = counts.lookup(&key);
	if (!count)
		count = new_count(&key, now);
	if (!count) {
		miss();
		return;
	}
	count->requests++;
	count->ns += ns;
	if (AT(int, req, req_error()) < 0)
		count->errors++;
	bucket = bucket_of(ns);
	if (bucket < BUCKETS)
		count->latency[bucket]++;
}

/* For the tracepoints, and for functions whose first argument is the request. */
int send(u64 *ctx)
{
	sent(ctx[0]);
	return 0;
}

int end(u64 *ctx)
{
	ended(ctx[0]);
	return 0;
}

/* For functions whose first argument is the queue and the second the request. */
int queue(u64 *ctx)
{
	sent(ctx[1]);
	return 0;
}
