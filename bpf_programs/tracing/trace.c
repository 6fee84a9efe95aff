// SPDX-License-Identifier: GPL-2.0
/*
 * Puts answered requests into the ring `requests`. For the kernel's own FUSE, it hooks where the
 * caller enters and leaves FUSE. For efuse.ko, it uses a trace event. The arguments of a request
 * are read while they cannot be freed: by the caller that owns them, or before the end of a
 * background request is called.
 */
#include "tracing.bpf.h"

FIELD(mount_conn, 1, fuse_mount, fc)
FIELD(conn_dev, 2, fuse_conn, dev)
FIELD(req_args, 3, fuse_req, args)
EITHER(req_owner, 25, fuse_req, chan, fuse_req, fm)
EITHER(owner_conn, 26, fuse_chan, conn, fuse_mount, fc)
FIELD(req_error, 4, fuse_req, out.h.error)
FIELD(args_opcode, 5, fuse_args, opcode)
FIELD(args_nodeid, 6, fuse_args, nodeid)
FIELD(args_in, 7, fuse_args, in_args)
FIELD(args_out, 8, fuse_args, out_args)
FIELD(args_nr_in, 9, fuse_args, in_numargs)
FIELD(args_nr_out, 10, fuse_args, out_numargs)
EITHER(args_pages, 11, fuse_args_pages, pages, fuse_args_pages, folios)
FIELD(args_descs, 12, fuse_args_pages, descs)
BIT(args_out_pages, 14, fuse_args, out_pages)
BIT(args_out_argvar, 15, fuse_args, out_argvar)
SIZE(page_size, 16, page)

/* Only of efuse.ko. */
FIELD(efuse_conn, 17, efuse_req, ec)
FIELD(efuse_args, 18, efuse_req, args)
FIELD(efuse_sent, 19, efuse_req, sent)
FIELD(efuse_missed, 20, efuse_req, path.missed)
FIELD(efuse_id, 21, efuse_conn, id)
FIELD(args_begun, 22, fuse_args, efuse.begun_ns)
FIELD(args_answered_by, 23, fuse_args, efuse.answered_by)
FIELD(args_reason, 24, fuse_args, efuse.reason)

#define NAME_MAX	255
#define IN_BYTES	64	/* most bytes of the first input argument */
#define OUT_BYTES	128	/* most bytes of the first output argument: fuse_entry_out */
#define CHUNK		4096	/* most bytes of an answer that are compared */
#define ANSWERED_BY_DAEMON	1	/* EFUSE_PATH_DAEMON */

/* Limits a u64, in a way that the compiler does not optimise and the verifier understands. */
#define AT_MOST(n, most)						\
	asm volatile("if %0 <= %1 goto +1\n\t%0 = %1" : "+r"(n) : "i"(most))

#define PARTIAL		1	/* another path had to help */
#define BACKGROUND	2	/* no caller waited for it */
#define DIGESTED	4	/* @digest is that of the answer's data */

struct fuse_argument {	/* struct fuse_in_arg, struct fuse_arg */
	u32 size;
	u32 pad;
	u64 value;
};

struct descriptor {	/* struct fuse_page_desc, struct fuse_folio_desc */
	u32 length;
	u32 offset;
};

/* The format that efuse.tracing.request reads. The names follow each other without a gap. */
struct request {
	u64 time_ns;
	u64 ns;
	u64 nodeid;
	u64 digest;
	s64 ret;
	u32 connection;
	u32 opcode;
	u32 pid;
	u32 thread;
	u32 uid;
	u8 answered_by;
	u8 reason;
	u8 flags;
	u8 pad;
	u16 name_len[2];
	u16 in_len;
	u16 out_len;
	char comm[16];
	u8 in[IN_BYTES];
	u8 out[OUT_BYTES];
	char names[512];
};

_Static_assert(sizeof(struct request) == 80 + 8 + IN_BYTES + OUT_BYTES + 512, "request");

struct caller {
	u64 begun_ns;
	u64 task;
	u64 user;
	u64 background;
	char comm[16];
};

/* Set before any connection is watched. */
struct settings {
	u64 digest;		/* make digests, to compare answers */
	u64 page_offset_base;	/* addresses of kernel variables, 0: not known */
	u64 vmemmap_base;
};

struct chunk {
	u64 words[CHUNK / 8];
	char behind[CHUNK];
};

/* Programs may interrupt each other on a CPU, so each has a slot of its own. */
enum { SLOT_DONE, SLOT_ENDED, SLOT_UNSENT, SLOT_EFUSE, NR_SLOTS };

BPF_RINGBUF_OUTPUT(requests, 1024);
BPF_TABLE("array", int, u64, lost, 1);
BPF_TABLE("array", int, struct settings, settings, 1);
BPF_TABLE("hash", u32, u32, watched, 64);
BPF_TABLE("lru_hash", u64, struct caller, callers, 16384);
BPF_TABLE("percpu_array", int, struct request, scratch, NR_SLOTS);
BPF_TABLE("percpu_array", int, struct chunk, chunks, NR_SLOTS);

/*
 * The device number of a connection if it is watched, else 0, which no connection has. The pointer
 * to the connection is at @offset of @owner.
 */
static inline u32 watched_conn(u64 owner, u64 offset)
{
	u64 conn = 0;
	u32 dev = 0;

	READ(conn, owner, offset);
	READ(dev, conn, conn_dev());
	return watched.lookup(&dev) ? dev : 0;
}

static inline void fill_caller(struct caller *caller)
{
	caller->begun_ns = bpf_ktime_get_ns();
	caller->task = bpf_get_current_pid_tgid();
	caller->user = bpf_get_current_uid_gid();
	bpf_get_current_comm(caller->comm, sizeof(caller->comm));
}

static inline int begin(u64 mount, u64 args, u64 background)
{
	struct caller caller = {};

	if (!mount || !args || !watched_conn(mount, mount_conn()))
		return 0;
	fill_caller(&caller);
	caller.background = background;
	callers.update(&args, &caller);
	return 0;
}

/* The number of names among the input arguments, and the index of the first one. */
static inline int name_place(u32 opcode, int *count)
{
	*count = 1;
	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_REMOVEXATTR:
		return 0;
	case FUSE_SYMLINK:
		*count = 2;
		return 0;
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_CREATE:
	case FUSE_TMPFILE:
	case FUSE_LINK:
	case FUSE_SETXATTR:
	case FUSE_GETXATTR:
		return 1;
	case FUSE_RENAME:
	case FUSE_RENAME2:
		*count = 2;
		return 1;
	}
	*count = 0;
	return 0;
}

/*
 * Appends a name to the *end bytes of names in the request. Returns the name's length. @nul: the
 * size of the NUL at the end of the argument, 0 or 1.
 */
static inline u16 copy_name(struct request *request, u64 argument, u64 nul, u64 *end)
{
	struct fuse_argument in = {};
	u64 len, at = *end;

	READ(in, argument, 0);
	if (!in.size)
		return 0;
	len = in.size - nul;
	AT_MOST(len, NAME_MAX);
	AT_MOST(at, NAME_MAX);
	if (bpf_probe_read_kernel(&request->names[at], len, (void *)in.value))
		return 0;
	*end = at + len;
	return len;
}

static inline u64 copy_names(struct request *request, u64 args)
{
	struct fuse_argument in = {};
	u64 end = 0, nul = 1;
	int count, place = name_place(request->opcode, &count);

	/*
	 * Newer kernels have an empty argument before the name, and the NUL of LOOKUP's name in
	 * another argument after it.
	 */
	READ(in, args, args_in());
	if (!place && !in.size) {
		place = 1;
		nul = request->opcode != FUSE_LOOKUP;
	}
	request->name_len[0] = 0;
	request->name_len[1] = 0;
	if (count > 0)
		request->name_len[0] =
			copy_name(request, args + args_in() + place * sizeof(in), nul, &end);
	if (count > 1)
		request->name_len[1] =
			copy_name(request, args + args_in() + (place + 1) * sizeof(in), 1, &end);
	return end;
}

static inline void copy_arguments(struct request *request, u64 args)
{
	struct fuse_argument in = {}, out = {};
	u8 nr_in = 0, nr_out = 0;
	u64 len;

	READ(nr_in, args, args_nr_in());
	READ(nr_out, args, args_nr_out());
	if (nr_in)
		READ(in, args, args_in());
	if (nr_out)
		READ(out, args, args_out());
	request->in_len = 0;
	len = in.size;
	AT_MOST(len, IN_BYTES);
	if (len && !bpf_probe_read_kernel(request->in, len, (void *)in.value))
		request->in_len = len;
	request->out_len = 0;
	len = out.size;
	AT_MOST(len, OUT_BYTES);
	/* If the data is in pages, the argument has no address. */
	if (len && out.value && !bpf_probe_read_kernel(request->out, len, (void *)out.value))
		request->out_len = len;
}

static inline u64 mix(u64 digest, u64 word)
{
	digest = (digest ^ word) * 0x9fb21c651e98df25ULL;
	return digest ^ digest >> 32;
}

/* The address of a page's bytes in memory. */
static inline u64 page_address_of(u64 page, const struct settings *set)
{
	u64 offset_base = 0, map_base = 0;

	READ(offset_base, set->page_offset_base, 0);
	READ(map_base, set->vmemmap_base, 0);
	return offset_base + (page - map_base) / page_size() * CHUNK;
}

/*
 * The address of an answer's data, or 0 if it has none. Sets its size, and the size of its first
 * contiguous piece.
 */
static inline u64 data_of(u64 args, const struct settings *set, u64 *size, u64 *piece)
{
	struct fuse_argument out = {};
	struct descriptor desc = {};
	u64 pages = 0, descs = 0, page = 0;
	u8 nr = 0;

	READ(nr, args, args_nr_out());
	if (!nr || nr > 2)
		return 0;
	READ(out, args, args_out() + (nr - 1) * sizeof(out));
	*size = out.size;
	*piece = out.size;
	if (!read_bit(args, args_out_pages()))
		return read_bit(args, args_out_argvar()) ? out.value : 0;
	if (!set->page_offset_base || !set->vmemmap_base)
		return 0;
	READ(pages, args, args_pages());
	READ(descs, args, args_descs());
	READ(page, pages, 0);
	READ(desc, descs, 0);
	if (!page)
		return 0;
	if (*piece > desc.length)
		*piece = desc.length;
	return page_address_of(page, set) + desc.offset;
}

/* Digests an answer with data: the size of the data and its first 4 KiB. */
static inline void digest_answer(struct request *request, u64 args, int slot)
{
	u64 digest, address, size = 0, len = 0;
	struct settings *set;
	struct chunk *chunk;
	int zero = 0, i;

	set = settings.lookup(&zero);
	chunk = chunks.lookup(&slot);
	if (!set || !chunk || !set->digest || request->ret < 0)
		return;
	address = data_of(args, set, &size, &len);
	if (!address)
		return;
	AT_MOST(len, CHUNK);
	if (bpf_probe_read_kernel(chunk, len, (void *)address))
		return;
	/*
	 * This read fails and so zeroes the buffer behind the data, which may hold bytes of an
	 * earlier answer.
	 */
	bpf_probe_read_kernel((char *)chunk + len, CHUNK, NULL);
	digest = mix(0, size);
	for (i = 0; i < CHUNK / 8; i++)
		digest = mix(digest, chunk->words[i]);
	request->digest = digest;
	request->flags |= DIGESTED;
}

static inline void submit(struct request *request, u64 args)
{
	u64 size = copy_names(request, args);
	int zero = 0;
	u64 *dropped;

	copy_arguments(request, args);
	AT_MOST(size, sizeof(request->names));
	size += __builtin_offsetof(struct request, names);
	if (!requests.ringbuf_output(request, size, 0))
		return;
	dropped = lost.lookup(&zero);
	if (dropped)
		lock_xadd(dropped, 1);
}

static inline void fill(struct request *request, u64 args, s64 ret)
{
	request->time_ns = bpf_ktime_get_ns();
	request->ret = ret;
	request->flags = 0;
	request->digest = 0;
	request->answered_by = ANSWERED_BY_DAEMON;
	request->reason = 0;
	request->pad = 0;
	READ(request->opcode, args, args_opcode());
	READ(request->nodeid, args, args_nodeid());
}

static inline void fill_from(struct request *request, const struct caller *caller)
{
	request->ns = caller->begun_ns ? request->time_ns - caller->begun_ns : 0;
	request->pid = caller->task >> 32;
	request->thread = caller->task;
	request->uid = caller->user;
	__builtin_memcpy(request->comm, caller->comm, sizeof(request->comm));
	if (caller->background)
		request->flags |= BACKGROUND;
}

/* Ends a request of the kernel's own FUSE. Only requests that began while watched are known. */
static inline int finish(u32 connection, u64 args, s64 ret, u64 background, int slot)
{
	struct request *request;
	struct caller *caller;

	if (!args)
		return 0;
	caller = callers.lookup(&args);
	request = scratch.lookup(&slot);
	if (!connection || !caller || !request || caller->background != background)
		return 0;
	fill(request, args, ret);
	request->connection = connection;
	fill_from(request, caller);
	callers.delete(&args);
	if (slot != SLOT_UNSENT)
		digest_answer(request, args, slot);
	submit(request, args);
	return 0;
}

/* fentry: __fuse_simple_request(idmap, mount, args) */
int begun(u64 *ctx)
{
	return begin(ctx[1], ctx[2], 0);
}

/* fexit: __fuse_simple_request(idmap, mount, args), with its result */
int done(u64 *ctx)
{
	u64 mount = ctx[1];

	if (!mount)
		return 0;
	return finish(watched_conn(mount, mount_conn()), ctx[2], ctx[3], 0, SLOT_DONE);
}

/* fentry: fuse_simple_background(mount, args, gfp_flags) */
int background(u64 *ctx)
{
	return begin(ctx[0], ctx[1], 1);
}

/*
 * fexit: fuse_simple_background(mount, args, gfp_flags), with its result; if that is 0, the
 * arguments may have been freed
 */
int unsent(u64 *ctx)
{
	u64 mount = ctx[0];
	int ret = ctx[3];

	if (!mount || ret >= 0)
		return 0;
	return finish(watched_conn(mount, mount_conn()), ctx[1], ret, 1, SLOT_UNSENT);
}

/* fentry: fuse_request_end(req) */
int ended(u64 *ctx)
{
	u64 req = ctx[0], owner = 0, args = 0;
	s32 error = 0;

	if (!req)
		return 0;
	READ(owner, req, req_owner());
	READ(args, req, req_args());
	READ(error, req, req_error());
	return finish(watched_conn(owner, owner_conn()), args, error, 1, SLOT_ENDED);
}

/* Fills in the caller of a request that ends in the daemon's context. */
static inline void fill_sent(struct request *request, u64 sent)
{
	struct fuse_in_header header = {};

	READ(header, sent, 0);
	request->pid = header.pid;
	request->thread = header.pid;
	request->uid = header.uid;
	__builtin_memset(request->comm, 0, sizeof(request->comm));
	request->flags |= BACKGROUND;
}

/* tp_btf: efuse_request(req, ret) */
int answered(u64 *ctx)
{
	u64 req = ctx[0], args = 0, conn = 0, sent = 0, begun_ns = 0;
	struct caller *known, here = {};
	struct request *request;
	u32 connection = 0, missed = 0;
	int slot = SLOT_EFUSE;

	request = scratch.lookup(&slot);
	if (!req || !request)
		return 0;
	READ(conn, req, efuse_conn());
	READ(args, req, efuse_args());
	READ(sent, req, efuse_sent());
	READ(connection, conn, efuse_id());
	if (!watched.lookup(&connection))
		return 0;
	fill(request, args, ctx[1]);
	request->connection = connection;
	READ(begun_ns, args, args_begun());
	READ(request->answered_by, args, args_answered_by());
	READ(request->reason, args, args_reason());
	known = callers.lookup(&args);
	if (known) {
		fill_from(request, known);
		callers.delete(&args);
	} else if (sent) {
		fill_sent(request, sent);
	} else {
		fill_caller(&here);
		fill_from(request, &here);
	}
	request->ns = begun_ns ? request->time_ns - begun_ns : 0;
	READ(missed, req, efuse_missed());
	if (request->answered_by != ANSWERED_BY_DAEMON && missed == 1 &&
	    (request->opcode == FUSE_READ || request->opcode == FUSE_WRITE))
		request->flags |= PARTIAL;
	if (request->answered_by == ANSWERED_BY_DAEMON)
		digest_answer(request, args, slot);
	submit(request, args);
	return 0;
}
