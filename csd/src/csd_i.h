/* SPDX-License-Identifier: GPL-2.0 */
/*
 * csd.ko's internal header: the files of this directory, which may use all others.
 *
 * A directory has one header, and a file includes the one of its own directory. The calls between
 * the directories go in one direction: from this one to run/, from there to program/ and device/.
 * program/ and device/ do not know of each other. No two files call each other, directly or
 * through others.
 */
#ifndef _CSD_I_H
#define _CSD_I_H

#include "run/run_i.h"

#define CSD_VERSION	"0.1.0"

/* kfuncs.c */
int csd_kfuncs_init(void);

/* config.c */
int csd_config_init(void);
void csd_config_exit(void);

/* control.c */
int csd_control_init(void);
void csd_control_exit(void);

#endif /* _CSD_I_H */
