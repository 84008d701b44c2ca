// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* redirect: sends every sound frame out of the interface in entry 0 of vxdp_targets.
 * Without a target (never set, or its interface was deleted) frames go to the kernel's network stack. */
#include <linux/if_ether.h>

#include "lib/stats.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} vxdp_targets SEC(".maps");

SEC("xdp")
int vxdp_redirect(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > end)
		return vxdp_exit(ctx, XDP_DROP, VXDP_DROP_RUNT);
	/* A group address cannot have sent a frame (IEEE 802.3, 3.2.3): no stack behind us will check. */
	if (eth->h_source[0] & 1)
		return vxdp_exit(ctx, XDP_DROP, VXDP_DROP_MALFORMED);
	/* The flags' low bits are what the helper returns when entry 0 is empty. */
	return vxdp_exit(ctx, bpf_redirect_map(&vxdp_targets, 0, XDP_PASS), VXDP_DROP_NONE);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
