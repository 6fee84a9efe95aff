// SPDX-License-Identifier: GPL-2.0
/*
 * EFUSE_IOC_TAKEOVER: a new daemon takes the place of one that has died.
 *
 * INIT is sent again, to the successor alone. It offers no more than the dead daemon had accepted,
 * so that a successor cannot rely on what FUSE does not do for this mount. A successor that accepts
 * less is refused, since FUSE has what it negotiated in many places.
 */
#include "transport_i.h"

#include <linux/cred.h>
#include <linux/file.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/ratelimit.h>

/*
 * Flags of INIT that tell the daemon what the kernel can do, or what the daemon may do of its own
 * accord. FUSE does nothing different if the daemon accepts them.
 */
#define EFUSE_INIT_TOLD	(FUSE_BIG_WRITES | FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE |		\
			 FUSE_SPLICE_READ | FUSE_HAS_IOCTL_DIR | FUSE_NO_OPEN_SUPPORT |		\
			 FUSE_NO_OPENDIR_SUPPORT | FUSE_INIT_EXT | FUSE_HAS_EXPIRE_ONLY |	\
			 FUSE_HAS_RESEND | FUSE_ABORT_ERROR)

/* From this minor version on, the layouts of requests and replies do not depend on it. */
#define EFUSE_SAME_LAYOUT	23

/**
 * struct efuse_init - an INIT to a successor
 * @args: the request
 * @in: what the kernel offers
 * @out: what the successor accepts
 * @ec: connection
 * @takeover: number of the takeover
 */
struct efuse_init {
	struct fuse_args args;
	struct fuse_init_in in;
	struct fuse_init_out out;
	struct efuse_conn *ec;
	u32 takeover;
};

static u64 efuse_init_flags(u32 flags, u32 more)
{
	return flags & FUSE_INIT_EXT ? flags | (u64)more << 32 : flags;
}

/* What both sides of an INIT have agreed on. */
static u64 efuse_init_agreed(const struct fuse_init_in *in, const struct fuse_init_out *out)
{
	if (out->minor < 6)
		return 0;
	return efuse_init_flags(in->flags, in->flags2) & efuse_init_flags(out->flags, out->flags2);
}

/* The most pages of a request, as process_init_reply() computes them. */
static u32 efuse_init_pages(const struct efuse_conn *ec, u64 flags, const struct fuse_init_out *out)
{
	return flags & FUSE_MAX_PAGES ?
		min_t(u32, ec->fc->max_pages_limit, max_t(u32, out->max_pages, 1)) :
		FUSE_DEFAULT_MAX_PAGES_PER_REQ;
}

static u32 efuse_init_gran(const struct fuse_init_out *out)
{
	return out->time_gran && out->time_gran <= NSEC_PER_SEC ? out->time_gran : 0;
}

/* What the successor's reply lacks, or NULL. */
static const char *efuse_init_lacks(const struct efuse_init *init)
{
	const struct efuse_conn *ec = init->ec;
	const struct fuse_init_out *old = &ec->recovery.accepts, *new = &init->out;
	u64 had = efuse_init_agreed(&ec->recovery.offers, old);
	u64 has = efuse_init_agreed(&init->in, new);
	u32 pages = efuse_init_pages(ec, has, new);

	if (new->major != FUSE_KERNEL_VERSION)
		return "major version";
	if (new->minor != old->minor &&
	    (new->minor < EFUSE_SAME_LAYOUT || old->minor < EFUSE_SAME_LAYOUT))
		return "minor version";
	if ((had ^ has) & ~EFUSE_INIT_TOLD)
		return "flags";
	if (min_t(u32, pages * PAGE_SIZE, max_t(u32, new->max_write, 4096)) < ec->daemon_write)
		return "max_write";
	if (pages * PAGE_SIZE < ec->daemon_read)
		return "max_pages";
	if (efuse_init_gran(new) != efuse_init_gran(old))
		return "time_gran";
	if (has & FUSE_PASSTHROUGH && new->max_stack_depth < old->max_stack_depth)
		return "max_stack_depth";
	if (has & FUSE_MAP_ALIGNMENT && new->map_alignment != old->map_alignment)
		return "map_alignment";
	return NULL;
}

/* The end of the INIT to a successor: its reply, or its end. */
static EFUSE_END(efuse_init_replied)
{
	struct efuse_init *init = container_of(args, struct efuse_init, args);
	struct efuse_conn *ec = init->ec;
	const char *lacks = error ? "reply" : efuse_init_lacks(init);

	if (!lacks)
		efuse_takeover_accept(ec, init->takeover);
	else if (efuse_takeover_end(ec, init->takeover) && !efuse_lost(error))
		pr_warn_ratelimited("connection %u: a successor is refused for the %s in its INIT\n",
				    ec->id, lacks);
	kfree(init);
}

static int efuse_init_send(struct efuse_conn *ec, struct fuse_mount *fm)
{
	struct efuse_init *init = kzalloc(sizeof(*init), GFP_KERNEL_ACCOUNT);
	u64 offered, agreed;
	int err;

	if (!init)
		return -ENOMEM;
	init->ec = ec;
	init->takeover = READ_ONCE(ec->recovery.takeovers);
	init->in = ec->recovery.offers;
	offered = efuse_init_flags(init->in.flags, init->in.flags2);
	agreed = efuse_init_agreed(&ec->recovery.offers, &ec->recovery.accepts);
	offered &= agreed | EFUSE_INIT_TOLD;
	init->in.flags = offered;
	init->in.flags2 = offered >> 32;
	init->args.opcode = FUSE_INIT;
	init->args.in_numargs = 1;
	init->args.in_args[0].size = sizeof(init->in);
	init->args.in_args[0].value = &init->in;
	init->args.out_numargs = 1;
	init->args.out_argvar = true;
	init->args.out_args[0].size = sizeof(init->out);
	init->args.out_args[0].value = &init->out;
	init->args.force = true;
	init->args.nocreds = true;
	init->args.end = efuse_init_replied;
	err = efuse_ask(fm, &init->args);
	if (err)
		kfree(init);
	return err;
}

/* May the current task serve the mount of @sb by the open device @file? */
static bool efuse_takeover_allowed(const struct file *file, const struct super_block *sb)
{
	const struct fuse_conn *fc = get_fuse_mount_super((struct super_block *)sb)->fc;

	/*
	 * As fuse_fill_super() demands it. The numbers of users and processes in requests are those
	 * of the namespaces of the mount.
	 */
	if (file->f_cred->user_ns != sb->s_user_ns || current_user_ns() != fc->user_ns ||
	    task_active_pid_ns(current) != fc->pid_ns)
		return false;
	return uid_eq(current_euid(), fc->user_id) || ns_capable(fc->user_ns, CAP_SYS_ADMIN);
}

/* Lets the device @file take over the mount of @sb. Returns 0 or a negative errno. */
static int efuse_takeover_mount(struct file *file, struct super_block *sb)
{
	struct fuse_mount *fm = get_fuse_mount_super(sb);
	struct efuse_conn *ec = efuse_conn_get(fm->fc);
	u32 takeover;
	int err;

	/* The mount of a submount may end before the connection does. */
	if (!ec || fm->fc->dev != sb->s_dev)
		return -EINVAL;
	if (!efuse_takeover_allowed(file, sb))
		return -EPERM;
	err = efuse_takeover_begin(ec);
	if (err)
		return err;
	takeover = READ_ONCE(ec->recovery.takeovers);
	err = efuse_dev_attach(file, fm->fc);
	if (!err)
		err = efuse_init_send(ec, fm);
	if (err)
		efuse_takeover_end(ec, takeover);
	return err;
}

/**
 * efuse_takeover - EFUSE_IOC_TAKEOVER: serve a mount whose daemon has died
 * @file: an open /dev/efuse that belongs to no mount
 * @argp: struct efuse_takeover of the successor
 *
 * Context: process context, may sleep.
 * Return: 0 or a negative errno, as <linux/efuse.h> lists them
 */
long efuse_takeover(struct file *file, const struct efuse_takeover __user *argp)
{
	struct efuse_takeover takeover;
	struct super_block *sb;
	struct file *target;
	long err = -EINVAL;

	if (copy_from_user(&takeover, argp, sizeof(takeover)))
		return -EFAULT;
	if (takeover.flags || takeover.reserved)
		return -EINVAL;
	target = fget_raw(takeover.fd);
	if (!target)
		return -EBADF;
	/* The open file keeps the mount. */
	sb = file_inode(target)->i_sb;
	if (sb->s_magic == FUSE_SUPER_MAGIC && sb->s_type->owner == THIS_MODULE)
		err = efuse_takeover_mount(file, sb);
	fput(target);
	return err;
}
