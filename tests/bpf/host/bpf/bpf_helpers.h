/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stands in for libbpf's header where a program is built for the host: maps are inert, helpers are the test's. */
#ifndef VXDP_TEST_BPF_HELPERS_H
#define VXDP_TEST_BPF_HELPERS_H

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, type) type *name

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_redirect_map(void *map, __u64 key, __u64 flags);

#endif
