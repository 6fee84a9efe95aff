// SPDX-License-Identifier: GPL-2.0
/* struct csd_policy as a struct_ops type, and the registered policy. */
#include "program_i.h"
#include "policy.h"

#include <linux/btf.h>

static struct csd_policy __rcu *csd_policy;
static DEFINE_MUTEX(csd_policy_mutex);

static int csd_policy_stub(struct csd_batch *batch)
{
	return CSD_AUTO;
}

static struct csd_policy csd_policy_cfi_stubs = {
	.choose = csd_policy_stub,
};

static const struct bpf_verifier_ops csd_policy_verifier_ops = {
	.get_func_proto = bpf_base_func_proto,
	.is_valid_access = csd_is_valid_access,
};

static int csd_policy_init(struct btf *btf)
{
	return 0;
}

static int csd_policy_init_member(const struct btf_type *t, const struct btf_member *member,
				  void *kdata, const void *udata)
{
	const struct csd_policy *from = udata;
	struct csd_policy *to = kdata;

	if (__btf_member_bit_offset(t, member) / 8 == offsetof(struct csd_policy, name))
		return csd_name_init(to->name, from->name);
	return 0;
}

/*
 * Replaces the policy @from by @to; NULL stands for no policy. On return, earlier calls of @from
 * have returned. -EBUSY: @from is not the registered policy.
 */
static int csd_policy_swap(struct csd_policy *from, struct csd_policy *to)
{
	int err = 0;

	if (to && !to->choose)
		return -EINVAL;
	mutex_lock(&csd_policy_mutex);
	if (rcu_access_pointer(csd_policy) == from)
		rcu_assign_pointer(csd_policy, to);
	else
		err = -EBUSY;
	mutex_unlock(&csd_policy_mutex);
	if (!err)
		synchronize_rcu();
	return err;
}

static int csd_policy_reg(void *kdata, struct bpf_link *link)
{
	return csd_policy_swap(NULL, kdata);
}

static int csd_policy_update(void *kdata, void *old_kdata, struct bpf_link *link)
{
	return csd_policy_swap(old_kdata, kdata);
}

static void csd_policy_unreg(void *kdata, struct bpf_link *link)
{
	csd_policy_swap(kdata, NULL);
}

static struct bpf_struct_ops bpf_csd_policy = {
	.verifier_ops = &csd_policy_verifier_ops,
	.init = csd_policy_init,
	.check_member = csd_check_member,
	.init_member = csd_policy_init_member,
	.reg = csd_policy_reg,
	.update = csd_policy_update,
	.unreg = csd_policy_unreg,
	.cfi_stubs = &csd_policy_cfi_stubs,
	.owner = THIS_MODULE,
	.name = "csd_policy",
};

/**
 * csd_policy_choose - ask the registered policy, if there is one
 * @function: name of the function
 * @batch: the batch, filled in except for the name of the function
 *
 * Context: process context.
 * Return: CSD_DEVICE or CSD_KERNEL; CSD_AUTO if @batch->place is to be used
 */
enum csd_place csd_policy_choose(const char *function, struct csd_batch *batch)
{
	struct csd_policy *policy;
	int place = CSD_AUTO;

	if (!rcu_access_pointer(csd_policy))
		return CSD_AUTO;
	rcu_read_lock();
	policy = rcu_dereference(csd_policy);
	if (policy) {
		strscpy_pad(batch->function, function, sizeof(batch->function));
		place = policy->choose(batch);
	}
	rcu_read_unlock();
	return place == CSD_DEVICE || place == CSD_KERNEL ? place : CSD_AUTO;
}

int csd_policies_init(void)
{
	return register_bpf_struct_ops(&bpf_csd_policy, csd_policy);
}
