// SPDX-License-Identifier: GPL-2.0
/* What the struct_ops types of csd.ko share: what their programs reach, are, and are called. */
#include "csd_i.h"
#include "struct_ops.h"

#include <linux/ctype.h>

/* As of struct bpf_verifier_ops: a program's context is its member's arguments. */
bool csd_is_valid_access(int off, int size, enum bpf_access_type type,
			 const struct bpf_prog *prog, struct bpf_insn_access_aux *info)
{
	return bpf_tracing_btf_ctx_access(off, size, type, prog, info);
}

/* As of struct bpf_struct_ops: all members are called where nobody may sleep. */
int csd_check_member(const struct btf_type *t, const struct btf_member *member,
		     const struct bpf_prog *prog)
{
	return prog->sleepable ? -EINVAL : 0;
}

static bool csd_name_valid(const char *name)
{
	size_t i, len = strnlen(name, CSD_NAME_LEN);

	if (!len || len == CSD_NAME_LEN)
		return false;
	for (i = 0; i < len; i++)
		if (!isalnum(name[i]) && !strchr("_.-", name[i]))
			return false;
	return true;
}

/**
 * csd_name_init - take the name that a struct_ops map was given
 * @to: of the kernel's struct, CSD_NAME_LEN bytes
 * @from: of the map's, likewise
 *
 * Return: 1, for ->init_member(), or -EINVAL: it is none
 */
int csd_name_init(char *to, const char *from)
{
	if (!csd_name_valid(from))
		return -EINVAL;
	strscpy(to, from, CSD_NAME_LEN);
	return 1;
}
