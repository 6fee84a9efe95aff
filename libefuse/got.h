/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another function in the place of one that a loaded object calls. */
#ifndef EFUSE_GOT_H
#define EFUSE_GOT_H

#define GOT_PLACES	4

/**
 * struct got - what was replaced in an object
 * @places: where the object keeps the function's address
 * @before: what was there
 * @used: how many of them
 * @protected: where an object's addresses are read-only since it was loaded
 * @protected_end: behind that
 */
struct got {
	void **places[GOT_PLACES];
	void *before[GOT_PLACES];
	unsigned int used;
	char *protected;
	char *protected_end;
};

int got_replace(struct got *got, const char *object, const char *function, void *other);
void got_restore(struct got *got);

#endif
