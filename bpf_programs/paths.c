// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses the path of a READ of a file that the daemon mapped: its backing files, or the data
 * cache, which is filled from them. The method is to probe and predict. The READs of a kind are
 * counted in rounds. The first few READs of a round try both paths in turn. The others take the
 * path that is predicted to be faster. The prediction uses the recent times of both, the share of
 * blocks that are read again while the cache would hold them, and the number of requests that are
 * at the backing files now.
 *
 * If the backing file is on a device of csd.ko, it can be read in two ways: through its page cache,
 * and past it. A READ goes through the page cache if that has something of it, or if it follows the
 * READ before, because then the kernel reads ahead. Otherwise the faster of both is predicted. In
 * favour of the page cache counts that blocks that are read again would be in it by then.
 *
 * The daemon is not tried. It mapped the file in order not to be asked, and for ranges that it did
 * not map the cache asks it only for what is missing. There is no choice for a WRITE.
 */
#include "efuse.bpf.h"
#include "paths.bpf.h"

#define PATH_ONE	65536
#define PATH_SAMPLE	16	/* one READ out of so many is measured */
#define PATH_WARM	8	/* READs found in the page cache; then one of so many is checked */
#define PATH_BOTH	(1 << EFUSE_PATH_DIRECT | 1 << EFUSE_PATH_CACHE)

/* The note of a measured READ: the index of its profile, and these bits. */
#define PATH_NOTE_KEPT	0x80000000	/* the cache was expected to have the block */
#define PATH_NOTE_COLD	0x40000000	/* nothing was in the page cache: a device could do it */

static inline u32 path_size(u64 size)
{
	if (size <= 4096)
		return 0;
	if (size <= 16384)
		return 1;
	if (size <= 65536)
		return 2;
	if (size <= 262144)
		return 3;
	return size <= 1048576 ? 4 : 5;
}

static inline u32 path_profile_of(u64 nodeid, u64 size)
{
	u64 hash = nodeid * 0x9e3779b97f4a7c15ULL;

	return (u32)(hash >> 58) * PATH_SIZES + path_size(size);
}

/*
 * Updates a moving mean. A value above four times the mean counts as four times the mean, because
 * an interruption can make any READ slow. But nothing makes a READ faster than it can be, so a mean
 * above four times the value is lowered to that.
 */
static inline void path_mean(u64 *mean, u64 value)
{
	if (!*mean) {
		*mean = value;
		return;
	}
	if (value > *mean * 4)
		value = *mean * 4;
	else if (*mean > value * 4)
		*mean = value * 4;
	*mean = *mean - (*mean >> 3) + (value >> 3);
}

static inline u32 path_share(u32 share, bool more, u32 log)
{
	return more ? share + ((PATH_ONE - share) >> log) : share - (share >> log);
}

/*
 * The slot that remembers the last READ of the blocks with this hash by a fingerprint, @print. The
 * lowest bit of the slot is cleared if the cache was to keep the block.
 */
static inline u32 *path_ghost(u64 nodeid, u64 offset, u32 *print)
{
	u64 hash = block_hash(nodeid, offset / EFUSE_BLOCK_SIZE);
	struct efuse_geometry *shape;
	int zero = 0, number;

	shape = geometry.lookup(&zero);
	if (!shape || !shape->sets)
		return NULL;
	*print = (u32)hash | 1;
	number = block_scale(hash, shape->sets * EFUSE_WAYS * 4);
	return ghosts.lookup(&number);
}

/*
 * Scales a measured time of the backing files from the mean number of requests there to the present
 * one.
 */
static inline u64 path_queued(const struct path_profile *profile, u64 ns, u32 depth)
{
	return ns * (16 + (u64)depth * 16) / (16 + profile->depth);
}

/* The time that reading it into the page cache will save if it is read again. */
static inline u64 path_warms(const struct path_profile *profile)
{
	u64 hot = profile->ns[PATH_TIME_DIRECT], cold = profile->ns[PATH_TIME_DEVICE];

	if (profile->ns[PATH_TIME_COLD] < cold)
		cold = profile->ns[PATH_TIME_COLD];
	return hot && hot < cold ? (cold - hot) * profile->again / PATH_ONE : 0;
}

/* Chooses between page cache and device for a READ that the page cache has nothing of. */
static inline u32 path_past(const struct path_profile *profile)
{
	u64 cold = profile->ns[PATH_TIME_COLD], device = profile->ns[PATH_TIME_DEVICE];

	/* A time that was never measured is worth a try. */
	if (!cold)
		return EFUSE_PATH_DIRECT;
	device += path_warms(profile);
	if (profile->cold == EFUSE_PATH_DEVICE)
		return cold + cold / 8 < device ? EFUSE_PATH_DIRECT : EFUSE_PATH_DEVICE;
	return device + device / 8 < cold ? EFUSE_PATH_DEVICE : EFUSE_PATH_DIRECT;
}

/* Would the page cache have to wait for the device, because it has nothing of the READ? */
static inline bool path_is_cold(struct efuse_req *req, struct path_profile *profile,
				const struct efuse_path_info *info, u64 offset, u64 size)
{
	bool follows = offset == profile->end;

	profile->end = offset + size;
	if (!(info->eligible & 1 << EFUSE_PATH_DEVICE) || follows)
		return false;
	profile->warm++;
	if (profile->warm > PATH_WARM && profile->warm % PATH_WARM)
		return false;
	if (efuse_path_resident(req))
		return false;
	profile->warm = 0;
	return true;
}

/*
 * Predicted time through the data cache, which gets missing blocks from backing files. 0: not
 * known.
 */
static inline u64 path_cache_ns(const struct path_profile *profile, u64 direct_ns, u32 depth)
{
	u64 hits = (u64)profile->again * (PATH_ONE - profile->lost) / PATH_ONE;
	u64 miss = path_queued(profile, profile->ns[PATH_TIME_MISS], depth);

	if (!miss)
		miss = direct_ns + direct_ns / 8;
	/* The time of a hit that was never measured is 0, which makes the cache worth a try. */
	return (hits * profile->ns[PATH_TIME_HIT] + (PATH_ONE - hits) * miss) / PATH_ONE;
}

/* The last choice stays unless the other path is faster by more than an eighth. */
static inline u32 path_fastest(u32 last, u64 direct_ns, u64 cache_ns)
{
	if (!direct_ns)
		return EFUSE_PATH_DIRECT;
	if (last == EFUSE_PATH_CACHE)
		return direct_ns + direct_ns / 8 < cache_ns ? EFUSE_PATH_DIRECT : EFUSE_PATH_CACHE;
	return cache_ns + cache_ns / 8 < direct_ns ? EFUSE_PATH_CACHE : EFUSE_PATH_DIRECT;
}

/*
 * Nothing is learned between two measured READs. So READs after the first one take the same path,
 * as long as the number of requests at the backing files is the same.
 */
static inline bool path_stays(const struct path_profile *profile, u32 count,
			      const struct efuse_path_info *info)
{
	return profile->path && count % PATH_SAMPLE && count >= 2 * info->probes &&
	       profile->chosen_depth == info->depth;
}

/* The path of the next READ of a kind, by its number in the round. */
static inline u32 path_choose(u32 last, u32 count, u32 probes, u64 direct_ns, u64 cache_ns)
{
	u32 path;

	if (count < 2 * probes) {
		path = count & 1 ? EFUSE_PATH_CACHE : EFUSE_PATH_DIRECT;
		return path | EFUSE_PATH_MEASURE | EFUSE_PATH_PROBE;
	}
	path = path_fastest(last, direct_ns, cache_ns);
	return count % PATH_SAMPLE ? path : path | EFUSE_PATH_MEASURE;
}

/* The way to the backing files for a READ that the page cache has nothing of. */
static inline u32 path_cold(const struct path_profile *profile, u32 count, u32 probes)
{
	/* Every other probe of the backing files. */
	if (count < 2 * probes)
		return count & 2 ? EFUSE_PATH_DEVICE : EFUSE_PATH_DIRECT;
	return path_past(profile);
}

/* Emits an event if the choice for READs of this kind has changed. */
static inline void path_changed(struct efuse_req *req, u32 *was, u32 path)
{
	if (path == *was)
		return;
	*was = path;
	event_emit(EFUSE_EVENT_PATH, FUSE_READ, path, efuse_req_nodeid(req), efuse_req_offset(req),
		   efuse_req_size(req), 0);
}

/* Computes what select_path() returns for a READ. */
static inline u32 path_work_out(struct efuse_req *req, struct path_profile *profile,
				const struct efuse_path_info *info, u32 count, bool cold, u32 note)
{
	u32 *last = cold ? &profile->cold : &profile->path;
	enum path_time time = PATH_TIME_DIRECT;
	u32 choice, backing = EFUSE_PATH_DIRECT;
	u64 direct_ns, cache_ns;

	if (cold) {
		note |= PATH_NOTE_COLD;
		backing = path_cold(profile, count, info->probes);
		time = backing == EFUSE_PATH_DEVICE ? PATH_TIME_DEVICE : PATH_TIME_COLD;
	}
	direct_ns = path_queued(profile, profile->ns[time], info->depth);
	cache_ns = path_cache_ns(profile, direct_ns, info->depth);
	choice = path_choose(*last, count, info->probes, direct_ns, cache_ns);
	if ((choice & 0xff) == EFUSE_PATH_CACHE)
		direct_ns = cache_ns;
	else
		choice = (choice & ~0xff) | backing;
	if (!(choice & EFUSE_PATH_PROBE)) {
		path_changed(req, last, choice & 0xff);
		if (!cold)
			profile->chosen_depth = info->depth;
	}
	if (choice & EFUSE_PATH_MEASURE)
		efuse_path_predict(req, direct_ns, note);
	return choice;
}

int select_path(struct efuse_req *req)
{
	const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
	u64 nodeid, offset, size;
	struct path_profile *profile;
	u32 note, print, count, choice;
	u32 *ghost;
	int index;
	bool cold;

	if (!info || (info->eligible & PATH_BOTH) != PATH_BOTH)
		return EFUSE_PATH_AUTO;
	nodeid = efuse_req_nodeid(req);
	offset = efuse_req_offset(req);
	size = efuse_req_size(req);
	index = path_profile_of(nodeid, size);
	profile = profiles.lookup(&index);
	ghost = path_ghost(nodeid, offset, &print);
	if (!profile || !ghost)
		return EFUSE_PATH_AUTO;

	note = index;
	if (*ghost == (print & ~1))
		note |= PATH_NOTE_KEPT;
	profile->again = path_share(profile->again, (*ghost | 1) == print, 6);
	count = profile->count;
	profile->count = count + 1 < info->round ? count + 1 : 0;

	cold = path_is_cold(req, profile, info, offset, size);
	if (!cold && path_stays(profile, count, info))
		choice = profile->path;
	else
		choice = path_work_out(req, profile, info, count, cold, note);
	if ((choice & 0xff) == EFUSE_PATH_CACHE)
		print &= ~1;
	*ghost = print;
	return choice;
}

/* Which of the times a request has measured. */
static inline u32 path_time_of(const struct efuse_path_info *info)
{
	if (info->path == EFUSE_PATH_CACHE)
		return info->missed ? PATH_TIME_MISS : PATH_TIME_HIT;
	if (info->path == EFUSE_PATH_DEVICE)
		return PATH_TIME_DEVICE;
	return info->note & PATH_NOTE_COLD ? PATH_TIME_COLD : PATH_TIME_DIRECT;
}

int path_done(struct efuse_req *req)
{
	const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
	struct path_profile *profile;
	u32 time;
	int index;

	if (!info)
		return 0;
	index = info->note & ~(PATH_NOTE_KEPT | PATH_NOTE_COLD);
	profile = profiles.lookup(&index);
	if (!profile)
		return 0;
	if (info->path == EFUSE_PATH_CACHE && info->note & PATH_NOTE_KEPT)
		profile->lost = path_share(profile->lost, info->missed, 3);
	time = path_time_of(info);
	path_mean(&profile->ns[time], info->elapsed_ns);
	if (time != PATH_TIME_HIT)
		profile->depth = profile->depth - (profile->depth >> 3) + info->depth * 2;
	return 0;
}
