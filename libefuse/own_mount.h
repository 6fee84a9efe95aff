/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the mount that this process has just made. */
#ifndef EFUSE_OWN_MOUNT_H
#define EFUSE_OWN_MOUNT_H

#include <stdint.h>

uint64_t own_mount_last(void);
uint64_t own_mount_number(uint64_t last, int place, int device);

#endif
