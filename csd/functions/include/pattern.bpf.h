/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pattern of up to 64 bytes, found by Shift-And (Baeza-Yates and Gonnet, "A new approach to text
 * searching", CACM 35(10), 1992). Bit N of `match` is set if the last N + 1 bytes match the first N
 * + 1 bytes of the pattern. Each byte costs one table look-up, and a match may span blocks.
 */
#ifndef _PATTERN_BPF_H
#define _PATTERN_BPF_H

#include "csd.bpf.h"

/* Arguments of a function with a pattern; efuse/functions/patterns.py makes them. */
struct pattern_args {
	u64 accept[256];	/* per byte value: bit N: it matches the pattern's byte N */
	u64 last;		/* bit of the pattern's last byte; 0: there is no pattern */
};

/* Updates `match` with one more byte. If bit `last` is set then, the pattern ends at this byte. */
static inline u64 pattern_match(u64 match, u8 byte, const struct pattern_args *args)
{
	return (match << 1 | 1) & args->accept[byte];
}

#endif /* _PATTERN_BPF_H */
