// SPDX-License-Identifier: GPL-2.0
/* The kfuncs of kfuncs.h, and which member may call which kfunc. */
#include "csd_i.h"
#include "function.h"
#include "kfuncs.h"

#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/module.h>

__bpf_kfunc_start_defs();

__bpf_kfunc const u8 *csd_block(struct csd_run *run, const u64 rdonly_buf_size)
{
	return rdonly_buf_size <= CSD_BLOCK_SIZE ? run->block : NULL;
}

__bpf_kfunc u32 csd_len(struct csd_run *run)
{
	return run->len;
}

__bpf_kfunc u64 csd_offset(struct csd_run *run)
{
	return run->offset;
}

__bpf_kfunc u8 *csd_scratch(struct csd_run *run, const u64 rdwr_buf_size)
{
	return rdwr_buf_size <= run->scratch_size ? run->scratch : NULL;
}

__bpf_kfunc const u8 *csd_args(struct csd_run *run, const u64 rdonly_buf_size)
{
	return rdonly_buf_size <= run->args_size ? run->args : NULL;
}

__bpf_kfunc int csd_emit(struct csd_run *run, const void *data, u32 data__sz)
{
	return csd_output_add(run, data, data__sz);
}

__bpf_kfunc int csd_emit_block(struct csd_run *run, u32 first, u32 size)
{
	if (first > run->len || size > run->len - first)
		return -ERANGE;
	return csd_output_add(run, run->block + first, size);
}

__bpf_kfunc int csd_next(struct csd_run *run, u64 offset)
{
	run->next = offset;
	run->jumps = true;
	return 0;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(csd_kfunc_ids)
BTF_ID_FLAGS(func, csd_block, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, csd_len, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, csd_offset, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, csd_scratch, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, csd_args, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, csd_emit, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, csd_emit_block, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, csd_next, KF_TRUSTED_ARGS)
BTF_KFUNCS_END(csd_kfunc_ids)

BTF_SET_START(csd_finish_denied)
BTF_ID(func, csd_block)
BTF_ID(func, csd_emit_block)
BTF_ID(func, csd_next)
BTF_SET_END(csd_finish_denied)

/* Called for every kfunc of this module that a struct_ops program calls. 0: allowed. */
static int csd_kfunc_filter(const struct bpf_prog *prog, u32 kfunc_id)
{
	bool finish = prog->expected_attach_type ==
		      offsetof(struct csd_function, finish) / sizeof(void *);

	/* If the module's BTF ids were renumbered when it was loaded, no kfunc is recognised. */
	if (!btf_id_set8_contains(&csd_kfunc_ids, kfunc_id) ||
	    prog->aux->attach_btf != csd_function_btf)
		return -EACCES;
	return finish && btf_id_set_contains(&csd_finish_denied, kfunc_id) ? -EACCES : 0;
}

static const struct btf_kfunc_id_set csd_kfunc_set = {
	.owner = THIS_MODULE,
	.set = &csd_kfunc_ids,
	.filter = csd_kfunc_filter,
};

int csd_kfuncs_init(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &csd_kfunc_set);
}
