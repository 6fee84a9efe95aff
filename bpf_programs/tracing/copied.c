// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the bytes that the kernel copies for each of some processes, which are FUSE daemons: the
 * bytes of requests and replies, by whatever way they come, and the bytes that the daemons splice
 * into files. Bytes that /proc/PID/io counts too are subtracted, so that both numbers can be added.
 */
#include "tracing.bpf.h"

FIELD(state_pipe, 1, fuse_copy_state, pipebufs)

/* By process. Processes that are not in the map are not counted. */
BPF_TABLE("hash", u32, s64, copied, 64);

static inline void add(s64 bytes)
{
	u32 process = bpf_get_current_pid_tgid() >> 32;
	s64 *sum = copied.lookup(&process);

	if (sum)
		__sync_fetch_and_add(sum, bytes);
}

static inline void add_result(s64 bytes_or_error)
{
	if (bytes_or_error > 0)
		add(bytes_or_error);
}

/* Subtracts a read or write of the device, unless it was spliced. */
static inline void take_off_result(u64 state, s64 bytes_or_error)
{
	u64 pipe = 0;

	READ(pipe, state, state_pipe());
	if (!pipe && bytes_or_error > 0)
		add(-bytes_or_error);
}

/*
 * fexit: fuse_copy_do(state, value, size), with the number of bytes; without a value it skips them
 */
int copy(u64 *ctx)
{
	u64 value = 0;

	/* The verifier does not know the type behind this pointer, so ctx[1] cannot be read. */
	bpf_get_func_arg(ctx, 1, &value);
	if (value)
		add((s32)ctx[3]);
	return 0;
}

/* fexit: fuse_dev_do_read(dev, file, state, size), with the number of bytes or an error */
int device_read(u64 *ctx)
{
	take_off_result(ctx[2], ctx[4]);
	return 0;
}

/* fexit: fuse_dev_do_write(dev, state, size), with the number of bytes or an error */
int device_write(u64 *ctx)
{
	take_off_result(ctx[1], ctx[3]);
	return 0;
}

/* fexit, of efuse: fuse_dev_take(dev, file, to, ends), which reads into a channel */
int channel_take(u64 *ctx)
{
	add_result(ctx[4]);
	return 0;
}

/* fexit, of efuse: fuse_dev_reply(dev, from), which writes out of a channel */
int channel_reply(u64 *ctx)
{
	add_result(ctx[2]);
	return 0;
}

/* fexit: iter_file_splice_write(pipe, file, offset, length, flags) */
int splice(u64 *ctx)
{
	add_result(ctx[5]);
	return 0;
}
