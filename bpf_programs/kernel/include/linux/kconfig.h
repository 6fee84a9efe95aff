/* SPDX-License-Identifier: GPL-2.0 */
/*
 * BCC includes this file first and expects the kernel's headers around it. Handlers do not use
 * kernel structures, so this directory stands in for the headers.
 */
#ifndef _EFUSE_KCONFIG_H
#define _EFUSE_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1

#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
typedef __SIZE_TYPE__ size_t;
typedef __UINTPTR_TYPE__ uintptr_t;

#define true 1
#define false 0
#define NULL ((void *)0)

#endif
