/* SPDX-License-Identifier: GPL-2.0 */
/* What the struct_ops types of csd.ko have in common; see struct_ops.c. */
#ifndef _CSD_STRUCT_OPS_H
#define _CSD_STRUCT_OPS_H

#include <linux/bpf.h>
#include <linux/bpf_verifier.h>

bool csd_is_valid_access(int off, int size, enum bpf_access_type type,
			 const struct bpf_prog *prog, struct bpf_insn_access_aux *info);
int csd_check_member(const struct btf_type *t, const struct btf_member *member,
		     const struct bpf_prog *prog);
int csd_name_init(char *to, const char *from);

#endif /* _CSD_STRUCT_OPS_H */
