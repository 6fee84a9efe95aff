// SPDX-License-Identifier: GPL-2.0
/*
 * The built-in maps. In a full map a new value replaces the least recently used one. Losing a value
 * costs a request to the daemon and nothing else.
 */
#include "efuse.bpf.h"
#include "paths.bpf.h"

_Static_assert(sizeof(struct efuse_entry_key) == 264, "efuse_entry_key");
_Static_assert(sizeof(struct efuse_entry) == 48, "efuse_entry");
_Static_assert(sizeof(struct efuse_attrs) == 120, "efuse_attrs");
_Static_assert(sizeof(struct efuse_blob_key) == 272, "efuse_blob_key");
_Static_assert(sizeof(struct efuse_blob) == 1024, "efuse_blob");
_Static_assert(sizeof(struct efuse_grant_key) == 24, "efuse_grant_key");
_Static_assert(sizeof(struct efuse_grant) == 40, "efuse_grant");
_Static_assert(sizeof(struct efuse_volume) == 112, "efuse_volume");
_Static_assert(sizeof(struct efuse_set) == 512, "efuse_set");
_Static_assert(sizeof(struct efuse_path_info) == 40, "efuse_path_info");
_Static_assert(sizeof(struct efuse_slot) == 4096, "efuse_slot");
_Static_assert(sizeof(struct efuse_geometry) == 16, "efuse_geometry");
_Static_assert(sizeof(struct efuse_file_use) == 16, "efuse_file_use");
_Static_assert(sizeof(struct efuse_event) == 48, "efuse_event");

BPF_TABLE("lru_hash", struct efuse_entry_key, struct efuse_entry, entries, 65536);
BPF_TABLE("lru_hash", u64, struct efuse_attrs, attrs, 65536);
BPF_TABLE("lru_hash", struct efuse_blob_key, struct efuse_blob, blobs, 8192);
BPF_TABLE("lru_hash", struct efuse_grant_key, struct efuse_grant, grants, 16384);
BPF_TABLE("lru_hash", u64, struct efuse_volume, volumes, 64);

/* The data cache: 16 MiB, in arrays that the daemon can map. */
BPF_F_TABLE("array", int, struct efuse_set, tags, 512, BPF_F_MMAPABLE);
BPF_F_TABLE("array", int, struct efuse_slot, blocks, 4096, BPF_F_MMAPABLE);
BPF_TABLE("array", int, struct efuse_geometry, geometry, 1);
BPF_TABLE("lru_hash", u64, struct efuse_file_use, files, 4096);

/* The measurements of paths.c. `ghosts` notes the last READ of each block hash, 4 per slot. */
BPF_TABLE("percpu_array", int, struct path_profile, profiles, PATH_PROFILES);
BPF_TABLE("array", int, u32, ghosts, 16384);

/* The events: 256 KiB, about 4600 of them. */
BPF_RINGBUF_OUTPUT(events, 64);
BPF_TABLE("array", int, u32, listening, 1);
BPF_TABLE("array", int, u64, lost, 1);
