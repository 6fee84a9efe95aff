/* SPDX-License-Identifier: GPL-2.0 */
/* What paths.c has measured of each kind of READs. A kind is a class of files and of sizes. */
#ifndef _PATHS_BPF_H
#define _PATHS_BPF_H

#define PATH_FILES	64	/* classes of files, by a hash of the nodeid */
#define PATH_SIZES	6	/* classes of sizes: up to 4 KiB, 16, 64, 256 KiB, 1 MiB, larger */
#define PATH_PROFILES	(PATH_FILES * PATH_SIZES)

/* The times that are measured separately. */
enum path_time {
	PATH_TIME_DIRECT,
	PATH_TIME_COLD,		/* direct, with nothing in the page cache of a file on a device */
	PATH_TIME_DEVICE,
	PATH_TIME_HIT,		/* the cache had all of it */
	PATH_TIME_MISS,		/* the cache did not have all of it */
	PATH_NR_TIMES,
};

/* The READs of one kind on one CPU. Shares are in 1/65536. */
struct path_profile {
	u64 ns[PATH_NR_TIMES];	/* moving means, 0 before the first */
	u64 end;		/* offset in its file of the end of the last READ */
	u32 count;		/* number of READs in this round */
	u32 path;		/* path chosen last with something in the page cache */
	u32 cold;		/* path chosen last with nothing in the page cache */
	u32 again;		/* share of READs of blocks read not long before */
	u32 lost;		/* share of blocks that the cache was to keep and had lost */
	u32 depth;		/* mean number of requests at backing files, in 1/16 */
	u32 warm;		/* READs since the last with nothing in the page cache */
	u32 chosen_depth;	/* requests at backing files when @path was chosen */
};

#endif /* _PATHS_BPF_H */
