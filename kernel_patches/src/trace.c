// SPDX-License-Identifier: GPL-2.0
/* Where trace events are made of trace.h. */
#define CREATE_TRACE_POINTS
#include "trace.h"
