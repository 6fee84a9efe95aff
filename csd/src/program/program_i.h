/* SPDX-License-Identifier: GPL-2.0 */
/* The BPF programs that are loaded: one section for each .c file in this directory. */
#ifndef _CSD_PROGRAM_I_H
#define _CSD_PROGRAM_I_H

#include <linux/bpf.h>
#include <linux/bpf_verifier.h>
#include <linux/csd.h>

struct csd_run;

/* struct_ops.c */
bool csd_is_valid_access(int off, int size, enum bpf_access_type type,
			 const struct bpf_prog *prog, struct bpf_insn_access_aux *info);
int csd_check_member(const struct btf_type *t, const struct btf_member *member,
		     const struct bpf_prog *prog);
int csd_name_init(char *to, const char *from);

/* function.c */
struct csd_entry;
extern const struct btf *csd_function_btf;
int csd_functions_init(void);
struct csd_entry *csd_entry_get(const char *name);
void csd_entry_put(struct csd_entry *entry);
const char *csd_entry_name(const struct csd_entry *entry);
u32 csd_entry_scratch_size(const struct csd_entry *entry);
u32 csd_entry_args_size(const struct csd_entry *entry);
u32 csd_entry_flags(const struct csd_entry *entry);
int csd_entry_call(struct csd_entry *entry, struct csd_run *run, bool last);

/* policy.c */
enum csd_place csd_policy_choose(const char *function, struct csd_batch *batch);
int csd_policies_init(void);

#endif /* _CSD_PROGRAM_I_H */
