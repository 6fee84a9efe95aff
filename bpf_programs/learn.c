// SPDX-License-Identifier: GPL-2.0
/* Each value that the daemon's replies bring, into its map. */
#include "efuse.bpf.h"

static inline int learn_entry(struct efuse_req *req)
{
	struct efuse_entry_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_entry *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? entries.update(key, value) : -EINVAL;
}

static inline int learn_attrs(struct efuse_req *req)
{
	u64 *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_attrs *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? attrs.update(key, value) : -EINVAL;
}

static inline int learn_blob(struct efuse_req *req)
{
	struct efuse_blob_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_blob *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? blobs.update(key, value) : -EINVAL;
}

static inline int learn_grant(struct efuse_req *req)
{
	struct efuse_grant_key *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_grant *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? grants.update(key, value) : -EINVAL;
}

static inline int learn_volume(struct efuse_req *req)
{
	u64 *key = efuse_learn_key(req, sizeof(*key));
	struct efuse_volume *value = efuse_learn_value(req, sizeof(*value));

	return key && value ? volumes.update(key, value) : -EINVAL;
}

int learn(struct efuse_req *req)
{
	switch (efuse_learn_map(req)) {
	case EFUSE_MAP_ENTRIES:
		return learn_entry(req);
	case EFUSE_MAP_ATTRS:
		return learn_attrs(req);
	case EFUSE_MAP_BLOBS:
		return learn_blob(req);
	case EFUSE_MAP_GRANTS:
		return learn_grant(req);
	case EFUSE_MAP_VOLUMES:
		return learn_volume(req);
	}
	return 0;
}
