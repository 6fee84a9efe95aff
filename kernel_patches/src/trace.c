// SPDX-License-Identifier: GPL-2.0
/* Instantiates the trace events that trace.h declares. */
#define CREATE_TRACE_POINTS
#include "trace.h"
