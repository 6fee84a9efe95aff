/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a storage function may use. csd/src/function.h is the manual.
 *
 * A function's text defines step(), and finish() if something is to be emitted at the end:
 *
 *	int step(struct csd_run *run)
 *	{
 *		const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
 *		struct state *state = csd_scratch(run, sizeof(*state));
 *
 *		if (!block || !state)
 *			return -EPROTO;
 *		...
 *		return CSD_GO_ON;
 *	}
 *
 *	CSD_SCRATCH(struct state)
 *	CSD_ARGS(struct args)
 *
 * Loops need a bound that the verifier sees. It goes through the whole of a loop over a
 * block's bytes, and gives up if there is a choice in each round: see csd_equal() and the like, or
 * csd_more().
 */
#ifndef _CSD_BPF_H
#define _CSD_BPF_H

#include <linux/csd.h>
#include <linux/errno.h>

struct csd_run;

/* See efuse.bpf.h: the numbers are used nowhere else. */
#define CSD_KFUNC(number) = (void *)(number)

static const u8 *(*csd_block)(struct csd_run *run, u64 size) CSD_KFUNC(1001001);
static u32 (*csd_len)(struct csd_run *run) CSD_KFUNC(1001002);
static u64 (*csd_offset)(struct csd_run *run) CSD_KFUNC(1001003);
static void *(*csd_scratch)(struct csd_run *run, u64 size) CSD_KFUNC(1001004);
static const void *(*csd_args)(struct csd_run *run, u64 size) CSD_KFUNC(1001005);
static int (*csd_emit)(struct csd_run *run, const void *data, u32 size) CSD_KFUNC(1001006);
static int (*csd_emit_block)(struct csd_run *run, u32 first, u32 size) CSD_KFUNC(1001007);
static int (*csd_next)(struct csd_run *run, u64 offset) CSD_KFUNC(1001008);

/* The highest bit. Clang makes branches of it if it can see what it stands for. */
static inline u64 csd_sign(u64 number)
{
	asm volatile("" : "+r"(number));
	return number >> 63;
}

/* 1 or 0, without a branch, of numbers below 1 << 63. */
#define csd_equal(a, b) csd_sign(((u64)(a) ^ (u64)(b)) - 1)
#define csd_below(a, b) csd_sign((u64)(a) - (u64)(b))

/* Likewise: whether any bit is set. */
#define csd_any(a) csd_sign((u64)(a) | -(u64)(a))

/* Likewise: a < b, of any unsigned numbers (Warren, "Hacker's Delight", 2-12). */
static inline u64 csd_less(u64 a, u64 b)
{
	return csd_sign((~a & b) | ((~a | b) & (a - b)));
}

/*
 * For a loop with choices: `for (left = csd_len(run); left && csd_more(); left--)`. The verifier
 * then looks at a round for all numbers at once, if it does not know with which the loop begins.
 * 1; 0 behind 8 million rounds, which no loop over a block has. (The instruction may_goto,
 * which our clang has no name for. Linux 6.9)
 */
#define csd_more()						\
({								\
	__label__ csd_over, csd_decided;			\
	int csd_goes_on = 1;					\
								\
	asm volatile goto("1: .byte 0xe5, 0\n"			\
			  ".long (%l[csd_over] - 1b - 8) / 8 & 0xffff\n"	\
			  ".short 0" : : : : csd_over);		\
	goto csd_decided;					\
csd_over:							\
	csd_goes_on = 0;					\
csd_decided:							\
	csd_goes_on;						\
})

/* What the function remembers from one call to the next, and what its caller brings. */
#define CSD_SCRATCH(type) int scratch_size(void) { return sizeof(type); }
#define CSD_ARGS(type) int args_size(void) { return sizeof(type); }

/* What it is like: enum csd_flags. */
#define CSD_FLAGS(value) int flags(void) { return (value); }

#endif /* _CSD_BPF_H */
