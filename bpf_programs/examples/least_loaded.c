// SPDX-License-Identifier: GPL-2.0
/*
 * A simplified form of the kernel's own balancer (balance.c) as a program. A request goes to its
 * home while that has fewer requests than the threshold, else to the channel of the node with the
 * shortest expected delay, or to that of any node if the channel of the node is loaded as well.
 *
 * Unlike the kernel's balancer, it does not prefer a channel with a polling worker; it counts a
 * home with one request as loaded for every background request, whatever channels/spread says; it
 * prefers the lowest CPU among channels with equal delays, not the next one after the home; and it
 * ignores the channels of CPUs from 128 on.
 *
 * This is a starting point for a policy of your own.
 */
#include "efuse.bpf.h"

#define MAX_CPUS	128
#define SERVICE_NS	1000	/* assumed for a channel that has not ended a request */
#define NO_OPINION	(-1)

static inline u64 delay_of(const struct efuse_channel_load *load)
{
	u64 service_ns = load->service_ns ? load->service_ns : SERVICE_NS;

	return (load->depth + load->in_flight + 1) * service_ns;
}

int select_channel(struct efuse_placement *placement)
{
	const struct efuse_placement_info *info = efuse_placement_info(placement, sizeof(*info));
	u64 delay, near_delay, far_delay;
	const struct efuse_channel_load *load;
	u32 cpu, node, near, far, near_load;

	if (!info)
		return NO_OPINION;
	load = efuse_channel_load(placement, info->home, sizeof(*load));
	if (!load)
		return NO_OPINION;
	near_load = load->depth + load->in_flight;
	if (near_load < (info->background ? 1 : info->threshold))
		return info->home;
	near = far = info->home;
	near_delay = far_delay = delay_of(load);
	node = load->node;

	for (cpu = 0; cpu < MAX_CPUS; cpu++) {
		if (cpu >= info->nr_cpus)
			break;
		load = efuse_channel_load(placement, cpu, sizeof(*load));
		if (!load)
			continue;
		delay = delay_of(load);
		if (delay < far_delay) {
			far_delay = delay;
			far = cpu;
		}
		if (load->node == node && delay < near_delay) {
			near_delay = delay;
			near_load = load->depth + load->in_flight;
			near = cpu;
		}
	}
	return near_load < info->threshold ? near : far;
}
