// SPDX-License-Identifier: GPL-2.0
/*
 * Listings of directories that go on after the end of their daemon.
 *
 * A position in a listing means nothing to the next daemon, or something else. So the successor is
 * asked for the listing from its beginning, and the names that the caller has got already are left
 * out. They are noted, as hashes, for each open directory.
 *
 * Of a listing whose names could not be noted, the successor gets the position as it is.
 */
#include "transport_i.h"

#include <linux/siphash.h>
#include <linux/sort.h>

/* The most names of a listing that are noted. */
#define EFUSE_MAX_LISTED	BIT(22)

/**
 * struct efuse_listed - an entry that the present daemon has returned
 * @name: hash of the name
 * @off: position after the entry
 */
struct efuse_listed {
	u64 name;
	u64 off;
};

static bool efuse_lists_plus(const struct fuse_args *args)
{
	return args->opcode == FUSE_READDIRPLUS;
}

/* Makes room for @more elements of @size bytes behind @nr. */
static void *efuse_listing_grow(void *array, u32 nr, u32 more, u32 *room, size_t size)
{
	u32 wanted = max(nr + more, 2 * *room);
	void *grown;

	if (nr + more <= *room)
		return array;
	if (nr + more > EFUSE_MAX_LISTED)
		return NULL;
	grown = kvmalloc_array(wanted, size, GFP_KERNEL_ACCOUNT);
	if (!grown)
		return NULL;
	memcpy(grown, array, nr * size);
	kvfree(array);
	*room = wanted;
	return grown;
}

static int efuse_hash_compare(const void *a, const void *b)
{
	u64 first = *(const u64 *)a, second = *(const u64 *)b;

	return first < second ? -1 : first > second;
}

static bool efuse_listing_has(const struct efuse_listing *listing, u64 name)
{
	u32 low = 0, high = listing->nr_before;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (listing->before[middle] == name)
			return true;
		if (listing->before[middle] < name)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

/* The caller has got the entries up to @off. Entries behind it were not delivered. */
static void efuse_listing_cut(struct efuse_listing *listing, u64 off)
{
	u32 nr = listing->nr_now;

	while (nr && listing->now[nr - 1].off != off)
		nr--;
	/* The caller is where the listing began, or has sought to another place. */
	if (!nr && off != listing->start)
		listing->lost = true;
	listing->nr_now = nr;
}

/* What the present daemon has returned becomes what an earlier one has. */
static void efuse_listing_age(struct efuse_listing *listing)
{
	u64 *before;
	u32 i;

	before = efuse_listing_grow(listing->before, listing->nr_before, listing->nr_now,
				    &listing->room_before, sizeof(*before));
	if (!before && listing->nr_now) {
		listing->lost = true;
		return;
	}
	listing->before = before;
	for (i = 0; i < listing->nr_now; i++)
		before[listing->nr_before++] = listing->now[i].name;
	listing->nr_now = 0;
	sort(before, listing->nr_before, sizeof(*before), efuse_hash_compare, NULL);
}

/**
 * efuse_listing_place - a part of a listing is about to be requested
 * @listing: the listing
 * @off: the caller's position
 * @incarnation: number of the daemon
 *
 * Context: process context, may sleep; one part at a time.
 * Return: the position that the daemon is asked for
 */
u64 efuse_listing_place(struct efuse_listing *listing, u64 off, u32 incarnation)
{
	bool same = listing->incarnation == incarnation;
	bool moved = off != listing->asked;

	listing->incarnation = incarnation;
	listing->asked = off;
	if (!off) {
		listing->nr_now = 0;
		listing->nr_before = 0;
		listing->start = 0;
		listing->lost = false;
		return 0;
	}
	/* The last call has delivered nothing, such as to a buffer that was too small. */
	if (same && off == listing->start && !moved)
		listing->nr_now = 0;
	if (!listing->lost)
		efuse_listing_cut(listing, off);
	if (!same && !listing->lost)
		efuse_listing_age(listing);
	if (listing->lost)
		return off;
	if (!same)
		listing->start = off;
	/* The caller's position stands for the beginning of the new listing until it moves on. */
	return off == listing->start && !listing->nr_now ? 0 : off;
}

/* Notes a name. False: it has been delivered already. */
static bool efuse_listing_note(struct efuse_conn *ec, struct efuse_listing *listing,
			       const struct fuse_dirent *dirent)
{
	struct efuse_listed *now;
	u64 name;

	if (listing->lost)
		return true;
	name = siphash(dirent->name, dirent->namelen, &ec->caller_key);
	if (efuse_listing_has(listing, name))
		return false;
	now = efuse_listing_grow(listing->now, listing->nr_now, 1, &listing->room_now,
				 sizeof(*now));
	if (!now) {
		listing->lost = true;
		return true;
	}
	listing->now = now;
	now[listing->nr_now++] = (struct efuse_listed){ .name = name, .off = dirent->off };
	return true;
}

/* The lookup count of an entry that is left out is given back. */
static void efuse_listing_drop(struct efuse_conn *ec, const struct fuse_args *args, char *at)
{
	const struct fuse_direntplus *plus = (const struct fuse_direntplus *)at;

	if (efuse_lists_plus(args) && !efuse_is_dots(&plus->dirent))
		efuse_entry_return(ec, plus->entry_out.nodeid, args->efuse.serial - 1);
}

/**
 * efuse_listing_take - a part of a listing has come: leave out what the caller has got already
 * @ec: connection
 * @listing: the listing
 * @args: the READDIR or READDIRPLUS
 * @got: size of the reply, bytes
 * @last: set to the position after the last entry of the reply, if there is one
 *
 * Context: process context, may sleep.
 * Return: size of what is left of the reply, bytes; -EIO if it cannot be read
 */
ssize_t efuse_listing_take(struct efuse_conn *ec, struct efuse_listing *listing,
			   struct fuse_args *args, size_t got, u64 *last)
{
	size_t skip = efuse_lists_plus(args) ? offsetof(struct fuse_direntplus, dirent) : 0;
	size_t room, size, done = 0, kept = 0;
	char *data = efuse_out_data(args, &room);
	struct fuse_dirent *dirent;

	if (!data || got > room)
		return -EIO;
	while (got - done >= skip + FUSE_NAME_OFFSET) {
		dirent = (struct fuse_dirent *)(data + done + skip);
		size = FUSE_DIRENT_ALIGN(skip + FUSE_NAME_OFFSET + dirent->namelen);
		if (dirent->namelen > FUSE_NAME_MAX || size > got - done)
			break;
		*last = dirent->off;
		if (efuse_listing_note(ec, listing, dirent)) {
			memmove(data + kept, data + done, size);
			kept += size;
		} else {
			efuse_listing_drop(ec, args, data + done);
		}
		done += size;
	}
	/* FUSE judges the rest. */
	memmove(data + kept, data + done, got - done);
	return kept + got - done;
}

/* Frees what was noted of a listing. */
void efuse_listing_free(struct efuse_listing *listing)
{
	kvfree(listing->now);
	kvfree(listing->before);
}
