// SPDX-License-Identifier: GPL-2.0
/*
 * The identity of the caller.
 *
 * A request tells the daemon a fsuid, a fsgid and a process. The daemon can look up more about the
 * process: its other ids, its supplementary groups, its capabilities. An answer may depend on all
 * of that. So all of it is hashed to 64 bits by SipHash, with a secret key of the connection. Two
 * callers with the same hash cannot be computed, and finding them by trial takes as many tries as
 * guessing a 64-bit secret.
 *
 * The credentials of a task do not change once they are committed, but their memory is reused:
 * their address does not identify them. They are hashed for each request that needs the identity.
 */
#include "core_i.h"

#include <linux/cred.h>
#include <linux/siphash.h>

/* One set of credentials. */
struct efuse_ids {
	u32 uid[4];	/* real, effective, saved and file system uid */
	u32 gid[4];	/* real, effective, saved and file system gid */
	u64 effective;	/* effective capabilities */
	u64 groups;	/* hash of the supplementary groups */
};

/* The input of a caller's hash. */
struct efuse_who {
	struct efuse_ids acts;	/* current_cred(), which access(2) and overlayfs override */
	struct efuse_ids is;	/* current_real_cred() */
	u64 seen;	/* whether the process is in the daemon's pid namespace */
};

/*
 * What a request tells the daemon: fsuid and fsgid in the daemon's user namespace, the process in
 * its pid namespace. They are computed when they are needed; most requests do not need them.
 */

u32 efuse_caller_uid(const struct efuse_req *req)
{
	return req->sent ? req->sent->uid : from_kuid(req->fm->fc->user_ns, current_fsuid());
}

u32 efuse_caller_gid(const struct efuse_req *req)
{
	return req->sent ? req->sent->gid : from_kgid(req->fm->fc->user_ns, current_fsgid());
}

u32 efuse_caller_pid(const struct efuse_req *req)
{
	return req->sent ? req->sent->pid : pid_nr_ns(task_pid(current), req->fm->fc->pid_ns);
}

static u64 efuse_groups_hash(const struct group_info *groups, const siphash_key_t *key)
{
	BUILD_BUG_ON(sizeof(groups->gid[0]) != sizeof(u32));

	return groups->ngroups ?
		siphash(groups->gid, groups->ngroups * sizeof(groups->gid[0]), key) : 0;
}

static void efuse_ids_fill(struct efuse_ids *ids, const struct cred *cred,
			   const siphash_key_t *key)
{
	ids->uid[0] = __kuid_val(cred->uid);
	ids->uid[1] = __kuid_val(cred->euid);
	ids->uid[2] = __kuid_val(cred->suid);
	ids->uid[3] = __kuid_val(cred->fsuid);
	ids->gid[0] = __kgid_val(cred->gid);
	ids->gid[1] = __kgid_val(cred->egid);
	ids->gid[2] = __kgid_val(cred->sgid);
	ids->gid[3] = __kgid_val(cred->fsgid);
	BUILD_BUG_ON(sizeof(cred->cap_effective) != sizeof(ids->effective));
	memcpy(&ids->effective, &cred->cap_effective, sizeof(ids->effective));
	ids->groups = efuse_groups_hash(cred->group_info, key);
}

/*
 * Returns the number of the caller. Two callers with the same number are the same to any daemon:
 * see docs/coherence.md. 0: the caller cannot be identified, because the request was sent in the
 * background, or the caller is in another user namespace than the mount. Such a namespace could not
 * be told from a later one that has the same address and number.
 */
static u64 efuse_caller(struct efuse_req *req)
{
	const struct cred *acts = current_cred(), *is = current_real_cred();
	const siphash_key_t *key = &req->ec->caller_key;
	const struct fuse_conn *fc = req->fm->fc;
	struct efuse_who who;

	/* The current task has sent the request, so the cached number is still right. */
	if (req->caller || req->sent)
		return req->caller;
	if (acts->user_ns != fc->user_ns || is->user_ns != fc->user_ns)
		return 0;
	efuse_ids_fill(&who.acts, acts, key);
	if (is == acts)
		who.is = who.acts;
	else
		efuse_ids_fill(&who.is, is, key);
	who.seen = pid_nr_ns(task_pid(current), fc->pid_ns) != 0;
	req->caller = siphash(&who, sizeof(who), key) ?: 1;
	return req->caller;
}

static u64 efuse_caller_ids(const struct efuse_req *req)
{
	return (u64)efuse_caller_uid(req) << 32 | efuse_caller_gid(req);
}

/**
 * efuse_caller_stamp - get the caller for the stamp of a value, or for the key of a grant
 * @req: the request
 *
 * Return: efuse_caller(); or, if answers do not depend on the caller, the ids that the daemon was
 *	   told. Values with ids match no caller if answers depend on the caller later.
 */
u64 efuse_caller_stamp(struct efuse_req *req)
{
	return efuse_conn_caller_free(req->ec) ? efuse_caller_ids(req) : efuse_caller(req);
}

/**
 * efuse_caller_is - may a value be given to the caller of a request?
 * @req: the request
 * @stamp: stamp of the value
 */
bool efuse_caller_is(struct efuse_req *req, const struct efuse_stamp *stamp)
{
	u64 caller;

	if (efuse_conn_caller_free(req->ec))
		return true;
	if (stamp->flags & EFUSE_STAMP_IDS)
		return stamp->caller == efuse_caller_ids(req);
	caller = efuse_caller(req);
	return caller && caller == stamp->caller;
}

/**
 * efuse_extended_open - get the open flags that let FUSE cache more in exclusive mode
 * @req: an OPEN or OPENDIR
 * @fh: handle of its reply
 *
 * A listing can be cached only if answers do not depend on the caller, since one caller got it and
 * others will see it. Where the listing ends, FUSE reads on with the handle of another open. So
 * positions must mean the same with all handles of the directory, as `lazy_open` declares.
 *
 * Return: FOPEN_* to add to the reply's
 */
u32 efuse_extended_open(const struct efuse_req *req, u64 fh)
{
	if (req->args->opcode == FUSE_OPENDIR && efuse_conn_caller_free(req->ec) &&
	    (efuse_handle_is_any(req->args, fh) || efuse_opens_later(req->ec, req->args)))
		return FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
	return FOPEN_KEEP_CACHE;
}

static void efuse_end_name(struct fuse_entry_out *entry)
{
	entry->entry_valid = 0;
	entry->entry_valid_nsec = 0;
}

/**
 * efuse_names_shared - may FUSE show a name that one caller has looked up to others?
 * @ec: connection
 *
 * FUSE caches names in dentries, which are visible to all callers. Without allow_other, only the
 * mount's user has access, and the daemon's timeouts are obeyed.
 */
bool efuse_names_shared(const struct efuse_conn *ec)
{
	return efuse_conn_caller_free(ec) || !ec->fc->allow_other;
}

/**
 * efuse_part_callers - set entry timeouts to 0, if names must not be shown to other callers
 * @req: a request that the daemon has answered; learning from the reply is done
 */
void efuse_part_callers(struct efuse_req *req)
{
	struct fuse_entry_out *entry = efuse_out_entry(req->args);
	struct fuse_direntplus *plus;
	size_t left;
	char *at;

	if (req->error || efuse_names_shared(req->ec))
		return;
	if (entry)
		efuse_end_name(entry);
	if (req->args->opcode != FUSE_READDIRPLUS)
		return;
	at = efuse_dirents_start(req, &left);
	while ((plus = efuse_dirents_next(&at, &left)))
		efuse_end_name(&plus->entry_out);
}
