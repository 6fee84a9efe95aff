// SPDX-License-Identifier: GPL-2.0
/* The kfuncs of kfuncs.h, and the members that may call each of them. */
#include "efuse_i.h"
#include "kfuncs.h"

#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/module.h>

__bpf_kfunc_start_defs();

__bpf_kfunc u32 efuse_req_opcode(struct efuse_req *req)
{
	return req->args->opcode;
}

__bpf_kfunc u64 efuse_req_nodeid(struct efuse_req *req)
{
	return req->args->nodeid;
}

__bpf_kfunc u32 efuse_req_uid(struct efuse_req *req)
{
	return efuse_caller_uid(req);
}

__bpf_kfunc u32 efuse_req_gid(struct efuse_req *req)
{
	return efuse_caller_gid(req);
}

__bpf_kfunc u32 efuse_req_pid(struct efuse_req *req)
{
	return efuse_caller_pid(req);
}

__bpf_kfunc u64 efuse_req_fh(struct efuse_req *req)
{
	return efuse_arg_fh(req->args);
}

__bpf_kfunc u64 efuse_req_offset(struct efuse_req *req)
{
	return efuse_arg_offset(req->args);
}

__bpf_kfunc u64 efuse_req_size(struct efuse_req *req)
{
	return efuse_arg_size(req->args);
}

__bpf_kfunc u32 efuse_req_flags(struct efuse_req *req)
{
	return efuse_arg_flags(req->args);
}

__bpf_kfunc u64 efuse_req_newdir(struct efuse_req *req)
{
	return efuse_arg_newdir(req->args);
}

__bpf_kfunc int efuse_req_name(struct efuse_req *req, u32 index, void *buf, u32 buf__sz)
{
	u32 len;
	const char *name = efuse_req_name_at(req->args, index, &len);

	if (!name)
		return -ENOENT;
	if (len > buf__sz)
		return -ERANGE;
	memcpy(buf, name, len);
	return len;
}

__bpf_kfunc u64 efuse_req_ended(struct efuse_req *req)
{
	return req->ended;
}

__bpf_kfunc u64 efuse_req_epoch(struct efuse_req *req)
{
	return req->ended_epoch;
}

__bpf_kfunc u8 *efuse_req_key(struct efuse_req *req, const u64 rdwr_buf_size)
{
	struct fuse_args *args = req->args;
	const char *name;
	size_t size;
	u32 len = 0;

	switch (args->opcode) {
	case FUSE_LOOKUP:
		name = efuse_req_name_at(args, 0, &len);
		/* FUSE allows names of up to FUSE_NAME_MAX bytes, which is more. */
		if (!name || len >= EFUSE_NAME_LEN)
			return NULL;
		efuse_entry_key(&req->key.entry, args->nodeid, name, len);
		size = sizeof(req->key.entry);
		break;
	case FUSE_GETATTR:
	case FUSE_STATFS:
		req->key.nodeid = args->nodeid;
		size = sizeof(req->key.nodeid);
		break;
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
	case FUSE_READLINK:
		name = efuse_req_name_at(args, 0, &len);
		if (len >= EFUSE_NAME_LEN)
			return NULL;
		efuse_blob_key(&req->key.blob, args->nodeid, args->opcode, name, len);
		size = sizeof(req->key.blob);
		break;
	case FUSE_ACCESS:
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		efuse_grant_key(&req->key.grant, req);
		size = sizeof(req->key.grant);
		break;
	default:
		return NULL;
	}
	return rdwr_buf_size == size ? (u8 *)&req->key : NULL;
}

__bpf_kfunc int efuse_reply_entry(struct efuse_req *req, const void *entry, u32 entry__sz,
				  const void *attrs, u32 attrs__sz)
{
	return efuse_answer_entry(req, entry, entry__sz, attrs, attrs__sz);
}

__bpf_kfunc int efuse_reply_negative(struct efuse_req *req, const void *entry, u32 entry__sz)
{
	return efuse_answer_negative(req, entry, entry__sz);
}

__bpf_kfunc int efuse_reply_attrs(struct efuse_req *req, const void *attrs, u32 attrs__sz)
{
	return efuse_answer_attrs(req, attrs, attrs__sz);
}

__bpf_kfunc int efuse_reply_blob(struct efuse_req *req, const void *blob, u32 blob__sz)
{
	return efuse_answer_blob(req, blob, blob__sz);
}

__bpf_kfunc int efuse_reply_grant(struct efuse_req *req, const void *grant, u32 grant__sz)
{
	return efuse_answer_grant(req, grant, grant__sz);
}

__bpf_kfunc int efuse_reply_volume(struct efuse_req *req, const void *volume, u32 volume__sz)
{
	return efuse_answer_volume(req, volume, volume__sz);
}

__bpf_kfunc int efuse_reply_flush(struct efuse_req *req)
{
	return efuse_answer_flush(req);
}

__bpf_kfunc u64 efuse_req_block(struct efuse_req *req)
{
	return req->block ? req->block->number : 0;
}

__bpf_kfunc u32 efuse_req_wanted(struct efuse_req *req)
{
	return req->block ? req->block->want : 0;
}

__bpf_kfunc int efuse_reply_block(struct efuse_req *req, void *tag, u32 tag__sz,
				  const void *data, u32 data__sz)
{
	return efuse_answer_block(req, tag, tag__sz, data, data__sz);
}

__bpf_kfunc const u8 *efuse_path_info(struct efuse_req *req, const u64 rdonly_buf_size)
{
	if (rdonly_buf_size != sizeof(req->path))
		return NULL;
	return (const u8 *)efuse_path_describe(req);
}

__bpf_kfunc const u8 *efuse_placement_info(struct efuse_placement *placement,
					   const u64 rdonly_buf_size)
{
	return rdonly_buf_size == sizeof(placement->info) ? (const u8 *)&placement->info : NULL;
}

__bpf_kfunc const u8 *efuse_channel_load(struct efuse_placement *placement, u32 cpu,
					 const u64 rdonly_buf_size)
{
	if (rdonly_buf_size != sizeof(placement->load))
		return NULL;
	return (const u8 *)efuse_load_describe(placement, cpu);
}

__bpf_kfunc int efuse_path_predict(struct efuse_req *req, u64 ns, u32 note)
{
	req->args->efuse.predicted_ns = ns;
	req->args->efuse.note = note;
	return 0;
}

__bpf_kfunc int efuse_path_resident(struct efuse_req *req)
{
	return efuse_device_resident(req);
}

__bpf_kfunc u32 efuse_learn_map(struct efuse_req *req)
{
	if (req->block)
		return EFUSE_MAP_BLOCKS;
	return req->learn_item ? req->learn_item->map : EFUSE_MAP_NONE;
}

__bpf_kfunc int efuse_learn_block(struct efuse_req *req, void *tag, u32 tag__sz, void *data,
				  u32 data__sz)
{
	return efuse_keep_block(req, tag, tag__sz, data, data__sz);
}

__bpf_kfunc int efuse_learn_evicted(struct efuse_req *req, void *tag, u32 tag__sz)
{
	return efuse_evicted_block(req, tag, tag__sz);
}

__bpf_kfunc u8 *efuse_learn_key(struct efuse_req *req, const u64 rdwr_buf_size)
{
	static const size_t sizes[] = {
		[EFUSE_MAP_ENTRIES] = sizeof(struct efuse_entry_key),
		[EFUSE_MAP_ATTRS] = sizeof(u64),
		[EFUSE_MAP_BLOBS] = sizeof(struct efuse_blob_key),
		[EFUSE_MAP_GRANTS] = sizeof(struct efuse_grant_key),
		[EFUSE_MAP_VOLUMES] = sizeof(u64),
	};

	if (!req->learn_item || rdwr_buf_size != sizes[req->learn_item->map])
		return NULL;
	return (u8 *)&req->learn_item->key;
}

__bpf_kfunc u8 *efuse_learn_value(struct efuse_req *req, const u64 rdwr_buf_size)
{
	static const size_t sizes[] = {
		[EFUSE_MAP_ENTRIES] = sizeof(struct efuse_entry),
		[EFUSE_MAP_ATTRS] = sizeof(struct efuse_attrs),
		[EFUSE_MAP_BLOBS] = sizeof(struct efuse_blob),
		[EFUSE_MAP_GRANTS] = sizeof(struct efuse_grant),
		[EFUSE_MAP_VOLUMES] = sizeof(struct efuse_volume),
	};

	if (!req->learn_item || rdwr_buf_size != sizes[req->learn_item->map])
		return NULL;
	return (u8 *)&req->learn_item->value;
}

__bpf_kfunc u32 efuse_notify_code(struct efuse_notify *n)
{
	return n->code;
}

__bpf_kfunc u64 efuse_notify_nodeid(struct efuse_notify *n)
{
	return n->nodeid;
}

__bpf_kfunc int efuse_notify_name(struct efuse_notify *n, void *buf, u32 buf__sz)
{
	if (!n->name)
		return -ENOENT;
	if (n->len > buf__sz)
		return -ERANGE;
	memcpy(buf, n->name, n->len);
	return n->len;
}

__bpf_kfunc u64 efuse_notify_epoch(struct efuse_notify *n)
{
	return n->epoch;
}

__bpf_kfunc u32 efuse_exit_kind(struct efuse_exit_info *info)
{
	return info->kind;
}

__bpf_kfunc s64 efuse_exit_code(struct efuse_exit_info *info)
{
	return info->code;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(efuse_kfunc_ids)
BTF_ID_FLAGS(func, efuse_req_opcode, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_nodeid, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_uid, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_gid, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_pid, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_fh, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_offset, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_size, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_flags, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_newdir, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_name, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_key, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_reply_entry, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_negative, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_attrs, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_blob, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_grant, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_volume, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_flush, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_block, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_wanted, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_reply_block, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_path_info, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_path_predict, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_path_resident, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_placement_info, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_channel_load, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_learn_map, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_learn_block, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_learn_key, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_learn_value, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, efuse_notify_code, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_notify_nodeid, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_notify_name, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_exit_kind, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_exit_code, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_learn_evicted, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_ended, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_req_epoch, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, efuse_notify_epoch, KF_TRUSTED_ARGS)
BTF_KFUNCS_END(efuse_kfunc_ids)

BTF_SET_START(efuse_req_ids)
BTF_ID(func, efuse_req_opcode)
BTF_ID(func, efuse_req_nodeid)
BTF_ID(func, efuse_req_uid)
BTF_ID(func, efuse_req_gid)
BTF_ID(func, efuse_req_pid)
BTF_ID(func, efuse_req_fh)
BTF_ID(func, efuse_req_offset)
BTF_ID(func, efuse_req_size)
BTF_ID(func, efuse_req_flags)
BTF_ID(func, efuse_req_newdir)
BTF_ID(func, efuse_req_name)
BTF_SET_END(efuse_req_ids)

BTF_SET_START(efuse_key_ids)
BTF_ID(func, efuse_req_key)
BTF_SET_END(efuse_key_ids)

BTF_SET_START(efuse_lookup_ids)
BTF_ID(func, efuse_reply_entry)
BTF_ID(func, efuse_reply_negative)
BTF_SET_END(efuse_lookup_ids)

BTF_SET_START(efuse_attrs_ids)
BTF_ID(func, efuse_reply_attrs)
BTF_SET_END(efuse_attrs_ids)

BTF_SET_START(efuse_blob_ids)
BTF_ID(func, efuse_reply_blob)
BTF_SET_END(efuse_blob_ids)

BTF_SET_START(efuse_grant_ids)
BTF_ID(func, efuse_reply_grant)
BTF_SET_END(efuse_grant_ids)

BTF_SET_START(efuse_volume_ids)
BTF_ID(func, efuse_reply_volume)
BTF_SET_END(efuse_volume_ids)

BTF_SET_START(efuse_flush_ids)
BTF_ID(func, efuse_reply_flush)
BTF_SET_END(efuse_flush_ids)

BTF_SET_START(efuse_block_ids)
BTF_ID(func, efuse_req_block)
BTF_ID(func, efuse_req_wanted)
BTF_ID(func, efuse_reply_block)
BTF_SET_END(efuse_block_ids)

BTF_SET_START(efuse_learn_ids)
BTF_ID(func, efuse_req_block)
BTF_ID(func, efuse_learn_block)
BTF_ID(func, efuse_learn_evicted)
BTF_ID(func, efuse_learn_map)
BTF_ID(func, efuse_learn_key)
BTF_ID(func, efuse_learn_value)
BTF_SET_END(efuse_learn_ids)

BTF_SET_START(efuse_select_path_ids)
BTF_ID(func, efuse_path_info)
BTF_ID(func, efuse_path_predict)
BTF_ID(func, efuse_path_resident)
BTF_SET_END(efuse_select_path_ids)

BTF_SET_START(efuse_select_channel_ids)
BTF_ID(func, efuse_placement_info)
BTF_ID(func, efuse_channel_load)
BTF_SET_END(efuse_select_channel_ids)

BTF_SET_START(efuse_path_done_ids)
BTF_ID(func, efuse_path_info)
BTF_SET_END(efuse_path_done_ids)

BTF_SET_START(efuse_replied_ids)
BTF_ID(func, efuse_req_ended)
BTF_ID(func, efuse_req_epoch)
BTF_SET_END(efuse_replied_ids)

BTF_SET_START(efuse_notify_ids)
BTF_ID(func, efuse_notify_code)
BTF_ID(func, efuse_notify_nodeid)
BTF_ID(func, efuse_notify_name)
BTF_ID(func, efuse_notify_epoch)
BTF_SET_END(efuse_notify_ids)

BTF_SET_START(efuse_exit_ids)
BTF_ID(func, efuse_exit_kind)
BTF_ID(func, efuse_exit_code)
BTF_SET_END(efuse_exit_ids)

/* The index of a member. All function pointers come before the data members. */
#define EFUSE_MEMBER(_name) (offsetof(struct efuse_ops, _name) / sizeof(void *))

static bool efuse_member_allows(u32 member, u32 id)
{
	if (member == EFUSE_MEMBER(notify))
		return btf_id_set_contains(&efuse_notify_ids, id);
	if (member == EFUSE_MEMBER(exit))
		return btf_id_set_contains(&efuse_exit_ids, id);
	if (member == EFUSE_MEMBER(select_channel))
		return btf_id_set_contains(&efuse_select_channel_ids, id);
	if (btf_id_set_contains(&efuse_req_ids, id))
		return true;

	switch (member) {
	case EFUSE_MEMBER(reply):
	case EFUSE_MEMBER(written):
		return btf_id_set_contains(&efuse_replied_ids, id);
	case EFUSE_MEMBER(learn):
		return btf_id_set_contains(&efuse_learn_ids, id);
	case EFUSE_MEMBER(select_path):
		return btf_id_set_contains(&efuse_select_path_ids, id);
	case EFUSE_MEMBER(path_done):
		return btf_id_set_contains(&efuse_path_done_ids, id);
	case EFUSE_MEMBER(block):
		return btf_id_set_contains(&efuse_block_ids, id);
	case EFUSE_MEMBER(lookup):
		return btf_id_set_contains(&efuse_lookup_ids, id) ||
		       btf_id_set_contains(&efuse_key_ids, id);
	case EFUSE_MEMBER(getattr):
		return btf_id_set_contains(&efuse_attrs_ids, id) ||
		       btf_id_set_contains(&efuse_key_ids, id);
	case EFUSE_MEMBER(readlink):
	case EFUSE_MEMBER(getxattr):
	case EFUSE_MEMBER(listxattr):
		return btf_id_set_contains(&efuse_blob_ids, id) ||
		       btf_id_set_contains(&efuse_key_ids, id);
	case EFUSE_MEMBER(access):
	case EFUSE_MEMBER(open):
	case EFUSE_MEMBER(opendir):
		return btf_id_set_contains(&efuse_grant_ids, id) ||
		       btf_id_set_contains(&efuse_key_ids, id);
	case EFUSE_MEMBER(statfs):
		return btf_id_set_contains(&efuse_volume_ids, id) ||
		       btf_id_set_contains(&efuse_key_ids, id);
	case EFUSE_MEMBER(flush):
		return btf_id_set_contains(&efuse_flush_ids, id);
	}
	return false;
}

/*
 * The verifier calls this for every kfunc of this module that a struct_ops program calls. Returns 0
 * if the kfunc is allowed. Programs of another struct_ops are refused, and so are kfuncs that are
 * not known by their number: none is known if the BTF of the module was renumbered when it was
 * loaded.
 */
static int efuse_kfunc_filter(const struct bpf_prog *prog, u32 kfunc_id)
{
	if (!btf_id_set8_contains(&efuse_kfunc_ids, kfunc_id) ||
	    prog->aux->attach_btf != efuse_ops_btf)
		return -EACCES;
	return efuse_member_allows(prog->expected_attach_type, kfunc_id) ? 0 : -EACCES;
}

static const struct btf_kfunc_id_set efuse_kfunc_set = {
	.owner = THIS_MODULE,
	.set = &efuse_kfunc_ids,
	.filter = efuse_kfunc_filter,
};

int efuse_kfuncs_init(void)
{
	BUILD_BUG_ON(offsetof(struct efuse_ops, connection) !=
		     (EFUSE_MEMBER(exit) + 1) * sizeof(void *));
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &efuse_kfunc_set);
}
