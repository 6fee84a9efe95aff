// SPDX-License-Identifier: GPL-2.0
/*
 * isatty(3) asks whether a file is a terminal by an IOCTL with TCGETS. Many programs ask each file
 * that they open. A daemon that does not implement IOCTL answers ENOSYS. By the protocol such an
 * answer is true of the whole connection: FUSE remembers it for most opcodes, but not for IOCTL.
 */
#include "cache_i.h"

#include <linux/termios.h>

/* Does a request ask whether a file is a terminal? */
bool efuse_terminal_asked(const struct fuse_args *args)
{
	const struct fuse_ioctl_in *in;

	if (args->opcode != FUSE_IOCTL)
		return false;
	in = efuse_req_in(args, sizeof(*in));
	return in && in->cmd == TCGETS;
}

/**
 * efuse_ioctl_error - get the error of an IOCTL
 * @args: the IOCTL
 * @error: error of the reply
 *
 * A daemon may also pass on an error as the result in a successful reply, as libfuse does.
 *
 * Return: 0 or a negative errno, or a positive result
 */
int efuse_ioctl_error(const struct fuse_args *args, int error)
{
	const struct fuse_ioctl_out *out = args->out_args[0].value;

	return error || args->out_args[0].size != sizeof(*out) ? error : out->result;
}

/**
 * efuse_terminal_unknown - is it known that the daemon does not implement a request for a terminal?
 * @req: the request
 *
 * Return: true if this is such a request, and the answer is ENOSYS
 */
bool efuse_terminal_unknown(const struct efuse_req *req)
{
	const struct efuse_conn *ec = req->ec;

	return READ_ONCE(ec->no_terminals) && efuse_terminal_asked(req->args) &&
	       READ_ONCE(ec->consistency) != EFUSE_STRICT && rcu_access_pointer(ec->ops);
}

/**
 * efuse_terminal_replied - remember that the daemon does not implement requests for terminals
 * @req: a request that the daemon has answered
 */
void efuse_terminal_replied(const struct efuse_req *req)
{
	if (efuse_terminal_asked(req->args) &&
	    efuse_ioctl_error(req->args, req->error) == EFUSE_NOT_IMPLEMENTED)
		WRITE_ONCE(req->ec->no_terminals, true);
}
