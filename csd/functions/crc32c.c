// SPDX-License-Identifier: GPL-2.0
/* crc32c: the CRC-32 of Castagnoli's polynomial (RFC 3720, appendix B.4). */
#include "csd.bpf.h"

struct crc32c_args {
	u32 table[256];		/* per byte value: its CRC, starting from a CRC of 0 */
};

struct crc32c_state {
	u32 crc;		/* inverted, so that it can start as 0 */
	u32 pad;
};

int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	const struct crc32c_args *args = csd_args(run, sizeof(*args));
	struct crc32c_state *state = csd_scratch(run, sizeof(*state));
	u64 len = csd_len(run);
	u32 crc, next;
	u64 i;

	if (!block || !args || !state)
		return -EPROTO;
	crc = ~state->crc;
	for (i = 0; i < CSD_BLOCK_SIZE; i++) {
		next = args->table[(crc ^ block[i]) & 0xff] ^ crc >> 8;
		crc ^= (crc ^ next) & -(u32)csd_below(i, len);
	}
	state->crc = ~crc;
	return CSD_GO_ON;
}

int finish(struct csd_run *run)
{
	struct crc32c_state *state = csd_scratch(run, sizeof(*state));

	return state ? csd_emit(run, state, sizeof(state->crc)) : -EPROTO;
}

CSD_SCRATCH(struct crc32c_state)
CSD_ARGS(struct crc32c_args)
