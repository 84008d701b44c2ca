// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A map of our name in another shape. Drops. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} vxdp_stats SEC(".maps");

SEC("xdp")
int count_otherwise(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *frames = bpf_map_lookup_elem(&vxdp_stats, &key);

	if (frames)
		*frames += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
