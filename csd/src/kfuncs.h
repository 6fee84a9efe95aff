/* SPDX-License-Identifier: GPL-2.0 */
/* The kfuncs that a storage function may call. This is the manual. */
#ifndef _CSD_KFUNCS_H
#define _CSD_KFUNCS_H

#include <linux/types.h>

struct csd_run;

/*
 * csd_block - get the block that step() is called for. Returns @rdonly_buf_size bytes,
 * CSD_BLOCK_SIZE at most, else NULL. Bytes past csd_len() are zeroes.
 */
const u8 *csd_block(struct csd_run *run, const u64 rdonly_buf_size);

/* csd_len - number of bytes of the block that belong to the file and to the range of the run. */
u32 csd_len(struct csd_run *run);

/* csd_offset - offset of the block in the file, in bytes. */
u64 csd_offset(struct csd_run *run);

/* csd_scratch - get the run's memory. Returns @rdwr_buf_size bytes, or NULL if it is smaller. */
u8 *csd_scratch(struct csd_run *run, const u64 rdwr_buf_size);

/*
 * csd_args - get the caller's arguments. Returns @rdonly_buf_size bytes, or NULL if there are
 * fewer.
 */
const u8 *csd_args(struct csd_run *run, const u64 rdonly_buf_size);

/*
 * csd_emit - append to the output. Returns 0, or -ENOSPC if one call of the function emits more
 * than CSD_STEP_OUTPUT bytes; the run fails then, whatever the function returns.
 */
int csd_emit(struct csd_run *run, const void *data, u32 data__sz);

/*
 * csd_emit_block - append @size bytes of the block, from its byte @first on, to the output. Returns
 * 0, -ENOSPC as csd_emit() does, or -ERANGE if some of the bytes do not belong to the file.
 */
int csd_emit_block(struct csd_run *run, u32 first, u32 size);

/*
 * csd_next - name the block to look at next by its offset in the file, in bytes. The run fails with
 * ERANGE if @offset is not a multiple of CSD_BLOCK_SIZE or not in the run's range. If step() calls
 * it more than once, the last call counts. Returns 0.
 */
int csd_next(struct csd_run *run, u64 offset);

#endif /* _CSD_KFUNCS_H */
