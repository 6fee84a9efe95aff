/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Included before every file of the module. The kernel's own FUSE may be loaded, too, and exports
 * the same names.
 */
#include <linux/export.h>
#undef EXPORT_SYMBOL
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL(symbol)
#define EXPORT_SYMBOL_GPL(symbol)
