/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Included before every file of the module: it stands beside the kernel's own
 * FUSE, whose exported names are taken.
 */
#include <linux/export.h>
#undef EXPORT_SYMBOL
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL(symbol)
#define EXPORT_SYMBOL_GPL(symbol)
