/* SPDX-License-Identifier: GPL-2.0 */
/*
 * csd.ko's insides: one section for each .c file beside this header.
 */
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

/* A range of the device: whole blocks of CSD_BLOCK_SIZE, but for the last of a file. */
struct csd_range {
	sector_t sector;	/* in the block device */
	u32 bytes;
};

/**
 * struct csd_command - work for a core of the device
 * @next: the range to read next. Returns 1, or 0 if there is none, or a negative errno.
 *	  What is read from the medium in one range streams; each costs the medium's latency.
 * @block: is given each block in turn, in the device's memory. Returns 0 to go on, 1 if
 *	   nothing more of this range is wanted, or a negative errno that ends the command.
 * @result: how many bytes the link has to carry when it is done.
 * @waited_ns: grows by how long it waited for a core.
 *
 * All three are called by a core of the device: in process context, one at a time.
 */
struct csd_command {
	int (*next)(struct csd_command *cmd, struct csd_range *range);
	int (*block)(struct csd_command *cmd, const void *data, u32 len);
	u64 (*result)(struct csd_command *cmd);
	u64 waited_ns;
};

int csd_command_run(struct block_device *bdev, struct csd_command *cmd);

/* Of a request that is a command, or hops. */
struct csd_work {
	struct work_struct work;
	struct csd_command *command;
	struct csd_hops *hops;	/* NULL: a command */
	u64 start;		/* in bytes: what of the disk is the block device */
	u64 size;
	u64 queued_ns;		/* when it came to the device */
	bool cancelled;
	int error;		/* with which it ended */
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
 * struct csd_hops - reads of blocks, each of which says which is next
 * @sector: of the next one, in the block device
 * @data: where to: CSD_BLOCK_SIZE bytes
 * @arrived: is told that it is there. Returns whether to go on, with what @sector says by then.
 *	     In any context, one at a time.
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
	/* config.c: of the device's files of these names. */
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

	spinlock_t lock;	/* the rest, in ns of ktime_get_ns() */
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

/* What was measured; see schedule.c. */
struct csd_mean {
	u64 ns;
	u32 samples;		/* not counted beyond what makes it known */
};

/**
 * struct csd_cost - what a block costs in batches of a size
 * @device: at the device
 * @hot: in the kernel, if the page cache has it
 * @cold: in the kernel, if it has not
 * @better: the place that was predicted to be quicker
 * @confirmed: by how many tries, one behind the other; not counted beyond CSD_SURE
 * @batches: since the other one was tried
 * @spent_ns: at the better place, since then
 * @lost_ns: by the last try, doubled for each before it that had confirmed the better place
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

/* Of the function of a name. */
struct csd_costs {
	u64 id;			/* 0: of none */
	char name[CSD_NAME_LEN];
	struct csd_cost size[CSD_NR_SIZES];
};

#define CSD_NR_COSTS	32

/* Of a device. */
struct csd_schedule {
	spinlock_t lock;	/* the next two */
	struct csd_costs costs[CSD_NR_COSTS];
	u32 oldest;
	/* config.c: of the device's files of these names. */
	u64 forced;		/* enum csd_place */
	u64 try_share;
	atomic64_t chosen_device;
	atomic64_t chosen_kernel;
	atomic64_t chosen_policy;
	atomic64_t predicted_ns;
	atomic64_t actual_ns;
	atomic64_t error_ns;
};

#define CSD_NOWHERE	U64_MAX	/* no position */

/**
 * struct csd_choice - where a batch of a run was sent
 * @device: it lies on; NULL: nothing is to be learned from it
 * @place: chosen
 * @open: it was for what was measured to say where
 * @trial: @place is thought to be the slower one
 * @size: of the batch
 * @blocks: likewise; no more than these are looked at, but by a chain
 * @resident: of @blocks, those that the page cache had
 * @looked_at: the position of the only block, if @resident is of that; or CSD_NOWHERE
 * @predicted_ns: that all would take there; 0: not known
 * @begun_ns: when
 * @apart_ns: of what it takes, for what is of use to later ones, too: where blocks are
 * @steps: of the run there, before
 * @others: elsewhere, before
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
	struct list_head link;	/* while powered, in the list of those */

	/* Held while power is given or taken, and around what can be set without it only. */
	struct mutex mutex;
	struct gendisk *disk;	/* while powered */
	int index;		/* of the disk, or -1 */
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

	spinlock_t lock;	/* these, and that no timer starts without power */
	u64 fail_every;
	u64 fail_count;		/* since fail_every was set */
	u64 fail_next;
	u64 hold;
	u64 held;
	struct list_head held_list;
	bool off;		/* the power: nothing is done any more */

	struct csd_schedule schedule;
	u64 command_ns;		/* the mean that one took lately, without its wait for a core */

	spinlock_t core_lock;	/* these */
	u64 cores_busy;
	u64 cores_waiting;	/* commands in core_list */
	struct list_head core_list;	/* commands that wait for one */
	wait_queue_head_t core_wait;	/* cores that sleep until something is to be ended */
};

/* Behind each request. */
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
#define CSD_BUFFER	(64 * CSD_BLOCK_SIZE)	/* that the kernel reads at a time */

/**
 * struct csd_run - a function on its way through a range of a file
 * @function: it
 * @file: of whoever made the run
 * @place: where they want it to run
 * @mutex: held by who takes it on; all but the first three is theirs alone
 * @block: for the function: CSD_BLOCK_SIZE bytes
 * @len: likewise: those of them that are the file's
 * @offset: likewise: in the file
 * @scratch: likewise
 * @scratch_size: in bytes
 * @args: likewise
 * @args_size: in bytes
 * @next: the block that it named last
 * @jumps: in its last call
 * @ahead: blocks that it is thought to look at one behind the other, up to CSD_WINDOW
 * @passes: through the range, begun
 * @start: of the range in the file
 * @limit: its end, or LLONG_MAX
 * @end: its end, in the file as it was when the pass began
 * @unsized: the file's size was 0 then, which does not say that there is nothing to read
 * @found: if @unsized: up to where bytes were read, in the file
 * @position: of the block that comes next
 * @steps: taken, by place
 * @chained: of those of the kernel, from one completion to the next
 * @steps_left: that it may take
 * @max_steps: that it may take in a pass; 0: as many as the range has blocks
 * @output: what it emitted, for read(2)
 * @output_start: of what was not read yet
 * @output_end: likewise
 * @sent: of it that the device did not emit
 * @call_emitted: by the call that it is in
 * @emitted: ever
 * @overflown: it emitted more than a call may
 * @stopped: it wants no more blocks
 * @done: finish() was called
 * @error: with which it failed
 * @why: the device did not have the last block that the kernel looked at
 * @unchained: the last block that the kernel read by way of the file system
 * @buffer: CSD_BUFFER bytes
 * @digest: of the file that has its bytes; NULL until it is needed
 * @window_shift: from a position in @file to that in the digest's
 * @window_end: in @file: where what lies there ends
 * @lease: on the file, and where its blocks are; NULL until it is needed
 * @command: to the device
 * @hops: likewise
 * @hops_left: that they may go on for
 * @chain_until: in jiffies: when a chain has made others wait for long enough
 * @follows: blocks since the last one behind which it named another
 * @choice: of the place of the batch that it is in
 * @device: where it chose last; NULL: it did not yet
 * @costs: which of the device's its function's were
 * @costs_id: with which id; 0: it is not known
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
#define CSD_HOPS	64	/* of a chain: others want the CPU, and the file */
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
#define CSD_WINDOW	256	/* blocks of a digest at most */

/**
 * struct csd_spot - where a block of a file is
 * @blocks: of the file that follow each other on the device, from there on; 0: it is not there
 * @sector: of the device
 * @data: if it is not there: its bytes
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
