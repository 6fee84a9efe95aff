/* SPDX-License-Identifier: GPL-2.0 */
/* BCC has included its own copy already. */
