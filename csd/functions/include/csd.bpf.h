/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a storage function may use. csd/src/function.h is the manual.
 *
 * The source of a function defines step(), and finish() if it emits something at the end:
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
 * Loops need a bound that the verifier can see. The verifier walks through every round of a loop
 * over the bytes of a block, and gives up if each round has a branch. Avoid branches with
 * csd_equal() and the like, or use csd_more().
 */
#ifndef _CSD_BPF_H
#define _CSD_BPF_H

#include <linux/csd.h>
#include <linux/errno.h>

struct csd_run;

/* The numbers are used nowhere else; see efuse.bpf.h. */
#define CSD_KFUNC(number) = (void *)(number)

static const u8 *(*csd_block)(struct csd_run *run, u64 size) CSD_KFUNC(1001001);
static u32 (*csd_len)(struct csd_run *run) CSD_KFUNC(1001002);
static u64 (*csd_offset)(struct csd_run *run) CSD_KFUNC(1001003);
static void *(*csd_scratch)(struct csd_run *run, u64 size) CSD_KFUNC(1001004);
static const void *(*csd_args)(struct csd_run *run, u64 size) CSD_KFUNC(1001005);
static int (*csd_emit)(struct csd_run *run, const void *data, u32 size) CSD_KFUNC(1001006);
static int (*csd_emit_block)(struct csd_run *run, u32 first, u32 size) CSD_KFUNC(1001007);
static int (*csd_next)(struct csd_run *run, u64 offset) CSD_KFUNC(1001008);

/* The highest bit of a number. The asm keeps clang from turning it into a branch. */
static inline u64 csd_sign(u64 number)
{
	asm volatile("" : "+r"(number));
	return number >> 63;
}

/* 1 or 0, without a branch. The arguments must be below 1 << 63. */
#define csd_equal(a, b) csd_sign(((u64)(a) ^ (u64)(b)) - 1)
#define csd_below(a, b) csd_sign((u64)(a) - (u64)(b))

/* 1 if any bit of the argument is set, else 0, without a branch. */
#define csd_any(a) csd_sign((u64)(a) | -(u64)(a))

/*
 * 1 if a < b, else 0, without a branch, for any unsigned numbers (Warren, "Hacker's Delight",
 * 2-12).
 */
static inline u64 csd_less(u64 a, u64 b)
{
	return csd_sign((~a & b) | ((~a | b) & (a - b)));
}

/*
 * For a loop with branches: `for (left = csd_len(run); left && csd_more(left); left--)`. The
 * verifier then checks one round for all values of the counter together, provided that it does not
 * know the first value, and that no other variable of the loop rises from a value that it knows.
 * The first asm keeps clang from adding such variables: it must use the counter itself.
 * csd_more() is 1, but 0 after 8 million rounds, which no loop over a block reaches. It is the
 * instruction may_goto of Linux 6.9, which the clang in use cannot assemble by name.
 */
#define csd_more(counter)					\
({								\
	__label__ csd_over, csd_decided;			\
	int csd_goes_on = 1;					\
								\
	asm volatile("" : "+r"(counter));			\
	asm volatile goto("1: .byte 0xe5, 0\n"			\
			  ".long (%l[csd_over] - 1b - 8) / 8 & 0xffff\n"	\
			  ".short 0" : : : : csd_over);		\
	goto csd_decided;					\
csd_over:							\
	csd_goes_on = 0;					\
csd_decided:							\
	csd_goes_on;						\
})

/* The type of the function's scratch, and the type of the caller's arguments. */
#define CSD_SCRATCH(type) int scratch_size(void) { return sizeof(type); }
#define CSD_ARGS(type) int args_size(void) { return sizeof(type); }

/* The function's properties: enum csd_flags. */
#define CSD_FLAGS(value) int flags(void) { return (value); }

#endif /* _CSD_BPF_H */
