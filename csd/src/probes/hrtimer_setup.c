// SPDX-License-Identifier: GPL-2.0
#include <linux/hrtimer.h>

static void probe(struct hrtimer *timer, enum hrtimer_restart (*due)(struct hrtimer *timer))
{
	hrtimer_setup(timer, due, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
}
