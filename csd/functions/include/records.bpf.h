/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Records of a fixed size, and numbers in them, without branches: what depends on the arguments
 * is worked out before, by who makes them (efuse/functions/records.py).
 *
 * A record is as many bytes as divide CSD_BLOCK_SIZE, at least 8; a field is 1, 2, 4 or 8 of them
 * that begin at a multiple of their size. What is left of a record at the file's end is
 * no record.
 */
#ifndef _RECORDS_BPF_H
#define _RECORDS_BPF_H

#include "csd.bpf.h"

#define RECORD_LEAST	8
#define RECORD_MOST	(CSD_BLOCK_SIZE / RECORD_LEAST)

/* A field: its bytes lie in the little-endian word at `word`. */
struct record_field {
	u32 word;		/* offset in the record, a multiple of 8 */
	u32 shift;		/* bits below it in the word */
	u64 mask;		/* of its bits, when they are shifted down */
	u64 sign;		/* the highest of them if it has a sign, else 0 */
};

/* Numbers are compared as unsigned ones: with this added, signed ones are in the same order. */
#define RECORD_BIAS	(1ULL << 63)

struct record_filter {
	struct record_field field;
	u64 least;		/* biased */
	u64 most;		/* biased */
};

struct records {
	u32 size;
	u32 pad;
	struct record_filter filter;
};

static inline u64 record_number(const u8 *block, u64 record, const struct record_field *field)
{
	/* The mask is for the verifier: the word lies in the block by itself. */
	u64 word = *(const u64 *)(block + ((record + field->word) & (CSD_BLOCK_SIZE - 8)));

	word = word >> (field->shift & 63) & field->mask;
	return (word ^ field->sign) - field->sign;
}

/* 1 or 0: is the record at that offset of the block whole, and does it pass the filter? */
static inline u64 record_wanted(const u8 *block, u64 record, u64 len, const struct records *records)
{
	u64 number = record_number(block, record, &records->filter.field) + RECORD_BIAS;
	u64 out = csd_less(number, records->filter.least) |
		  csd_less(records->filter.most, number);

	return ~out & csd_below(record + records->size, len + 1);
}

/* What is emitted of the numbers of some records. */
struct record_sums {
	u64 count;
	u64 sum;		/* modulo 1 << 64 */
	u64 least;		/* inverted and biased, so that it begins with 0 */
	u64 most;		/* biased */
};

/* Add a number if @wanted, which is 1 or 0. */
static inline void record_add(struct record_sums *sums, u64 number, u64 wanted)
{
	u64 mask = -wanted;

	sums->count += wanted;
	sums->sum += number & mask;
	number += RECORD_BIAS;
	sums->least ^= (sums->least ^ ~number) & mask & -csd_less(sums->least, ~number);
	sums->most ^= (sums->most ^ number) & mask & -csd_less(sums->most, number);
}

#endif /* _RECORDS_BPF_H */
