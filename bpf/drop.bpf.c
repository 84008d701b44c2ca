// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* drop: counts and drops every frame. */
#include "lib/stats.bpf.h"

SEC("xdp")
int vxdp_drop(struct xdp_md *ctx)
{
	return vxdp_exit(ctx, XDP_DROP, VXDP_DROP_POLICY);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
