// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reads the frame without asking where it ends: the verifier must refuse it. */
#include "lib/stats.bpf.h"

SEC("xdp")
int read_blindly(struct xdp_md *ctx)
{
	const __u8 *frame = (void *)(long)ctx->data;

	return vxdp_exit(ctx, frame[100] ? XDP_PASS : XDP_DROP, VXDP_DROP_NONE);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
