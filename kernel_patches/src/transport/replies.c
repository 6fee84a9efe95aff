// SPDX-License-Identifier: GPL-2.0
/*
 * Sends a request to a daemon that may have successors, and gives its reply the nodeids of the
 * kernel: see translate.c for the request.
 */
#include "transport_i.h"

#include <linux/sched/signal.h>

/* The name has been moved by a RENAME during the LOOKUP, so it is looked up again. */
#define EFUSE_MOVED	(-1026)

/**
 * struct efuse_names_before - which RENAMEs there were when a request was sent
 * @quiet: none was in flight
 * @begun: how many had begun
 */
struct efuse_names_before {
	bool quiet;
	u64 begun;
};

/* Notes that the daemon does not count st_ino as nodeids, if an answer tells that. */
static void efuse_ino_note(struct efuse_conn *ec, const struct fuse_entry_out *entry)
{
	if (entry->nodeid && entry->attr.ino != entry->nodeid && !READ_ONCE(ec->recovery.ino_real))
		WRITE_ONCE(ec->recovery.ino_real, true);
}

static ssize_t efuse_entry_translate(struct fuse_mount *fm, struct efuse_conn *ec,
				     struct fuse_entry_out *entry, u64 known, u32 incarnation)
{
	ssize_t ret;

	if (!entry->nodeid || !incarnation)
		return 0;
	if (!known) {
		ret = efuse_linked_resolve(fm, ec, entry, incarnation);
		if (ret)
			return efuse_lost(ret) ? EFUSE_LOST_READ : ret;
	}
	if (efuse_nodeid_replied(fm, ec, entry, known, incarnation))
		return 0;
	return incarnation == READ_ONCE(ec->recovery.incarnation) ? -ENOMEM : EFUSE_LOST_READ;
}

/* The answer to a LOOKUP may be of the inode that the kernel knows under that name. */
static ssize_t efuse_lookup_translate(struct fuse_mount *fm, struct efuse_conn *ec,
				      const struct fuse_args *args, u64 begun, u32 incarnation)
{
	struct fuse_entry_out *entry = efuse_out_entry(args);
	const char *name;
	u64 known;
	u32 len;

	if (!incarnation || !entry || !entry->nodeid)
		return 0;
	name = efuse_req_name_at(args, 0, &len);
	if (!name)
		return -EIO;
	known = efuse_child_known(fm, ec, args->nodeid, name, len, entry, incarnation);
	if (efuse_moves_since(ec, args->nodeid, name, len, begun)) {
		efuse_entry_return(ec, entry->nodeid, incarnation);
		return EFUSE_MOVED;
	}
	return efuse_entry_translate(fm, ec, entry, known, incarnation);
}

/*
 * An entry of a READDIRPLUS. FUSE takes an entry without a nodeid for one of a READDIR. It gets
 * such a one if it is uncertain which inode the kernel knows under the name.
 */
static ssize_t efuse_plus_translate(struct fuse_mount *fm, struct efuse_conn *ec, u64 dir,
				    struct fuse_direntplus *plus, bool moved, u32 incarnation)
{
	struct fuse_entry_out *entry = &plus->entry_out;
	u64 daemon = entry->nodeid, known;
	bool same = plus->dirent.ino == entry->attr.ino;
	ssize_t ret;

	if (!daemon)
		return 0;
	/* The daemon counts no lookups of these, and FUSE takes none. */
	if (efuse_is_dots(&plus->dirent)) {
		entry->nodeid = 0;
		return 0;
	}
	efuse_ino_note(ec, entry);
	if (moved && !efuse_nodeid_kernel(fm->fc, daemon)) {
		efuse_entry_return(ec, daemon, incarnation);
		entry->nodeid = 0;
		return 0;
	}
	known = efuse_child_known(fm, ec, dir, plus->dirent.name, plus->dirent.namelen, entry,
				  incarnation);
	ret = efuse_entry_translate(fm, ec, entry, known, incarnation);
	if (!ret && same)
		plus->dirent.ino = entry->attr.ino;
	return ret;
}

static ssize_t efuse_listing_translate(struct fuse_mount *fm, struct efuse_conn *ec,
				       struct fuse_args *args, ssize_t got,
				       const struct efuse_names_before *before, u32 incarnation)
{
	struct efuse_req req = { .args = args, .ret = got };
	struct fuse_direntplus *plus;
	ssize_t ret = 0;
	size_t left;
	char *at;
	u64 now;

	if (!incarnation || got <= 0)
		return 0;
	at = efuse_dirents_start(&req, &left);
	if (!at)
		return -EIO;
	while (!ret && (plus = efuse_dirents_next(&at, &left))) {
		bool moved = !before->quiet || !efuse_moves_try(ec, &now) || now != before->begun;

		ret = efuse_plus_translate(fm, ec, args->nodeid, plus, moved, incarnation);
	}
	return ret;
}

/* Attributes of a file that the daemon numbers as it numbers nodeids. */
static void efuse_attr_translate(struct efuse_conn *ec, struct fuse_args *args, u32 incarnation)
{
	struct fuse_attr_out *attr = efuse_out_attr(args);
	struct fuse_statx_out *statx = efuse_out_statx(args);

	if (attr)
		attr->attr.ino = efuse_nodeid_ino(ec, args->nodeid, attr->attr.ino, incarnation);
	if (statx)
		statx->stat.ino = efuse_nodeid_ino(ec, args->nodeid, statx->stat.ino, incarnation);
}

static ssize_t efuse_reply_translate(struct fuse_mount *fm, struct efuse_conn *ec,
				     struct fuse_args *args, ssize_t got,
				     const struct efuse_names_before *before)
{
	u32 incarnation = args->efuse.serial - 1;
	struct fuse_entry_out *entry = efuse_out_entry(args);

	if (entry)
		efuse_ino_note(ec, entry);
	switch (args->opcode) {
	case FUSE_LOOKUP:
		return efuse_lookup_translate(fm, ec, args, before->begun, incarnation);
	case FUSE_READDIRPLUS:
		return efuse_listing_translate(fm, ec, args, got, before, incarnation);
	default:
		if (entry)
			return efuse_entry_translate(fm, ec, entry, 0, incarnation);
		efuse_attr_translate(ec, args, incarnation);
		return 0;
	}
}

/* Notes which RENAMEs there are. Returns 0, or -EINTR if the caller is being killed. */
static ssize_t efuse_names_note(struct efuse_conn *ec, const struct fuse_args *args,
				struct efuse_names_before *before)
{
	const char *name;
	u32 len;

	if (args->opcode == FUSE_READDIRPLUS)
		before->quiet = efuse_moves_try(ec, &before->begun);
	if (args->opcode != FUSE_LOOKUP)
		return 0;
	name = efuse_req_name_at(args, 0, &len);
	return name ? efuse_moves_wait(ec, args->nodeid, name, len, &before->begun) : -EIO;
}

/* A part of a listing, without what the caller has got from an earlier daemon. */
static ssize_t efuse_list_exchange(struct fuse_mount *fm, struct efuse_conn *ec,
				   struct fuse_args *args, u32 incarnation)
{
	struct efuse_listing *listing = efuse_handle_listing(ec, efuse_arg_fh(args));
	struct fuse_read_in *in = (void *)efuse_req_in(args, sizeof(*in));
	u64 asked, last;
	ssize_t ret;

	if (!listing || !in)
		return efuse_exchange(&invalid_mnt_idmap, fm, ec, args, incarnation);
	asked = in->offset;
	last = efuse_listing_place(listing, asked, incarnation);
	do {
		in->offset = last;
		efuse_room_restore(args);
		ret = efuse_exchange(&invalid_mnt_idmap, fm, ec, args, incarnation);
		if (ret <= 0)
			break;
		ret = efuse_listing_take(ec, listing, args, ret, &last);
		if (!ret && fatal_signal_pending(current))
			ret = -EINTR;
	} while (!ret);
	in->offset = asked;
	return ret;
}

static bool efuse_lists(const struct fuse_args *args)
{
	return args->opcode == FUSE_READDIR || args->opcode == FUSE_READDIRPLUS;
}

/* Might the daemon grant a lock that another caller has, or end one that it has not got yet? */
static bool efuse_about_locks(struct efuse_conn *ec, const struct fuse_args *args)
{
	switch (args->opcode) {
	case FUSE_SETLK:
	case FUSE_SETLKW:
	case FUSE_GETLK:
		return true;
	case FUSE_FLUSH:
		return efuse_locks_flushed(ec, args);
	default:
		return false;
	}
}

static ssize_t efuse_ask_translated(struct mnt_idmap *idmap, struct fuse_mount *fm,
				    struct efuse_conn *ec, struct fuse_args *args)
{
	struct efuse_names_before before = {};
	ssize_t ret = 0, err = 0;
	u32 incarnation;
	bool locks;

	if (!args->efuse.raw && READ_ONCE(ec->recovery.incarnation))
		ret = efuse_names_note(ec, args, &before);
	locks = efuse_about_locks(ec, args);
	if (!ret && locks)
		ret = efuse_locks_again(ec);
	/* A RELEASE of the background waits by itself, see unresolved.c. */
	if (efuse_closes(args) && efuse_locks_end(ec, args))
		efuse_locks_settle(ec);
	if (!ret)
		ret = efuse_ids_ready(fm, ec, args, locks, &incarnation);
	if (ret)
		return ret == EFUSE_NOTHING_TO_TELL ? 0 : ret;
	if (efuse_lists(args))
		ret = efuse_list_exchange(fm, ec, args, incarnation);
	else
		ret = efuse_exchange(idmap, fm, ec, args, incarnation);
	if (ret >= 0 && !args->efuse.raw)
		err = efuse_reply_translate(fm, ec, args, ret, &before);
	return err ?: ret;
}

/* A FORGET that is sent as a request, for one lookup. */
static ssize_t efuse_forget_translated(struct fuse_mount *fm, struct efuse_conn *ec,
				       struct fuse_args *args)
{
	u64 kernel = args->nodeid, nodeid = kernel, nlookup = 1;
	u32 incarnation = efuse_nodeid_forgotten(ec, &nodeid, &nlookup, false);
	ssize_t ret;

	if (!nlookup)
		return 0;
	args->nodeid = nodeid;
	args->efuse.serial = incarnation + 1;
	ret = __fuse_simple_request(&invalid_mnt_idmap, fm, args);
	args->nodeid = kernel;
	return ret;
}

/**
 * efuse_ask_daemon - send a request to the present daemon and wait for its reply
 * @idmap: the mount's idmap, for __fuse_simple_request()
 * @fm: mount
 * @args: the request, with the kernel's nodeids and handles; so is its reply, except the handle of
 *	  a file that was opened. With args->efuse.raw a reply has the daemon's nodeids
 *
 * Context: process context, may sleep.
 * Return: what __fuse_simple_request() returns, which may be that the request was lost
 */
ssize_t efuse_ask_daemon(struct mnt_idmap *idmap, struct fuse_mount *fm, struct fuse_args *args)
{
	struct efuse_conn *ec = efuse_conn_get(fm->fc);
	ssize_t ret;

	if (!efuse_translates(ec))
		return __fuse_simple_request(idmap, fm, args);
	if (args->opcode == FUSE_FORGET)
		return efuse_forget_translated(fm, ec, args);
	do
		ret = efuse_ask_translated(idmap, fm, ec, args);
	while (ret == EFUSE_MOVED);
	return ret;
}
