// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* bpf/redirect.bpf.c as host code, with one CPU's counters and a target that can be switched on. */
#include "redirect.bpf.c"

struct vxdp_stats_entry host_stats[VXDP_STATS_ENTRIES];
int host_has_target;

void *bpf_map_lookup_elem(void *map, const void *key)
{
	const __u32 index = *(const __u32 *)key;

	return map == (void *)&vxdp_stats && index < VXDP_STATS_ENTRIES ? &host_stats[index] : 0;
}

long bpf_redirect_map(void *map, __u64 key, __u64 flags)
{
	return map == (void *)&vxdp_targets && key == 0 && host_has_target ? XDP_REDIRECT : (long)(flags & 3);
}
