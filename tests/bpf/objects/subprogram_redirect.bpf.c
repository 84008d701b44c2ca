// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The redirect is in a subprogram, which libbpf shows only after loading. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

static __attribute__((noinline)) int elsewhere(__u32 ifindex)
{
	return bpf_redirect(ifindex, 0);
}

SEC("xdp")
int send_on(struct xdp_md *ctx)
{
	return elsewhere(ctx->ingress_ifindex);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
