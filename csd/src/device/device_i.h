/* SPDX-License-Identifier: GPL-2.0 */
/* The devices: one section for each .c file in this directory. Nothing in here knows of runs. */
#ifndef _CSD_DEVICE_I_H
#define _CSD_DEVICE_I_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/configfs.h>
#include <linux/csd.h>
#include <linux/xarray.h>

#include "compat.h"

struct csd_device;

/* memory.c */
const void *csd_memory_block(struct xarray *memory, u64 pos);
void csd_memory_read(struct xarray *memory, u64 pos, void *to, u32 len);
int csd_memory_write(struct xarray *memory, u64 pos, const void *from, u32 len);
void csd_memory_zero(struct xarray *memory, u64 pos, u64 len);
void csd_memory_truncate(struct xarray *memory, u64 pos);

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

/* layout.c */
#define CSD_WINDOW	256	/* most blocks of a layout */

/**
 * struct csd_extent - contiguous blocks of a file, or a single one that is not on the device
 * @blocks: number of blocks of the file that are contiguous on the device; 0: the
 *         block is not on the device
 * @sector: start of the blocks on the device, if they are there
 * @data: bytes of the block, if it is not on the device
 */
struct csd_extent {
	u32 blocks;
	sector_t sector;
	u8 *data;
};

struct csd_layout *csd_layout_alloc(void);
void csd_layout_free(struct csd_layout *layout);
int csd_layout_take(struct csd_layout *layout, struct file *file, u64 position, u32 blocks);
void csd_layout_give(struct csd_layout *layout);
bool csd_layout_find(const struct csd_layout *layout, u64 position, struct csd_extent *extent);
u32 csd_layout_len(const struct csd_layout *layout, u64 position);
bool csd_layout_catch(struct request *rq);

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

/* The work of a request that is a command or resubmission. */
struct csd_work {
	struct work_struct work;
	struct csd_command *command;
	struct csd_resubmission *resubmission;	/* NULL for a command */
	u64 start;		/* of the block device in the disk, bytes */
	u64 size;
	u64 queued_ns;		/* time at which the device got it */
	bool cancelled;
	int error;		/* negative errno that it ended with, or 0 */
};

int csd_command_run(struct block_device *bdev, struct csd_command *cmd);
int csd_work_send(struct block_device *bdev, struct csd_command *cmd,
		  struct csd_resubmission *resubmission);
int csd_work_stopped(struct csd_work *work);
int csd_work_check(const struct csd_work *work, const struct csd_range *range);

/* cores.c */
void csd_work_init(struct csd_work *work);
void csd_work_queue(struct csd_device *device, struct request *rq);
int csd_cores_init(void);
void csd_cores_exit(void);

/* resubmission.c */

/**
 * struct csd_resubmission - reads of blocks, each of which names the next
 * @sector: start of the next block in the block device
 * @data: destination, CSD_BLOCK_SIZE bytes
 * @arrived: is called when the block has arrived. Returns whether to read another block, at
 *         @sector. Called in any context, one at a time.
 */
struct csd_resubmission {
	sector_t sector;
	void *data;
	bool (*arrived)(struct csd_resubmission *resubmission);
};

int csd_resubmission_run(struct block_device *bdev, struct csd_resubmission *resubmission);
void csd_resubmission_start(struct request *rq);
void csd_resubmission_due(struct request *rq);

/* What run/schedule.c keeps for each device. */
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

static inline struct csd_request *csd_work_request(struct csd_work *work)
{
	return container_of(work, struct csd_request, work);
}

bool csd_device_is(struct block_device *bdev);
struct csd_device *csd_device_get(struct block_device *bdev);
void csd_device_put(struct csd_device *device);
void csd_device_fail_every(struct csd_device *device, u64 every);
void csd_device_fail_next(struct csd_device *device, u64 next);
void csd_device_hold(struct csd_device *device, u64 hold);
int csd_device_on(struct csd_device *device);
void csd_device_off(struct csd_device *device);
struct csd_device *csd_device_alloc(void);
void csd_device_free(struct csd_device *device);
int csd_devices_init(void);
void csd_devices_exit(void);

/* request.c */
bool csd_request_wait(struct request *rq, u64 at);
void csd_request_end(struct request *rq, blk_status_t status, u64 at);
bool csd_request_fails(struct csd_device *device);
bool csd_request_hold(struct csd_device *device, struct request *rq);
void csd_request_leave(struct request *rq);

#endif /* _CSD_DEVICE_I_H */
