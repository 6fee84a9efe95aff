/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a preloaded library needs to wrap functions of other libraries. */
#ifndef EFUSE_NEXT_H
#define EFUSE_NEXT_H

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

/*
 * The next definition of a function. It is looked up once, or by several threads at the same time.
 */
#define NEXT(name) \
	({ \
		static __typeof__(&name) next_; \
		__typeof__(&name) found_ = __atomic_load_n(&next_, __ATOMIC_RELAXED); \
		if (!found_) { \
			found_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
			__atomic_store_n(&next_, found_, __ATOMIC_RELAXED); \
		} \
		found_; \
	})

#endif
