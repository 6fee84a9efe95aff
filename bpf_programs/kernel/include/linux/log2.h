/* SPDX-License-Identifier: GPL-2.0 */
/* Nothing of this header is needed. */
