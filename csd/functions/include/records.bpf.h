/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Records of a fixed size, and the numbers in them, without branches. Whatever depends on the
 * arguments is computed where the arguments are made (efuse/functions/records.py).
 *
 * The size of a record divides CSD_BLOCK_SIZE, and is at least 8 bytes. A field has 1, 2, 4 or 8
 * bytes and begins at a multiple of its size. An incomplete record at the end of the file does not
 * count.
 */
#ifndef _RECORDS_BPF_H
#define _RECORDS_BPF_H

#include "csd.bpf.h"

#define RECORD_LEAST	8
#define RECORD_MOST	(CSD_BLOCK_SIZE / RECORD_LEAST)

/* A field. Its bytes are part of the little-endian u64 at offset `word` of the record. */
struct record_field {
	u32 word;		/* offset in the record, a multiple of 8 */
	u32 shift;		/* number of bits below the field in the word */
	u64 mask;		/* mask of the field's bits after the shift */
	u64 sign;		/* the field's sign bit after the shift, or 0 if it is unsigned */
};

/* Numbers are compared as unsigned ones. Adding this gives signed numbers the same order. */
#define RECORD_BIAS	(1ULL << 63)

struct record_filter {
	struct record_field field;
	u64 least;		/* smallest number that passes, biased */
	u64 most;		/* greatest number that passes, biased */
};

struct records {
	u32 size;
	u32 pad;
	struct record_filter filter;
};

static inline u64 record_number(const u8 *block, u64 record, const struct record_field *field)
{
	/* The mask convinces the verifier; the word is within the block anyway. */
	u64 word = *(const u64 *)(block + ((record + field->word) & (CSD_BLOCK_SIZE - 8)));

	word = word >> (field->shift & 63) & field->mask;
	return (word ^ field->sign) - field->sign;
}

/* 1 if the record at that offset of the block is complete and passes the filter, else 0. */
static inline u64 record_wanted(const u8 *block, u64 record, u64 len, const struct records *records)
{
	u64 number = record_number(block, record, &records->filter.field) + RECORD_BIAS;
	u64 out = csd_less(number, records->filter.least) |
		  csd_less(records->filter.most, number);

	return ~out & csd_below(record + records->size, len + 1);
}

/* The result over the numbers of some records. */
struct record_sums {
	u64 count;
	u64 sum;		/* modulo 1 << 64 */
	u64 least;		/* inverted and biased, so that it can start as 0 */
	u64 most;		/* biased */
};

/* Adds a number if @wanted is 1; @wanted is 1 or 0. */
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
