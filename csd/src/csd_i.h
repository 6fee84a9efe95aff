/* SPDX-License-Identifier: GPL-2.0 */
/* csd.ko's internal header: one section for each .c file in this directory. */
#ifndef _CSD_I_H
#define _CSD_I_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/configfs.h>
#include <linux/csd.h>
#include <linux/efuse_lower.h>
#include <linux/xarray.h>

#include "compat.h"
#include "function.h"

#define CSD_VERSION	"0.1.0"

struct csd_device;
struct csd_run;

/* command.c */

/*
 * A range of the device, in whole blocks of CSD_BLOCK_SIZE; only the last one of a file may be cut.
 */
struct csd_range {
	sector_t sector;	/* in the block device */
	u32 bytes;
};

/**
 * struct csd_command - work for a core of the device
 * @next: sets the range to read next. Returns 1, or 0 if there is none, or a negative errno. The
 *         blocks of one range stream from the medium; each range costs the medium's latency.
 * @block: is called with each block in turn, in the device's memory. Returns 0 to go on, 1 to skip
 *         the rest of this range, or a negative errno to end the command.
 * @result: returns the number of bytes that the link has to carry when the command is done.
 * @waited_ns: incremented by the time in ns that the command waited for a core.
 *
 * A core of the device calls all three functions in process context, one at a time.
 */
struct csd_command {
	int (*next)(struct csd_command *cmd, struct csd_range *range);
	int (*block)(struct csd_command *cmd, const void *data, u32 len);
	u64 (*result)(struct csd_command *cmd);
	u64 waited_ns;
};

int csd_command_run(struct block_device *bdev, struct csd_command *cmd);

/* The work of a request that is a command or hops. */
struct csd_work {
	struct work_struct work;
	struct csd_command *command;
	struct csd_hops *hops;	/* NULL for a command */
	u64 start;		/* of the block device in the disk, bytes */
	u64 size;
	u64 queued_ns;		/* time at which the device got it */
	bool cancelled;
	int error;		/* negative errno that it ended with, or 0 */
};

int csd_work_send(struct block_device *bdev, struct csd_command *cmd, struct csd_hops *hops);
int csd_work_stopped(struct csd_work *work);
int csd_work_check(const struct csd_work *work, const struct csd_range *range);
void csd_work_init(struct csd_work *work);
void csd_work_queue(struct csd_device *device, struct request *rq);
int csd_cores_init(void);
void csd_cores_exit(void);

/* hops.c */

/**
 * struct csd_hops - reads of blocks, each of which names the next
 * @sector: start of the next block in the block device
 * @data: destination, CSD_BLOCK_SIZE bytes
 * @arrived: is called when the block has arrived. Returns whether to read another block, at
 *         @sector. Called in any context, one at a time.
 */
struct csd_hops {
	sector_t sector;
	void *data;
	bool (*arrived)(struct csd_hops *hops);
};

int csd_hops_run(struct block_device *bdev, struct csd_hops *hops);
void csd_hops_go(struct request *rq);
void csd_hops_due(struct request *rq);

/* model.c */
#define CSD_MAX_UNITS	256

struct csd_model {
	/* config.c: the device's files of the same names. */
	u64 model;
	u64 link_mib_per_s;
	u64 link_latency_ns;
	u64 media_mib_per_s;
	u64 media_latency_ns;
	u64 media_units;
	u64 core_percent;
	atomic64_t link_read_bytes;
	atomic64_t link_write_bytes;
	atomic64_t media_read_bytes;
	atomic64_t media_write_bytes;
	atomic64_t core_busy_ns;

	spinlock_t lock;	/* of the rest, which are in ns of ktime_get_ns() */
	u64 link_read_free_at;
	u64 link_write_free_at;
	u64 media_free_at;
	u64 unit_free_at[CSD_MAX_UNITS];
};

u64 csd_model_media(struct csd_model *model, u64 at, u64 bytes);
u64 csd_model_result(struct csd_model *model, u64 at, u64 bytes);
u64 csd_model_read(struct csd_model *model, u64 at, u64 bytes);
u64 csd_model_write(struct csd_model *model, u64 at, u64 bytes);
u64 csd_model_core(struct csd_model *model, u64 ns);
void csd_model_reset(struct csd_model *model);
void csd_model_init(struct csd_model *model);

/* memory.c */
const void *csd_memory_block(struct xarray *memory, u64 pos);
void csd_memory_read(struct xarray *memory, u64 pos, void *to, u32 len);
int csd_memory_write(struct xarray *memory, u64 pos, const void *from, u32 len);
void csd_memory_zero(struct xarray *memory, u64 pos, u64 len);
void csd_memory_truncate(struct xarray *memory, u64 pos);

/* schedule.c */
enum csd_size { CSD_SMALL, CSD_MEDIUM, CSD_LARGE, CSD_CHAIN, CSD_NR_SIZES };

/* A measured time; see schedule.c. */
struct csd_mean {
	u64 ns;
	u32 samples;		/* measurements, counted until the time is known */
};

/**
 * struct csd_cost - measured times of a block, in ns, in batches of one size class
 * @device: at the device
 * @hot: in the kernel, if the page cache has the block
 * @cold: in the kernel, if the page cache does not have the block
 * @better: the place that is predicted to be quicker
 * @confirmed: number of consecutive tries that confirmed @better, CSD_SURE at most
 * @batches: number of batches since the other place was tried last
 * @spent_ns: time spent at @better since then
 * @lost_ns: time lost by the last try, doubled for each earlier try counted in @confirmed
 */
struct csd_cost {
	struct csd_mean device;
	struct csd_mean hot;
	struct csd_mean cold;
	enum csd_place better;
	u32 confirmed;
	u32 batches;
	u64 spent_ns;
	u64 lost_ns;
};

/* The costs of all functions of one name. */
struct csd_costs {
	u64 id;			/* 0 if the entry is free */
	char name[CSD_NAME_LEN];
	struct csd_cost size[CSD_NR_SIZES];
};

#define CSD_NR_COSTS	32

/* How a device's share of the work is chosen. */
struct csd_schedule {
	spinlock_t lock;	/* guards costs and oldest */
	struct csd_costs costs[CSD_NR_COSTS];
	u32 oldest;
	/* config.c: the device's files of the same names. */
	u64 forced;		/* enum csd_place */
	u64 try_share;
	atomic64_t chosen_device;
	atomic64_t chosen_kernel;
	atomic64_t chosen_policy;
	atomic64_t predicted_ns;
	atomic64_t actual_ns;
	atomic64_t error_ns;
};

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

u32 csd_resident(const struct file *file, u64 position, u32 blocks);
bool csd_choose(struct csd_run *run, const struct efuse_lower *lower, u32 blocks);
void csd_learn(struct csd_run *run);

/* device.c */
struct csd_device {
	struct config_item item;
	struct list_head link;	/* entry in the list of powered devices */

	/* held while power changes, and to set attributes that are fixed while there is power */
	struct mutex mutex;
	struct gendisk *disk;	/* NULL without power */
	int index;		/* number in the disk's name, or -1 */
	struct blk_mq_tag_set tags;
	u64 size_mib;
	u64 queues;
	u64 depth;
	u64 logical_block_size;
	u64 cores;

	struct xarray memory;
	struct csd_model model;
	u64 delay_ns;
	atomic64_t reads;
	atomic64_t writes;
	atomic64_t commands;

	spinlock_t lock;	/* guards the next seven; no timer starts while off is set */
	u64 fail_every;
	u64 fail_count;		/* requests since fail_every was set, or since the last failure */
	u64 fail_next;
	u64 hold;
	u64 held;
	struct list_head held_list;
	bool off;		/* the power is off: nothing is done any more */

	struct csd_schedule schedule;
	u64 command_ns;		/* moving mean of a command, without its wait for a core */

	spinlock_t core_lock;	/* guards the next three */
	u64 cores_busy;
	u64 cores_waiting;	/* number of commands in core_list */
	struct list_head core_list;	/* commands that wait for a core */
	wait_queue_head_t core_wait;	/* cores that sleep until their time or their end */
};

/* The driver's data of each request. */
struct csd_request {
	struct csd_device *device;
	struct hrtimer timer;
	blk_status_t status;
	struct csd_work work;
};

bool csd_device_is(struct block_device *bdev);
struct csd_device *csd_device_get(struct block_device *bdev);
void csd_device_put(struct csd_device *device);
bool csd_request_wait(struct request *rq, u64 at);
void csd_request_end(struct request *rq, blk_status_t status, u64 at);
bool csd_request_hold(struct csd_device *device, struct request *rq);
void csd_request_leave(struct request *rq);
bool csd_device_fails(struct csd_device *device);
void csd_device_fail_every(struct csd_device *device, u64 every);
void csd_device_fail_next(struct csd_device *device, u64 next);
void csd_device_hold(struct csd_device *device, u64 hold);
int csd_device_on(struct csd_device *device);
void csd_device_off(struct csd_device *device);
struct csd_device *csd_device_alloc(void);
void csd_device_free(struct csd_device *device);
int csd_devices_init(void);
void csd_devices_exit(void);

/* config.c */
int csd_config_init(void);
void csd_config_exit(void);

/* function.c */
struct csd_entry;
extern const struct btf *csd_function_btf;
int csd_functions_init(void);
struct csd_entry *csd_entry_get(const char *name);
void csd_entry_put(struct csd_entry *entry);
const char *csd_entry_name(const struct csd_entry *entry);
u32 csd_entry_scratch_size(const struct csd_entry *entry);
u32 csd_entry_args_size(const struct csd_entry *entry);
u32 csd_entry_flags(const struct csd_entry *entry);
int csd_entry_call(struct csd_entry *entry, struct csd_run *run, bool last);

/* policy.c */
enum csd_place csd_policy_choose(const char *function, struct csd_batch *batch);
int csd_policies_init(void);

/* kfuncs.c */
int csd_kfuncs_init(void);

/* run.c */
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
 * @digest: digest of the file that has the bytes; NULL until it is needed
 * @window_shift: offset to add to a position in @file for the position in the digest's file
 * @window_end: end of the digest's window, as a position in @file
 * @lease: lease on the file, and where its blocks are; NULL until it is needed
 * @command: the command that is sent to the device
 * @hops: the hops that are sent to the device
 * @hops_left: number of ranges that the current chain may still read
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
	struct csd_digest *digest;
	u64 window_shift;
	u64 window_end;
	struct csd_lease *lease;
	struct csd_command command;
	struct csd_hops hops;
	u32 hops_left;
	unsigned long chain_until;
	u64 follows;
	struct csd_choice choice;
	struct csd_device *device;
	u32 costs;
	u64 costs_id;
};

int csd_output_add(struct csd_run *run, const void *data, u32 size);
bool csd_run_ready(const struct csd_run *run);
bool csd_run_follows(const struct csd_run *run);
void csd_run_finish(struct csd_run *run);
bool csd_run_step(struct csd_run *run, enum csd_place place, const void *data, u32 len);
long csd_run_make(const struct csd_setup __user *argp);

/* chain.c */
#define CSD_HOPS	64	/* most blocks of a chain: others want the CPU, and the file */
enum csd_unchained csd_chain_begin(struct csd_run *run, u64 end);
void csd_chain_end(struct csd_run *run);
int csd_chain_find(struct csd_run *run, struct csd_range *range);
int csd_chain_look(struct csd_run *run, struct csd_range *range);
u32 csd_chain_len(const struct csd_run *run);
int csd_chain(struct csd_run *run, u64 end);
bool csd_chain_late(const struct csd_run *run);

/* lease.c */
struct csd_lease *csd_lease_alloc(const struct file *file);
void csd_lease_free(struct csd_lease *lease);
int csd_lease_begin(struct csd_lease *lease);
int csd_lease_keep(struct csd_lease *lease);
void csd_lease_let(struct csd_lease *lease);
u64 csd_lease_size(const struct csd_lease *lease);
void csd_lease_end(struct csd_lease *lease);
int csd_lease_find(struct csd_lease *lease, u64 position, sector_t *sector);
int csd_lease_fill(struct csd_lease *lease, struct csd_digest *digest, u64 position);

/* host.c */
int csd_host(struct csd_run *run, u64 end, u64 blocks);

/* offload.c */
enum csd_why csd_offload_reads(const struct file *file);
enum csd_why csd_offload_why(const struct file *file);
enum csd_why csd_offload_unsized(const struct file *file);
int csd_offload(struct csd_run *run, u64 end, u64 blocks);

/* lower.c */
int csd_lower_begin(struct file *file, u64 position, u64 length, struct efuse_lower *lower);
void csd_lower_end(struct file *file, struct efuse_lower *lower);

/* digest.c */
#define CSD_WINDOW	256	/* most blocks of a digest */

/**
 * struct csd_spot - where a block of a file is
 * @blocks: number of blocks of the file that are contiguous on the device from there on; 0: the
 *         block is not on the device
 * @sector: start of the block on the device, if it is there
 * @data: bytes of the block, if it is not on the device
 */
struct csd_spot {
	u32 blocks;
	sector_t sector;
	u8 *data;
};

struct csd_digest *csd_digest_alloc(void);
void csd_digest_free(struct csd_digest *digest);
int csd_digest_take(struct csd_digest *digest, struct file *file, u64 position, u32 blocks);
void csd_digest_give(struct csd_digest *digest);
bool csd_digest_find(const struct csd_digest *digest, u64 position, struct csd_spot *spot);
u32 csd_digest_len(const struct csd_digest *digest, u64 position);
bool csd_digest_catch(struct request *rq);

/* control.c */
int csd_control_init(void);
void csd_control_exit(void);

#endif /* _CSD_I_H */
