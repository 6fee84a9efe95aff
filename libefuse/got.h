/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces a function that a loaded object calls by another function. */
#ifndef EFUSE_GOT_H
#define EFUSE_GOT_H

#define GOT_PLACES	4

/**
 * struct got - what was replaced in an object
 * @places: where the object keeps the function's address
 * @before: the addresses that were there
 * @used: number of entries in @places and @before
 * @protected: start of the part of the object that is read-only after relocation
 * @protected_end: end of that part
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
