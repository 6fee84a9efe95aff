/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pattern of up to 64 bytes, found by Shift-And (Baeza-Yates and Gonnet, "A new approach to text
 * searching", CACM 35(10), 1992): bit N of `match` says that the last N + 1 bytes are the
 * pattern's first N + 1. A byte costs one look-up, and a match may lie across blocks.
 */
#ifndef _PATTERN_BPF_H
#define _PATTERN_BPF_H

#include "csd.bpf.h"

/* efuse/functions/patterns.py makes them. */
struct pattern_args {
	u64 accept[256];	/* by byte: bit N: the pattern's byte N may be it */
	u64 last;		/* the bit of the pattern's last byte; 0: there is no pattern */
};

/* What has been matched, with one more byte; its bit `last` says that the pattern ends here. */
static inline u64 pattern_match(u64 match, u8 byte, const struct pattern_args *args)
{
	return (match << 1 | 1) & args->accept[byte];
}

#endif /* _PATTERN_BPF_H */
