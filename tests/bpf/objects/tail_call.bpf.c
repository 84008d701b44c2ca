// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Tail-calls into a program array filled at load, so the last descriptor of the array must stay open.
 * The target comes first in the object; its section says that it is not the one to attach. */
#include "lib/stats.bpf.h"

int counted_drop(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, int(void *));
} next SEC(".maps") = {
	.values = { [0] = (void *)&counted_drop },
};

SEC("xdp")
int entry(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &next, 0);
	return vxdp_exit(ctx, XDP_PASS, VXDP_DROP_NONE);
}

SEC("xdp/next")
int counted_drop(struct xdp_md *ctx)
{
	return vxdp_exit(ctx, XDP_DROP, VXDP_DROP_POLICY);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
