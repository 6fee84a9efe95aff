/* SPDX-License-Identifier: GPL-2.0 */
#define PAGE_SIZE 4096
