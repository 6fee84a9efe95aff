/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a library that is preloaded needs to stand before another one. */
#ifndef EFUSE_NEXT_H
#define EFUSE_NEXT_H

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

/* The next definition of a function, looked up once. */
#define NEXT(name) \
	({ \
		static __typeof__(&name) next; \
		if (!next) \
			next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
		next; \
	})

#endif
