/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a tracing program may use to read the kernel's structures without their headers: offsets
 * that efuse.bpf.tracing takes from the running kernel's BTF.
 *
 * A program gets the arguments of its hook as u64 in its u64 *ctx. A pointer has to be compared
 * with 0 before it is used, because the verifier assumes that a module's pointers may be NULL.
 */
#ifndef _EFUSE_TRACING_BPF_H
#define _EFUSE_TRACING_BPF_H

#include <linux/errno.h>
#include <linux/fuse.h>

/*
 * A number that only the running kernel knows; efuse.bpf.relocation replaces the placeholder. The
 * compiler cannot look into the asm, and so computes nothing with the placeholder.
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
 * FIELD(name, number, struct, member): name() is the member's offset in bytes; "member" may be a
 * path such as in.h.nodeid. EITHER: the offset in a second struct if the kernel does not have the
 * first one. BIT: the offset of a bit field, in bits. SIZE: the size of the struct. The numbers are
 * chosen by the program, each used once.
 */
#define FIELD(name, number, type, member)	KERNEL_NUMBER(name, number)
#define EITHER(name, number, type, member, type2, member2)		\
	KERNEL_NUMBER(name, number)
#define BIT(name, number, type, member)		KERNEL_NUMBER(name, number)
#define SIZE(name, number, type)		KERNEL_NUMBER(name, number)

/* Reads an lvalue from a pointer plus an offset in bytes. Returns 0 or a negative errno. */
#define READ(into, pointer, offset)					\
	bpf_probe_read_kernel(&(into), sizeof(into), (void *)((u64)(pointer) + (offset)))

static inline bool read_bit(u64 pointer, u64 bit)
{
	u8 byte = 0;

	READ(byte, pointer, bit >> 3);
	return byte >> (bit & 7) & 1;
}

#endif /* _EFUSE_TRACING_BPF_H */
