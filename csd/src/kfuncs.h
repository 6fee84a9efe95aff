/* SPDX-License-Identifier: GPL-2.0 */
/* What a storage function may call. This is the manual. */
#ifndef _CSD_KFUNCS_H
#define _CSD_KFUNCS_H

#include <linux/types.h>

struct csd_run;

/* csd_block - @rdonly_buf_size bytes of the block, up to CSD_BLOCK_SIZE; else NULL.
 * Those behind the csd_len() that are the file's are zeroes.
 */
const u8 *csd_block(struct csd_run *run, const u64 rdonly_buf_size);

/* csd_len - how many bytes of the block are the file's, and in the range of the run. */
u32 csd_len(struct csd_run *run);

/* csd_offset - where in the file the block begins, in bytes. */
u64 csd_offset(struct csd_run *run);

/* csd_scratch - what the function remembers: @rdwr_buf_size bytes, or NULL if it has less. */
u8 *csd_scratch(struct csd_run *run, const u64 rdwr_buf_size);

/* csd_args - the caller's arguments: @rdonly_buf_size bytes, or NULL if there are less. */
const u8 *csd_args(struct csd_run *run, const u64 rdonly_buf_size);

/* csd_emit - append to the output.
 * Returns 0, or -ENOSPC if one call emits more than CSD_STEP_OUTPUT bytes: then the run fails
 * whatever the function returns.
 */
int csd_emit(struct csd_run *run, const void *data, u32 data__sz);

/* csd_emit_block - append bytes of the block to the output.
 * Returns as csd_emit(), or -ERANGE if they are not the file's.
 */
int csd_emit_block(struct csd_run *run, u32 first, u32 size);

/* csd_next - name the block to look at next: where in the file it begins.
 * The run fails with ERANGE if that is no multiple of CSD_BLOCK_SIZE, or not in its range. The
 * last word of a call counts. Returns 0.
 */
int csd_next(struct csd_run *run, u64 offset);

#endif /* _CSD_KFUNCS_H */
