// SPDX-License-Identifier: GPL-2.0
/* The BPF struct_ops type efuse_ops: verify, attach, replace and detach program sets. */
#include "efuse_i.h"

#include <linux/bpf.h>
#include <linux/bpf_verifier.h>
#include <linux/btf.h>
#include <linux/ctype.h>
#include <linux/module.h>

/* Stubs of the members, whose types are checked by control flow integrity (CFI). */

static int efuse_stub_request(struct efuse_req *req)
{
	return 0;
}

static int efuse_stub_reply(struct efuse_req *req, int error)
{
	return 0;
}

static int efuse_stub_placement(struct efuse_placement *placement)
{
	return -1;
}

static int efuse_stub_notify(struct efuse_notify *n)
{
	return 0;
}

static int efuse_stub_exit(struct efuse_exit_info *info)
{
	return 0;
}

static struct efuse_ops efuse_cfi_stubs = {
	.lookup = efuse_stub_request,
	.getattr = efuse_stub_request,
	.setattr = efuse_stub_request,
	.access = efuse_stub_request,
	.readlink = efuse_stub_request,
	.getxattr = efuse_stub_request,
	.setxattr = efuse_stub_request,
	.listxattr = efuse_stub_request,
	.removexattr = efuse_stub_request,
	.open = efuse_stub_request,
	.release = efuse_stub_request,
	.opendir = efuse_stub_request,
	.releasedir = efuse_stub_request,
	.readdir = efuse_stub_request,
	.readdirplus = efuse_stub_request,
	.read = efuse_stub_request,
	.write = efuse_stub_request,
	.flush = efuse_stub_request,
	.fsync = efuse_stub_request,
	.lseek = efuse_stub_request,
	.fallocate = efuse_stub_request,
	.copy_file_range = efuse_stub_request,
	.statfs = efuse_stub_request,
	.create = efuse_stub_request,
	.mknod = efuse_stub_request,
	.mkdir = efuse_stub_request,
	.symlink = efuse_stub_request,
	.link = efuse_stub_request,
	.unlink = efuse_stub_request,
	.rmdir = efuse_stub_request,
	.rename = efuse_stub_request,
	.ioctl = efuse_stub_request,
	.request = efuse_stub_request,
	.reply = efuse_stub_reply,
	.learn = efuse_stub_request,
	.select_path = efuse_stub_request,
	.path_done = efuse_stub_request,
	.written = efuse_stub_request,
	.block = efuse_stub_request,
	.select_channel = efuse_stub_placement,
	.notify = efuse_stub_notify,
	.exit = efuse_stub_exit,
};

/* Handlers cannot write to the kernel's memory, except through kfuncs. */
static bool efuse_is_valid_access(int off, int size, enum bpf_access_type type,
				  const struct bpf_prog *prog,
				  struct bpf_insn_access_aux *info)
{
	return bpf_tracing_btf_ctx_access(off, size, type, prog, info);
}

static int efuse_btf_struct_access(struct bpf_verifier_log *log,
				   const struct bpf_reg_state *reg, int off, int size)
{
	bpf_log(log, "the structures of efuse are read-only\n");
	return -EACCES;
}

static const struct bpf_verifier_ops efuse_verifier_ops = {
	.get_func_proto = bpf_base_func_proto,
	.is_valid_access = efuse_is_valid_access,
	.btf_struct_access = efuse_btf_struct_access,
};

/* The BTF of this module. kfuncs.c recognizes programs of this struct_ops by it. */
const struct btf *efuse_ops_btf;

static int efuse_ops_btf_init(struct btf *btf)
{
	efuse_ops_btf = btf;
	return 0;
}

/* Names are shown in sysfs, one per line. isalnum() also knows the letters of Latin-1. */
static bool efuse_ops_name_valid(const char *name)
{
	size_t i, len = strnlen(name, EFUSE_OPS_NAME_LEN);

	if (!len || len == EFUSE_OPS_NAME_LEN)
		return false;
	for (i = 0; i < len; i++)
		if (!isascii(name[i]) || (!isalnum(name[i]) && !strchr("_.-", name[i])))
			return false;
	return true;
}

static int efuse_ops_init_member(const struct btf_type *t, const struct btf_member *member,
				 void *kdata, const void *udata)
{
	const struct efuse_ops *from = udata;
	struct efuse_ops *to = kdata;

	switch (__btf_member_bit_offset(t, member) / 8) {
	case offsetof(struct efuse_ops, connection):
		to->connection = from->connection;
		return 1;
	case offsetof(struct efuse_ops, flags):
		if (from->flags)
			return -EINVAL;
		return 1;
	case offsetof(struct efuse_ops, name):
		if (!efuse_ops_name_valid(from->name))
			return -EINVAL;
		strscpy(to->name, from->name, sizeof(to->name));
		return 1;
	}
	return 0;
}

static int efuse_ops_check_member(const struct btf_type *t, const struct btf_member *member,
				  const struct bpf_prog *prog)
{
	/* Handlers run under rcu_read_lock(). */
	return prog->sleepable ? -EINVAL : 0;
}

/*
 * Attach a program set, or replace the one that is attached. Under efuse_conn_mutex. Returns 0 or a
 * negative errno; the connection keeps the set that it has then.
 */
static int efuse_ops_set(struct efuse_conn *ec, struct efuse_ops *ops)
{
	/* It may measure READs while no times are watched. */
	int err = ops->select_path ? efuse_times_add(ec) : 0;

	if (err)
		return err;
	ec->enable_seq++;
	efuse_learn_stop(ec);
	rcu_assign_pointer(ec->ops, ops);
	efuse_learn_start(ec);
	return 0;
}

static int efuse_ops_reg(void *kdata, struct bpf_link *link)
{
	struct efuse_ops *ops = kdata;
	struct efuse_conn *ec;
	int err = 0;

	mutex_lock(&efuse_conn_mutex);
	ec = efuse_conn_find(ops->connection);
	if (!ec)
		err = -ENOENT;
	else if (rcu_access_pointer(ec->ops))
		err = -EBUSY;
	else
		err = efuse_ops_set(ec, ops);
	mutex_unlock(&efuse_conn_mutex);
	return err;
}

static void efuse_ops_call_exit(struct efuse_ops *ops, enum efuse_exit_kind kind, s64 code)
{
	struct efuse_exit_info info = { .kind = kind, .code = code };

	if (!ops->exit)
		return;
	rcu_read_lock();
	ops->exit(&info);
	rcu_read_unlock();
}

/*
 * Detach the program set of @ec, if it has one. Under efuse_conn_mutex.
 *
 * Handlers of the set may still be running when this returns. The BPF core frees the set only after
 * an RCU grace period.
 */
void efuse_ops_detach(struct efuse_conn *ec, enum efuse_exit_kind kind, s64 code)
{
	struct efuse_ops *ops = rcu_dereference_protected(ec->ops,
					lockdep_is_held(&efuse_conn_mutex));

	if (!ops)
		return;
	ec->exit_kind = kind;
	ec->exit_code = code;
	RCU_INIT_POINTER(ec->ops, NULL);
	efuse_ops_call_exit(ops, kind, code);
}

static void efuse_ops_unreg(void *kdata, struct bpf_link *link)
{
	struct efuse_conn *ec;

	mutex_lock(&efuse_conn_mutex);
	ec = efuse_conn_of_ops(kdata);
	if (ec)
		efuse_ops_detach(ec, EFUSE_EXIT_UNREGISTER, 0);
	mutex_unlock(&efuse_conn_mutex);
}

static int efuse_ops_update(void *kdata, void *old_kdata, struct bpf_link *link)
{
	struct efuse_ops *ops = kdata, *old = old_kdata;
	struct efuse_conn *ec;
	int err;

	mutex_lock(&efuse_conn_mutex);
	ec = efuse_conn_of_ops(old);
	if (!ec)
		err = -ENOENT;
	else if (ops->connection != ec->id)
		err = -EINVAL;
	else
		err = efuse_ops_set(ec, ops);
	if (!err) {
		ec->exit_kind = EFUSE_EXIT_REPLACE;
		ec->exit_code = 0;
		efuse_ops_call_exit(old, EFUSE_EXIT_REPLACE, 0);
	}
	mutex_unlock(&efuse_conn_mutex);
	return err;
}

static struct bpf_struct_ops bpf_efuse_ops = {
	.verifier_ops = &efuse_verifier_ops,
	.init = efuse_ops_btf_init,
	.check_member = efuse_ops_check_member,
	.init_member = efuse_ops_init_member,
	.reg = efuse_ops_reg,
	.unreg = efuse_ops_unreg,
	.update = efuse_ops_update,
	.cfi_stubs = &efuse_cfi_stubs,
	.owner = THIS_MODULE,
	.name = "efuse_ops",
};

int efuse_ops_init(void)
{
	return register_bpf_struct_ops(&bpf_efuse_ops, efuse_ops);
}
