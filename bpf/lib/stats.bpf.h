/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The map vxdp_stats and the one exit of a program, which counts what the program decided.
 * The daemon finds the map by name and sums it over CPUs; its shape is vxdp/abi/program_stats.h. */
#ifndef VXDP_LIB_STATS_BPF_H
#define VXDP_LIB_STATS_BPF_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "vxdp/abi/drop_reasons.h"
#include "vxdp/abi/program_stats.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VXDP_STATS_ENTRIES);
	__type(key, __u32);
	__type(value, struct vxdp_stats_entry);
} vxdp_stats SEC(".maps");

/* Plain adds are exact: XDP runs with bottom halves off, so nothing else writes this CPU's entry. */
static __always_inline void vxdp_count(__u32 index, __u64 bytes)
{
	struct vxdp_stats_entry *entry = bpf_map_lookup_elem(&vxdp_stats, &index);

	if (entry) {
		entry->frames += 1;
		entry->bytes += bytes;
	}
}

/* Counts the frame under `action`, and under `reason` unless that is VXDP_DROP_NONE; returns `action`.
 * Every way out of a program goes through here, once. Must not be called after a helper that moves packet ends. */
static __always_inline int vxdp_exit(const struct xdp_md *ctx, enum xdp_action action, enum vxdp_drop_reason reason)
{
	__u64 bytes = (__u64)ctx->data_end - (__u64)ctx->data;

	vxdp_count(action, bytes);
	if (reason != VXDP_DROP_NONE)
		vxdp_count(VXDP_STATS_ACTIONS + reason, bytes);
	return action;
}

#endif
