/* SPDX-License-Identifier: GPL-2.0 */
/* What paths.c knows of the READs of a kind. */
#ifndef _PATHS_BPF_H
#define _PATHS_BPF_H

#define PATH_FILES	64	/* kinds of files: those whose nodeids hash alike */
#define PATH_SIZES	6	/* of requests: up to 4 KiB, 16, 64, 256 KiB, 1 MiB, larger */
#define PATH_PROFILES	(PATH_FILES * PATH_SIZES)

/* Times that are told apart. */
enum path_time {
	PATH_TIME_DIRECT,
	PATH_TIME_COLD,		/* of those on a device: their page cache had nothing of it */
	PATH_TIME_DEVICE,
	PATH_TIME_HIT,		/* the cache had all of it */
	PATH_TIME_MISS,		/* it had not */
	PATH_NR_TIMES,
};

/* Of one kind on one CPU. Shares are in 1/65536. */
struct path_profile {
	u64 ns[PATH_NR_TIMES];	/* mean of the late ones, 0 before the first */
	u64 end;		/* of the last READ in its file */
	u32 count;		/* READs of this round */
	u32 path;		/* that the last of them took; the device counts as direct */
	u32 cold;		/* that the last took which the page cache had nothing of */
	u32 again;		/* share that asked for what was read not long before */
	u32 lost;		/* share of those that the cache was to keep and had not */
	u32 depth;		/* mean of requests at backing files, in 1/16 */
	u32 warm;		/* READs since one that the page cache had nothing of */
	u32 chosen_depth;	/* requests at backing files when that path was worked out */
};

#endif /* _PATHS_BPF_H */
