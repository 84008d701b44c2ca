// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* An object without an XDP program. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("tc")
int classify(struct __sk_buff *skb)
{
	return skb->len > 1000;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
