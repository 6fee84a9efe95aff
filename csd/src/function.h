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
 * A function is registered by its name, through a struct_ops link. It runs where its data lies: in
 * a storage device, or in the kernel. The same program runs at both places, sees the same blocks in
 * the same order, and so emits the same bytes. A run belongs to one caller. The members are called
 * for a run one at a time, but on any CPU, under rcu_read_lock(), and may not sleep.
 *
 * @step: look at a block. csd_block() returns its bytes; csd_len() of them belong to the file, from
 *         csd_offset() on. State that is to be kept until the next call goes to csd_scratch(),
 *         which is zeroed at first. May call csd_emit(), csd_emit_block(), and csd_next() to name
 *         another block than the following one. Returns CSD_GO_ON, CSD_DONE, or ``-1`` to ``-511``,
 *         which fails the run with that errno. Anything else fails the run with EPROTO. Required.
 * @finish: called after all blocks of the range, or after @step has returned CSD_DONE. May call
 *         csd_emit(). Returns 0, or ``-1`` to ``-511``, which fails the run with that errno.
 *
 * @scratch_size: size of csd_scratch() in bytes, CSD_MAX_SCRATCH at most.
 * @args_size: size of the arguments in bytes, CSD_MAX_ARGS at most. A caller must pass exactly as
 *         many.
 * @flags: enum csd_flags. With CSD_JUMPS, blocks are looked up and read one at a time, and more at
 *         a time only as long as the function skips none. Without it, as many as possible are read
 *         from the beginning. A function may be run by any user, over any file that the user has
 *         opened for reading and with any arguments. csd_scratch() belongs to the run, but all runs
 *         share the BPF maps. So a function whose maps hold what not every user may see or change
 *         sets CSD_PRIVATE: then only its loader's user and CAP_SYS_ADMIN may run it.
 * @name: the name to call it by. Letters, digits and ``_.-``. Registration fails with EEXIST if the
 *         name is in use. Measured times are kept under the part before the first dot, so that a
 *         suffix can tell several loads of one function apart. Required.
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
