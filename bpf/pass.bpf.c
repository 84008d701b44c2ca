// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* pass: counts every frame and lets it go on to the kernel's network stack. */
#include "lib/stats.bpf.h"

SEC("xdp")
int vxdp_pass(struct xdp_md *ctx)
{
	return vxdp_exit(ctx, XDP_PASS, VXDP_DROP_NONE);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
