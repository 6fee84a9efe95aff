/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a preloaded library needs to wrap functions of other libraries. */
#ifndef EFUSE_NEXT_H
#define EFUSE_NEXT_H

#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/**
 * next_symbol - find the function that a function of this library wraps
 * @name: its name
 * @caller: an address in the object that called the wrapper, or NULL
 *
 * A library that a plug-in has loaded for itself, such as the libfuse of a Python module, is not
 * among those that the program searches. It is found among the libraries of its caller.
 *
 * Return: the function; NULL if there is none
 */
static inline void *next_symbol(const char *name, const void *caller)
{
	void *found = dlsym(RTLD_NEXT, name), *object;
	Dl_info info;

	if (found || !caller || !dladdr(caller, &info))
		return found;
	object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!object)
		return NULL;
	found = dlsym(object, name);
	dlclose(object); /* the caller keeps it loaded */
	return found;
}

/* The wrapped function. It is looked up once, or by several threads at the same time. */
#define NEXT_OF(name, caller) \
	({ \
		static __typeof__(&name) next_; \
		__typeof__(&name) found_ = __atomic_load_n(&next_, __ATOMIC_RELAXED); \
		if (!found_) { \
			found_ = (__typeof__(&name))next_symbol(#name, caller); \
			__atomic_store_n(&next_, found_, __ATOMIC_RELAXED); \
		} \
		found_; \
	})

/* The same for functions of the C library, which each program searches. */
#define NEXT(name) NEXT_OF(name, NULL)

#endif
