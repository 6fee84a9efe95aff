/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a handler may use: the shared types, the verdicts and the kfuncs.
 *
 * BCC does not support kfuncs. Each kfunc is declared here as a helper with a number from 1000001
 * on, which is used nowhere else. efuse.bpf.relocation replaces the number by the BTF id of the
 * kernel's function.
 */
#ifndef _EFUSE_BPF_H
#define _EFUSE_BPF_H

#include <linux/efuse.h>
#include <linux/errno.h>
#include <linux/fuse.h>

struct efuse_req;
struct efuse_notify;
struct efuse_exit_info;
struct efuse_placement;

/* The arguments of reply(), the only member that has two. */
struct efuse_reply_ctx {
	struct efuse_req	*req;
	u64			error;	/* (int)error is 0 or a negative errno */
};

#define EFUSE_KFUNC(number) = (void *)(number)

static u32 (*efuse_req_opcode)(struct efuse_req *req) EFUSE_KFUNC(1000001);
static u64 (*efuse_req_nodeid)(struct efuse_req *req) EFUSE_KFUNC(1000002);
static u32 (*efuse_req_uid)(struct efuse_req *req) EFUSE_KFUNC(1000003);
static u32 (*efuse_req_gid)(struct efuse_req *req) EFUSE_KFUNC(1000004);
static u32 (*efuse_req_pid)(struct efuse_req *req) EFUSE_KFUNC(1000005);
static u64 (*efuse_req_fh)(struct efuse_req *req) EFUSE_KFUNC(1000006);
static u64 (*efuse_req_offset)(struct efuse_req *req) EFUSE_KFUNC(1000007);
static u64 (*efuse_req_size)(struct efuse_req *req) EFUSE_KFUNC(1000008);
static u32 (*efuse_req_flags)(struct efuse_req *req) EFUSE_KFUNC(1000009);
static u64 (*efuse_req_newdir)(struct efuse_req *req) EFUSE_KFUNC(1000010);
static int (*efuse_req_name)(struct efuse_req *req, u32 index, void *buf, u32 size)
	EFUSE_KFUNC(1000011);
static void *(*efuse_req_key)(struct efuse_req *req, u64 size) EFUSE_KFUNC(1000012);

static int (*efuse_reply_entry)(struct efuse_req *req, const void *entry, u32 entry_size,
				const void *attrs, u32 attrs_size) EFUSE_KFUNC(1000013);
static int (*efuse_reply_negative)(struct efuse_req *req, const void *entry, u32 size)
	EFUSE_KFUNC(1000014);
static int (*efuse_reply_attrs)(struct efuse_req *req, const void *attrs, u32 size)
	EFUSE_KFUNC(1000015);
static int (*efuse_reply_blob)(struct efuse_req *req, const void *blob, u32 size)
	EFUSE_KFUNC(1000016);
static int (*efuse_reply_grant)(struct efuse_req *req, const void *grant, u32 size)
	EFUSE_KFUNC(1000017);
static int (*efuse_reply_volume)(struct efuse_req *req, const void *volume, u32 size)
	EFUSE_KFUNC(1000018);
static int (*efuse_reply_flush)(struct efuse_req *req) EFUSE_KFUNC(1000019);

static u32 (*efuse_learn_map)(struct efuse_req *req) EFUSE_KFUNC(1000020);
static void *(*efuse_learn_key)(struct efuse_req *req, u64 size) EFUSE_KFUNC(1000021);
static void *(*efuse_learn_value)(struct efuse_req *req, u64 size) EFUSE_KFUNC(1000022);

static u32 (*efuse_notify_code)(struct efuse_notify *n) EFUSE_KFUNC(1000023);
static u64 (*efuse_notify_nodeid)(struct efuse_notify *n) EFUSE_KFUNC(1000024);
static int (*efuse_notify_name)(struct efuse_notify *n, void *buf, u32 size)
	EFUSE_KFUNC(1000025);

static u32 (*efuse_exit_kind)(struct efuse_exit_info *info) EFUSE_KFUNC(1000026);
static s64 (*efuse_exit_code)(struct efuse_exit_info *info) EFUSE_KFUNC(1000027);

static u64 (*efuse_req_block)(struct efuse_req *req) EFUSE_KFUNC(1000028);
static int (*efuse_reply_block)(struct efuse_req *req, void *tag, u32 tag_size,
				const void *data, u32 data_size) EFUSE_KFUNC(1000029);
static int (*efuse_learn_block)(struct efuse_req *req, void *tag, u32 tag_size, void *data,
				u32 data_size) EFUSE_KFUNC(1000030);

static const void *(*efuse_path_info)(struct efuse_req *req, u64 size) EFUSE_KFUNC(1000031);
static int (*efuse_path_predict)(struct efuse_req *req, u64 ns, u32 note) EFUSE_KFUNC(1000032);
static u32 (*efuse_req_wanted)(struct efuse_req *req) EFUSE_KFUNC(1000033);

static int (*efuse_learn_evicted)(struct efuse_req *req, void *tag, u32 size)
	EFUSE_KFUNC(1000034);
static u64 (*efuse_req_ended)(struct efuse_req *req) EFUSE_KFUNC(1000035);
static u64 (*efuse_req_epoch)(struct efuse_req *req) EFUSE_KFUNC(1000036);
static u64 (*efuse_notify_epoch)(struct efuse_notify *n) EFUSE_KFUNC(1000037);

static const void *(*efuse_placement_info)(struct efuse_placement *placement, u64 size)
	EFUSE_KFUNC(1000038);
static const void *(*efuse_channel_load)(struct efuse_placement *placement, u32 cpu, u64 size)
	EFUSE_KFUNC(1000039);

static int (*efuse_path_resident)(struct efuse_req *req) EFUSE_KFUNC(1000040);

#endif /* _EFUSE_BPF_H */
