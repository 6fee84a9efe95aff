// SPDX-License-Identifier: GPL-2.0
/*
 * struct csd_function as a struct_ops type, and the registered functions.
 *
 * A run holds a struct csd_entry, not the program, which goes when its link ends. Each call of the
 * program is in a read section of csd_calls. Unregistering waits for the end of these sections.
 */
#include "program_i.h"
#include "function.h"

#include <linux/btf.h>
#include <linux/cred.h>
#include <linux/module.h>

/* Greatest errno that a function may return, negated. */
#define CSD_MAX_ERRNO	511

/**
 * struct csd_entry - a function that is registered, or was
 * @ops: the program's functions; NULL if the function is not registered any more
 * @refs: one reference of the registration, and one of each run
 * @link: entry in csd_entries
 * @name: name of the function
 * @scratch_size: bytes of csd_scratch()
 * @args_size: bytes of the arguments
 * @flags: enum csd_flags
 * @loader: effective user that registered the function
 */
struct csd_entry {
	struct csd_function __rcu *ops;
	refcount_t refs;
	struct list_head link;
	char name[CSD_NAME_LEN];
	u32 scratch_size;
	u32 args_size;
	u32 flags;
	kuid_t loader;
};

static LIST_HEAD(csd_entries);
static DEFINE_MUTEX(csd_entries_mutex);
DEFINE_STATIC_SRCU(csd_calls);

static int csd_stub(struct csd_run *run)
{
	return 0;
}

static struct csd_function csd_cfi_stubs = {
	.step = csd_stub,
	.finish = csd_stub,
};

static int csd_btf_struct_access(struct bpf_verifier_log *log, const struct bpf_reg_state *reg,
				 int off, int size)
{
	bpf_log(log, "a run can be accessed only through the functions csd_*()\n");
	return -EACCES;
}

static const struct bpf_verifier_ops csd_verifier_ops = {
	.get_func_proto = bpf_base_func_proto,
	.is_valid_access = csd_is_valid_access,
	.btf_struct_access = csd_btf_struct_access,
};

/* The BTF of the module, by which kfuncs.c recognises programs of this struct_ops type. */
const struct btf *csd_function_btf;

static int csd_function_btf_init(struct btf *btf)
{
	csd_function_btf = btf;
	return 0;
}

static int csd_function_init_member(const struct btf_type *t, const struct btf_member *member,
				    void *kdata, const void *udata)
{
	const struct csd_function *from = udata;
	struct csd_function *to = kdata;

	switch (__btf_member_bit_offset(t, member) / 8) {
	case offsetof(struct csd_function, scratch_size):
		if (from->scratch_size > CSD_MAX_SCRATCH)
			return -E2BIG;
		to->scratch_size = from->scratch_size;
		return 1;
	case offsetof(struct csd_function, args_size):
		if (from->args_size > CSD_MAX_ARGS)
			return -E2BIG;
		to->args_size = from->args_size;
		return 1;
	case offsetof(struct csd_function, flags):
		if (from->flags & ~(CSD_JUMPS | CSD_PRIVATE))
			return -EINVAL;
		to->flags = from->flags;
		return 1;
	case offsetof(struct csd_function, name):
		return csd_name_init(to->name, from->name);
	}
	return 0;
}

/* Under csd_entries_mutex. */
static struct csd_entry *csd_entry_find(const char *name)
{
	struct csd_entry *entry;

	list_for_each_entry(entry, &csd_entries, link)
		if (!strcmp(entry->name, name))
			return entry;
	return NULL;
}

static int csd_function_reg(void *kdata, struct bpf_link *link)
{
	struct csd_function *ops = kdata;
	struct csd_entry *entry;
	int err = 0;

	if (!ops->step)
		return -EINVAL;
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return -ENOMEM;
	refcount_set(&entry->refs, 1);
	strscpy(entry->name, ops->name, sizeof(entry->name));
	entry->scratch_size = ops->scratch_size;
	entry->args_size = ops->args_size;
	entry->flags = ops->flags;
	entry->loader = current_euid();
	RCU_INIT_POINTER(entry->ops, ops);

	mutex_lock(&csd_entries_mutex);
	if (csd_entry_find(ops->name))
		err = -EEXIST;
	else
		list_add_tail(&entry->link, &csd_entries);
	mutex_unlock(&csd_entries_mutex);
	if (err)
		kfree(entry);
	return err;
}

static void csd_function_unreg(void *kdata, struct bpf_link *link)
{
	struct csd_function *ops = kdata;
	struct csd_entry *entry;

	mutex_lock(&csd_entries_mutex);
	entry = csd_entry_find(ops->name);
	list_del(&entry->link);
	mutex_unlock(&csd_entries_mutex);
	RCU_INIT_POINTER(entry->ops, NULL);
	/* After this, earlier calls have returned. */
	synchronize_srcu(&csd_calls);
	csd_entry_put(entry);
}

static struct bpf_struct_ops bpf_csd_function = {
	.verifier_ops = &csd_verifier_ops,
	.init = csd_function_btf_init,
	.check_member = csd_check_member,
	.init_member = csd_function_init_member,
	.reg = csd_function_reg,
	.unreg = csd_function_unreg,
	.cfi_stubs = &csd_cfi_stubs,
	.owner = THIS_MODULE,
	.name = "csd_function",
};

/* May the current task run the function? */
static bool csd_entry_allowed(const struct csd_entry *entry)
{
	return !(entry->flags & CSD_PRIVATE) || uid_eq(entry->loader, current_euid()) ||
	       capable(CAP_SYS_ADMIN);
}

/**
 * csd_entry_get - get the function of a name
 * @name: name of the function
 *
 * Context: process context, may sleep.
 * Return: the function, to be released with csd_entry_put(); or an ERR_PTR(): -ENOENT if there is
 *         none, -EACCES if the current task may not run it
 */
struct csd_entry *csd_entry_get(const char *name)
{
	struct csd_entry *entry;

	mutex_lock(&csd_entries_mutex);
	entry = csd_entry_find(name);
	if (!entry)
		entry = ERR_PTR(-ENOENT);
	else if (!csd_entry_allowed(entry))
		entry = ERR_PTR(-EACCES);
	else
		refcount_inc(&entry->refs);
	mutex_unlock(&csd_entries_mutex);
	return entry;
}

void csd_entry_put(struct csd_entry *entry)
{
	if (refcount_dec_and_test(&entry->refs))
		kfree(entry);
}

const char *csd_entry_name(const struct csd_entry *entry)
{
	return entry->name;
}

u32 csd_entry_scratch_size(const struct csd_entry *entry)
{
	return entry->scratch_size;
}

u32 csd_entry_args_size(const struct csd_entry *entry)
{
	return entry->args_size;
}

u32 csd_entry_flags(const struct csd_entry *entry)
{
	return entry->flags;
}

/**
 * csd_entry_call - call step(), or finish() if the function has one
 * @entry: the function
 * @run: the run to call it for
 * @last: true for finish(), false for step()
 *
 * Context: any in which no other call for the same run can interrupt this one.
 * Return: what the function returned; -EPROTO if that is not a valid verdict, -ESTALE if the
 *         function is not registered any more
 */
int csd_entry_call(struct csd_entry *entry, struct csd_run *run, bool last)
{
	int idx = srcu_read_lock(&csd_calls);
	struct csd_function *ops = srcu_dereference(entry->ops, &csd_calls);
	int ret = -ESTALE;

	if (ops) {
		rcu_read_lock();
		if (!last)
			ret = ops->step(run);
		else
			ret = ops->finish ? ops->finish(run) : 0;
		rcu_read_unlock();
		if (ret < -CSD_MAX_ERRNO || ret > (last ? CSD_GO_ON : CSD_DONE))
			ret = -EPROTO;
	}
	srcu_read_unlock(&csd_calls, idx);
	return ret;
}

int csd_functions_init(void)
{
	return register_bpf_struct_ops(&bpf_csd_function, csd_function);
}
