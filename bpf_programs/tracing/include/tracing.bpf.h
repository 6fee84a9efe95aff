/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a tracing program may use to read the kernel's own structures, without their
 * headers: offsets that efuse.bpf.tracing takes out of the running kernel's BTF.
 *
 * A program reads its hook's arguments, as u64, from its u64 *ctx. One that is a pointer has
 * to be compared with 0 before it is used: the verifier takes a module's for ones that may be.
 */
#ifndef _EFUSE_TRACING_BPF_H
#define _EFUSE_TRACING_BPF_H

#include <linux/errno.h>
#include <linux/fuse.h>

/*
 * A number that only the running kernel knows: efuse.bpf.link puts it in the place of
 * this one. The compiler cannot look into the assembler, and so computes nothing with it.
 */
#define KERNEL_NUMBER(name, number)					\
	static inline u64 name(void)					\
	{								\
		u64 value;						\
									\
		asm("%0 = %1 ll" : "=r"(value)				\
		    : "i"(0x7ef5ef1e1d000000ULL + (number)));		\
		return value;						\
	}

/*
 * FIELD(name, number, struct, member): name() is where the member lies, in bytes;
 * "member" may be a path such as in.h.nodeid. EITHER: that of another struct where the
 * kernel has not the first. BIT: of a bit field, in bits. SIZE: how large the struct is.
 * The numbers are the text's own, each used once.
 */
#define FIELD(name, number, type, member)	KERNEL_NUMBER(name, number)
#define EITHER(name, number, type, member, type2, member2)		\
	KERNEL_NUMBER(name, number)
#define BIT(name, number, type, member)		KERNEL_NUMBER(name, number)
#define SIZE(name, number, type)		KERNEL_NUMBER(name, number)

/* Read into an lvalue what lies so many bytes behind a pointer; 0 or a negative errno. */
#define READ(into, pointer, offset)					\
	bpf_probe_read_kernel(&(into), sizeof(into), (void *)((u64)(pointer) + (offset)))

static inline bool read_bit(u64 pointer, u64 bit)
{
	u8 byte = 0;

	READ(byte, pointer, bit >> 3);
	return byte >> (bit & 7) & 1;
}

#endif /* _EFUSE_TRACING_BPF_H */
