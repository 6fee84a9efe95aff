// SPDX-License-Identifier: GPL-2.0
/*
 * The counters of a connection, kept per CPU.
 *
 * Most requests are not timed. The counters of times, which take as much memory as all others, are
 * allocated when times are watched first, or when a program set is attached that measures READs.
 */
#include "core_i.h"

/* The sum over all CPUs of the u64 at @offset in a structure that each CPU has. */
static u64 efuse_percpu_sum(const char __percpu *each, size_t offset)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(const u64 *)(per_cpu_ptr(each, cpu) + offset));
	return sum;
}

/* The sum over all CPUs of the u64 counter at @offset in struct efuse_stats. */
u64 efuse_stats_sum(const struct efuse_conn *ec, size_t offset)
{
	return efuse_percpu_sum((const char __percpu *)ec->stats, offset);
}

/* The sum over all CPUs of the u64 at @offset in struct efuse_times. */
u64 efuse_times_sum(const struct efuse_conn *ec, size_t offset)
{
	const struct efuse_times __percpu *times = READ_ONCE(ec->times);

	return times ? efuse_percpu_sum((const char __percpu *)times, offset) : 0;
}

/**
 * efuse_times_add - allocate the counters of times of a connection, if it has none
 * @ec: connection
 *
 * Context: process context, under efuse_conn_mutex.
 * Return: 0 or -ENOMEM
 */
int efuse_times_add(struct efuse_conn *ec)
{
	lockdep_assert_held(&efuse_conn_mutex);
	if (!ec->times)
		WRITE_ONCE(ec->times, alloc_percpu_gfp(struct efuse_times, GFP_KERNEL_ACCOUNT));
	return ec->times ? 0 : -ENOMEM;
}

static void efuse_time_add(struct efuse_time __percpu *time, u64 ns)
{
	this_cpu_add(time->ns, ns);
	this_cpu_inc(time->timed);
}

/* Count the time of an answer of the kernel. */
void efuse_count_hit_time(struct efuse_conn *ec, u32 opcode, u64 ns)
{
	struct efuse_times __percpu *times = READ_ONCE(ec->times);

	if (times && opcode < EFUSE_NR_OPCODES)
		efuse_time_add(&times->hit[opcode], ns);
}

/* Count the time of an answer of the daemon. */
void efuse_count_daemon_time(struct efuse_conn *ec, u32 opcode, u64 ns)
{
	struct efuse_times __percpu *times = READ_ONCE(ec->times);

	if (times && opcode < EFUSE_NR_OPCODES)
		efuse_time_add(&times->daemon[opcode], ns);
}

static unsigned int efuse_latency_class(u64 ns)
{
	int log = fls64(ns) - 1;

	if (log < EFUSE_LATENCY_MIN_LOG)
		return 0;
	if (log >= EFUSE_LATENCY_MAX_LOG)
		return EFUSE_NR_LATENCIES - 1;
	return (log - EFUSE_LATENCY_MIN_LOG) * 4 + (ns >> (log - 2) & 3) + 1;
}

/* Count the time of a READ or WRITE that a path has answered. */
void efuse_count_path_time(struct efuse_conn *ec, enum efuse_path path, u64 ns)
{
	struct efuse_times __percpu *times = READ_ONCE(ec->times);

	if (!times)
		return;
	efuse_time_add(&times->path[path], ns);
	this_cpu_inc(times->latency[path][efuse_latency_class(ns)]);
}
