/* SPDX-License-Identifier: GPL-2.0 */
/*
 * struct csd_function: what a BPF program implements to be a storage function. This is the manual.
 */
#ifndef _CSD_FUNCTION_H
#define _CSD_FUNCTION_H

#include <linux/csd.h>
#include <linux/types.h>

struct csd_run;

/**
 * struct csd_function - a function that is run over the blocks of a file
 *
 * A function is registered through a struct_ops link, by its name, and runs where its data
 * lies: in a storage device, or in the kernel. It is the same program in both, sees the
 * same blocks in the same order, and so emits the same bytes. A run belongs to one caller; its
 * members are called one at a time, but on any CPU, under rcu_read_lock(), and may not sleep.
 *
 * @step: look at a block: csd_block() is its bytes, of which csd_len() are the file's, from
 *	csd_offset() on. What shall be remembered until the next call goes to csd_scratch(), which
 *	is zeroes at first. May call csd_emit(), csd_emit_block(), and csd_next() for another
 *	block than the following one. Returns CSD_GO_ON, CSD_DONE, or ``-1`` to
 *	``-511``, with which the run fails; anything else fails it with EPROTO. Required.
 * @finish: all blocks of the range were looked at, or @step said CSD_DONE. May call csd_emit().
 *	Returns 0 or a negative errno, as @step.
 *
 * @scratch_size: bytes of csd_scratch(), up to CSD_MAX_SCRATCH.
 * @args_size: bytes of the arguments, up to CSD_MAX_ARGS; a caller must bring as many.
 * @flags: enum csd_flags. With CSD_JUMPS blocks are looked up and read one at a time, and more
 *	only as long as none is jumped over; without it as many as can be from the beginning.
 *	Anybody may run a function over what they have opened for reading, with arguments of their
 *	own. What a run remembers in csd_scratch() is its own, but BPF maps are shared by all
 *	runs. So a function that keeps in maps what not everybody may see or change sets
 *	CSD_PRIVATE: only its loader's user, and CAP_SYS_ADMIN, may run it.
 * @name: by which it is called. Letters, digits and ``_.-``. Registration fails with EEXIST if
 *	there is one of that name. Where it is quicker is remembered by what is in front of the
 *	first dot: what follows tells loads of the same function apart. Required.
 */
struct csd_function {
	int (*step)(struct csd_run *run);
	int (*finish)(struct csd_run *run);

	u32 scratch_size;
	u32 args_size;
	u32 flags;
	char name[CSD_NAME_LEN];
};

#endif /* _CSD_FUNCTION_H */
