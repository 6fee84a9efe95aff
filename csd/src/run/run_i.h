/* SPDX-License-Identifier: GPL-2.0 */
/* Runs of functions: one section for each .c file in this directory. */
#ifndef _CSD_RUN_I_H
#define _CSD_RUN_I_H

#include <linux/csd.h>
#include <linux/efuse_lower.h>
#include <linux/types.h>

#include "device/device_i.h"
#include "program/program_i.h"

#define CSD_NOWHERE	U64_MAX	/* not a position */

/**
 * struct csd_choice - the place chosen for a batch of a run
 * @device: the device that the batch lies on; NULL: nothing is measured
 * @place: the chosen place
 * @open: measured times decided, not the caller, the device's ``forced`` or a policy
 * @trial: @place is predicted to be slower, and is tried to measure it
 * @size: size class of the batch
 * @blocks: most blocks that are looked at in the batch; a chain may look at more
 * @resident: number of @blocks that were in the page cache
 * @looked_at: position of the block if @resident is that of a single block, else CSD_NOWHERE
 * @predicted_ns: predicted time for all @blocks at @place in ns; 0: not known
 * @begun_ns: ktime_get_ns() at the beginning
 * @apart_ns: part of the time that later batches profit from, too: finding out where blocks are
 * @steps: the run's steps at @place before the batch
 * @others: the run's steps at other places before the batch
 */
struct csd_choice {
	struct csd_device *device;
	enum csd_place place;
	bool open;
	bool trial;
	enum csd_size size;
	u32 blocks;
	u32 resident;
	u64 looked_at;
	u64 predicted_ns;
	u64 begun_ns;
	u64 apart_ns;
	u64 steps;
	u64 others;
};

#define CSD_AHEAD_GROWTH	4
#define CSD_BUFFER	(64 * CSD_BLOCK_SIZE)	/* bytes that the kernel reads at a time */

/**
 * struct csd_run - a function on its way through a range of a file
 * @function: the function; owns a reference
 * @file: the file of the caller that made the run; owns a reference
 * @place: enum csd_place that the caller asked for
 * @mutex: held while the run advances; guards all but @function, @file and @place
 * @block: the block that the function looks at: CSD_BLOCK_SIZE bytes
 * @len: number of bytes of @block that belong to the file
 * @offset: offset of @block in the file, bytes
 * @scratch: the function's memory, for csd_scratch()
 * @scratch_size: size of @scratch in bytes
 * @args: the caller's arguments, for csd_args()
 * @args_size: size of @args in bytes
 * @next: offset in the file that csd_next() named last, bytes
 * @jumps: csd_next() was called in the last step
 * @ahead: number of blocks that are expected to be looked at in sequence, CSD_WINDOW at most
 * @passes: number of passes through the range that were begun
 * @start: start of the range in the file, bytes
 * @limit: end of the range in the file, or LLONG_MAX
 * @end: end of the range, cut at the end of the file as it was when the pass began
 * @unsized: the file's size was 0 when the pass began, although it may have bytes
 * @found: if @unsized, the end of what was read so far in the file, bytes
 * @position: offset of the next block in the file, bytes
 * @steps: number of steps in this pass, by place
 * @chained: number of the kernel's steps in this pass on blocks that a chain read
 * @steps_left: number of steps that the pass may still take
 * @max_steps: number of steps that a pass may take; 0: as many as the range has blocks
 * @output: what the function emitted, for read(2)
 * @output_start: offset in @output of the first byte that was not read yet
 * @output_end: offset in @output of the end of what was emitted
 * @sent: offset in @output at which the current command's own output begins
 * @call_emitted: bytes emitted by the current call
 * @emitted: bytes emitted in this pass
 * @overflown: a call emitted more than it may
 * @stopped: the function wants no more blocks
 * @done: finish() was called
 * @error: negative errno that the function failed with, or 0
 * @why: enum csd_why of the last block that the kernel looked at
 * @unchained: enum csd_unchained of the last block that the kernel read through the file system
 * @buffer: CSD_BUFFER bytes
 * @layout: layout of the file that has the bytes; NULL until it is needed
 * @window_shift: offset to add to a position in @file for the position in the layout's file
 * @window_end: end of the layout's window, as a position in @file
 * @lease: lease on the file, and where its blocks are; NULL until it is needed
 * @command: the command that is sent to the device
 * @resubmission: the reads of a chain that are sent to the device
 * @chain_left: number of ranges that the current chain may still read
 * @chain_until: jiffies after which the current chain has to end
 * @follows: number of blocks looked at since csd_next() was called last
 * @choice: the place of the current batch
 * @device: the device of the last choice, owns a reference; NULL before the first choice
 * @costs: index of the function's costs in that device's schedule
 * @costs_id: id of these costs; 0: not known
 */
struct csd_run {
	struct csd_entry *function;
	struct file *file;
	enum csd_place place;
	struct mutex mutex;	/* all but the first three */

	const u8 *block;
	u32 len;
	u64 offset;
	u8 *scratch;
	u32 scratch_size;
	u8 *args;
	u32 args_size;
	u64 next;
	bool jumps;
	u32 ahead;

	u64 passes;
	u64 start;
	u64 limit;
	u64 end;
	bool unsized;
	u64 found;
	u64 position;
	u64 steps[CSD_NR_PLACES];
	u64 chained;
	u64 steps_left;
	u64 max_steps;

	u8 *output;
	u32 output_start;
	u32 output_end;
	u32 sent;
	u32 call_emitted;
	u64 emitted;
	bool overflown;

	bool stopped;
	bool done;
	int error;
	enum csd_why why;
	enum csd_unchained unchained;

	u8 *buffer;
	struct csd_layout *layout;
	u64 window_shift;
	u64 window_end;
	struct csd_lease *lease;
	struct csd_command command;
	struct csd_resubmission resubmission;
	u32 chain_left;
	unsigned long chain_until;
	u64 follows;
	struct csd_choice choice;
	struct csd_device *device;
	u32 costs;
	u64 costs_id;
};

/* step.c */
/* Size of the buffer for output that was not read yet: room for a few calls. */
#define CSD_OUTPUT	(4 * CSD_STEP_OUTPUT)
int csd_output_add(struct csd_run *run, const void *data, u32 size);
u64 csd_run_end(const struct csd_run *run);
bool csd_run_ready(const struct csd_run *run);
bool csd_run_follows(const struct csd_run *run);
void csd_run_finish(struct csd_run *run);
bool csd_run_step(struct csd_run *run, enum csd_place place, const void *data, u32 len);

/* why.c */
enum csd_why csd_why_direct(const struct file *file);
enum csd_why csd_why_file(const struct file *file);
enum csd_why csd_why_unsized(const struct file *file);

/* resident.c */
u32 csd_resident(const struct file *file, u64 position, u32 blocks);

/* lower.c */
int csd_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
void csd_lower_end(struct file *file, struct efuse_lower *lower);

/* schedule.c */
bool csd_choose(struct csd_run *run, const struct efuse_lower *lower, u32 blocks);
void csd_learn(struct csd_run *run);

/* lease.c */
struct csd_lease *csd_lease_alloc(const struct file *file);
void csd_lease_free(struct csd_lease *lease);
int csd_lease_begin(struct csd_lease *lease);
int csd_lease_keep(struct csd_lease *lease);
void csd_lease_let(struct csd_lease *lease);
u64 csd_lease_size(const struct csd_lease *lease);
void csd_lease_end(struct csd_lease *lease);
int csd_lease_find(struct csd_lease *lease, u64 position, sector_t *sector);
int csd_lease_fill(struct csd_lease *lease, struct csd_layout *layout, u64 position);

/* chain.c */
/* Most blocks of a chain: others want the CPU, and the file. */
#define CSD_CHAIN_BLOCKS	64
enum csd_unchained csd_chain_begin(struct csd_run *run, u64 end);
void csd_chain_end(struct csd_run *run);
int csd_chain_find(struct csd_run *run, struct csd_range *range);
int csd_chain_look(struct csd_run *run, struct csd_range *range);
u32 csd_chain_len(const struct csd_run *run);
int csd_chain(struct csd_run *run, u64 end);
bool csd_chain_late(const struct csd_run *run);

/* host.c */
int csd_host(struct csd_run *run, u64 end, u64 blocks);

/* offload.c */
int csd_offload(struct csd_run *run, u64 end, u64 blocks);

/* run.c */
long csd_run_make(const struct csd_setup __user *argp);

#endif /* _CSD_RUN_I_H */
