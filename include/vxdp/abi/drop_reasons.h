/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Why a frame was dropped: one numbered list for BPF programs, daemon, metrics and captures.
 * A number is an index in BPF maps and a label in metrics: never renumber, never reuse, append only. */
#ifndef VXDP_ABI_DROP_REASONS_H
#define VXDP_ABI_DROP_REASONS_H

/* X(number, NAME, label, meaning) */
#define VXDP_DROP_REASONS(X)                                                                                           \
	X(0, NONE, "none", "not dropped")                                                                              \
	X(1, BAD_CHAIN, "bad_chain", "descriptor chain is malformed")                                                  \
	X(2, BAD_ADDRESS, "bad_address", "descriptor points outside guest memory")                                     \
	X(3, BAD_HEADER, "bad_header", "virtio-net header contradicts the frame or the negotiated features")           \
	X(4, RUNT, "runt", "frame is shorter than an Ethernet header")                                                 \
	X(5, TOO_BIG, "too_big", "frame is larger than the receiver accepts")                                          \
	X(6, BACKEND_DOWN, "backend_down", "interface is down")                                                        \
	X(7, BACKEND_GONE, "backend_gone", "interface was deleted")                                                    \
	X(8, BACKEND_REFUSED, "backend_refused", "kernel refused the frame")                                           \
	X(9, BACKEND_BUSY, "backend_busy", "kernel had no room and order did not allow a retry")                       \
	X(10, NO_BUFFER, "no_buffer", "guest has no buffer for the frame")                                             \
	X(11, GSO_REDIRECT, "gso_redirect", "segmentation offload frame on a port whose program may redirect")         \
	X(12, POLICY, "policy", "an XDP program says so")                                                              \
	X(13, REDIRECT_FAILED, "redirect_failed", "redirect target is missing")                                        \
	X(14, GUEST_STOPPED, "guest_stopped", "guest stopped its queue while the frame waited")                        \
	X(15, MALFORMED, "malformed", "an XDP program could not parse the frame")                                      \
	X(16, QUEUE_DISABLED, "queue_disabled", "guest sent on a queue it had switched off")

enum vxdp_drop_reason {
#define VXDP_DROP_ENUM(number, name, label, meaning) VXDP_DROP_##name = (number),
	VXDP_DROP_REASONS(VXDP_DROP_ENUM)
#undef VXDP_DROP_ENUM
	VXDP_DROP_REASON_COUNT
};

#endif
