// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Two XDP programs behind one of another kind: the first XDP program, which drops as malformed, is the one. */
#include "lib/stats.bpf.h"

SEC("tc")
int classify(struct __sk_buff *skb)
{
	return skb->len > 1000;
}

SEC("xdp")
int first(struct xdp_md *ctx)
{
	return vxdp_exit(ctx, XDP_DROP, VXDP_DROP_MALFORMED);
}

SEC("xdp")
int second(struct xdp_md *ctx)
{
	return vxdp_exit(ctx, XDP_PASS, VXDP_DROP_NONE);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
