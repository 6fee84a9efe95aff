// SPDX-License-Identifier: GPL-2.0
/*
 * Who asks.
 *
 * A daemon is told fsuid, fsgid and a process, and can look up more of the process: its
 * other ids, its supplementary groups, its capabilities. An answer may depend on each of
 * them. All of them together are hashed to 64 bits, by SipHash with a key that the
 * connection keeps secret: nobody can work out two callers of one hash, and finding them
 * by trying takes as many tries as guessing any 64-bit secret.
 *
 * Credentials never change once they are a task's, but their memory is used again, so
 * that their address says nothing. They are hashed at each request that needs it.
 */
#include "efuse_i.h"

#include <linux/cred.h>
#include <linux/siphash.h>

/* One set of credentials, but for the groups. */
struct efuse_ids {
	u32 uid[4];	/* real, effective, saved, file system */
	u32 gid[4];
	u64 effective;	/* capabilities */
	u64 groups;	/* the hash of the supplementary ones */
};

/* A task's credentials, those it acts with for now (access(2), overlayfs), and more. */
struct efuse_who {
	struct efuse_ids acts;
	struct efuse_ids is;
	u64 seen;	/* whether the daemon's pid namespace has the process */
};

/*
 * As the daemon is told: fsuid and fsgid in its user namespace, the process in its pid
 * namespace. Most requests are answered without anybody's wanting to know.
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

/**
 * efuse_caller - who asks, where answers depend on it
 * @req: the request
 *
 * Two callers of one number are the same to any daemon, see docs/coherence.md.
 *
 * Return: the number; 0 if it cannot be told: of a request in the background, and of a
 *         caller in another user namespace than the mount's, which would have to be told
 *         from one that comes behind it in the same memory and with the same number
 */
u64 efuse_caller(struct efuse_req *req)
{
	const struct cred *acts = current_cred(), *is = current_real_cred();
	const siphash_key_t *key = &req->ec->caller_key;
	const struct fuse_conn *fc = req->fm->fc;
	struct efuse_who who;

	/* It is whoever sent the request, and that task's credentials are as they were. */
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
 * efuse_caller_stamp - whom an answer is for
 * @req: the request
 *
 * Return: efuse_caller(), or where answers do not depend on it, the ids that the daemon
 *         was told: what is learned then is nobody's once they do
 */
u64 efuse_caller_stamp(struct efuse_req *req)
{
	return efuse_conn_caller_free(req->ec) ? efuse_caller_ids(req) : efuse_caller(req);
}

/**
 * efuse_caller_is - is an answer for who asks?
 * @req: the request
 * @stamp: of the answer
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
 * efuse_raised_open - what an OPEN or OPENDIR in exclusive mode lets FUSE keep
 * @req: the request
 * @fh: the handle of its reply
 *
 * A listing is what one caller was shown. FUSE reads on with another handle where it
 * ends, so its positions have to mean the same to each.
 *
 * Return: of FOPEN_*
 */
u32 efuse_raised_open(const struct efuse_req *req, u64 fh)
{
	if (req->args->opcode == FUSE_OPENDIR && efuse_conn_caller_free(req->ec) &&
	    efuse_handle_is_any(req->args, fh))
		return FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
	return FOPEN_KEEP_CACHE;
}

static void efuse_end_name(struct fuse_entry_out *entry)
{
	entry->entry_valid = 0;
	entry->entry_valid_nsec = 0;
}

/**
 * efuse_names_shared - may a name that one caller has been shown be shown to others?
 * @ec: connection
 *
 * FUSE keeps names in dentries, which every caller can walk. Where nobody but the
 * mount's user comes in, that is as the daemon says.
 */
bool efuse_names_shared(const struct efuse_conn *ec)
{
	return efuse_conn_caller_free(ec) || !ec->fc->allow_other;
}

/**
 * efuse_part_callers - let FUSE keep no name that another caller might walk
 * @req: a request that the daemon answered, learned from already
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
