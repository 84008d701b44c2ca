/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shape of the per-CPU array map `vxdp_stats` that our XDP programs count into. */
#ifndef VXDP_ABI_PROGRAM_STATS_H
#define VXDP_ABI_PROGRAM_STATS_H

#include <linux/types.h>

#include "drop_reasons.h"

/* Index = XDP action (0 aborted, 1 drop, 2 pass, 3 tx, 4 redirect), then VXDP_STATS_ACTIONS + drop reason. */
#define VXDP_STATS_ACTIONS 8
#define VXDP_STATS_REASONS 64
#define VXDP_STATS_ENTRIES (VXDP_STATS_ACTIONS + VXDP_STATS_REASONS)

struct vxdp_stats_entry {
	__u64 frames;
	__u64 bytes;
};

#endif
