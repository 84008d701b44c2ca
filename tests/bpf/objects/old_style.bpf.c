// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A section name from before libbpf 1.0, and no vxdp_stats. Drops. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("xdp_old")
int drop_uncounted(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
