// SPDX-License-Identifier: GPL-2.0
/* What the struct_ops types of csd.ko have in common: access checks, members and names. */
#include "program_i.h"

#include <linux/ctype.h>

/* For struct bpf_verifier_ops: a program's context is the arguments of its member. */
bool csd_is_valid_access(int off, int size, enum bpf_access_type type,
			 const struct bpf_prog *prog, struct bpf_insn_access_aux *info)
{
	return bpf_tracing_btf_ctx_access(off, size, type, prog, info);
}

/* For struct bpf_struct_ops: all members are called where sleeping is not allowed. */
int csd_check_member(const struct btf_type *t, const struct btf_member *member,
		     const struct bpf_prog *prog)
{
	return prog->sleepable ? -EINVAL : 0;
}

/* isalnum() also knows the letters of Latin-1. */
static bool csd_name_valid(const char *name)
{
	size_t i, len = strnlen(name, CSD_NAME_LEN);

	if (!len || len == CSD_NAME_LEN)
		return false;
	for (i = 0; i < len; i++)
		if (!isascii(name[i]) || (!isalnum(name[i]) && !strchr("_.-", name[i])))
			return false;
	return true;
}

/**
 * csd_name_init - copy and check the name in a struct_ops map
 * @to: name in the kernel's structure, CSD_NAME_LEN bytes
 * @from: name in the map's structure, CSD_NAME_LEN bytes
 *
 * Return: 1, for ->init_member(), or -EINVAL if the name is not valid
 */
int csd_name_init(char *to, const char *from)
{
	if (!csd_name_valid(from))
		return -EINVAL;
	strscpy(to, from, CSD_NAME_LEN);
	return 1;
}
