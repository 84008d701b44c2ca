#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Frames of one guest are redirected by XDP to another guest's TAP and to a veth: all numbered frames arrive, and TCP
# and UDP frames whose checksum the guest left unfinished arrive with a right one. Programs are swapped under load and
# no frame goes uncounted.
# ctest: labels=threaded timeout=150
TIME_LIMIT=130
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
vx() { in_ns "$VXDP" "$@" --control "$CONTROL"; }

start_daemon --port "name=vm1,socket=$WORK/vm1.sock,tap=vm1,mtu=4000" \
  --port "name=vm0,socket=$WORK/vm0.sock,tap=vm0,mtu=4000,xdp=redirect,redirect-to=vm1" --workers 1
in_ns sysctl -qw net.ipv6.conf.all.disable_ipv6=1
in_ns ip link set vm1 txqueuelen 20000

for kind in "--frame tcp --csum --bytes 100" "--frame udp --csum --bytes 101" "--frame raw" "--frame tcp --csum --bytes 1500" "--frame udp --csum --bytes 3000"; do
  start receiver "$VXDP" guest --socket "$WORK/vm1.sock" --receive --verify --expect 20000 --seconds 20
  ready1() { [ "$(metric vxdp_session_state port=vm1 state=running)" = 1 ]; }
  wait_for ready1
  # shellcheck disable=SC2086
  in_ns "$VXDP" guest --socket "$WORK/vm0.sock" --send 20000 --rate 20000 $kind >"$WORK/sender.log" ||
    fail "the sender of $kind: $(cat "$WORK/sender.log")"
  finish receiver 20 || fail "the receiver of $kind: $(cat "$WORK/receiver.log")"
  waits1() { [ "$(metric vxdp_session_state port=vm1 state=waiting)" = 1 ]; }
  wait_for waits1
done
expect_eq 100000 "$(metric vxdp_program_frames_total port=vm0 program=redirect action=redirect)" "frames redirected"

# A guest may not send segmentation offload frames there: the port does not offer it.
expect_status 2 "$VXDP" guest --socket "$WORK/vm0.sock" --send 10 --frame tcp --gso --bytes 9000

# --- to a veth, received by the host's end (a packet socket needs the frames whole and right)
in_ns ip link add out0 type veth peer name out1
for side in out0 out1; do in_ns ip link set $side up; in_ns ethtool -K $side gro on >/dev/null 2>&1 || true; done
vx program swap vm0 redirect --redirect-to out0 >/dev/null
start peer "${VXDP_BUILD:?}/tests/integration/tap_peer" out1 --receive 20000 --seconds 4
sleep 0.5
in_ns "$VXDP" guest --socket "$WORK/vm0.sock" --send 20000 --rate 20000 --frame udp --csum --bytes 200 >/dev/null
finish peer 20 || fail "through the veth: $(cat "$WORK/peer.log")"

# --- swaps under load: old + new program's counts = frames submitted
vx program swap vm0 drop >/dev/null
actions() { metric vxdp_program_frames_total port=vm0; }
native() { metric vxdp_queue_native_frames_total port=vm0; }
start load "$VXDP" guest --socket "$WORK/vm0.sock" --seconds 4
flowing() { [ "$(metric vxdp_queue_frames_total port=vm0 direction=from_guest)" -gt 200000 ]; }
wait_for flowing
for _ in $(seq 20); do
  for program in pass drop; do vx program swap vm0 $program >/dev/null; done
done
expect_status 2 "$VXDP" program swap vm0 /etc/hostname --control "$CONTROL"
finish load 20 || fail "the guest under swaps: $(cat "$WORK/load.log")"
expect_eq "$(metric vxdp_queue_frames_total port=vm0 direction=from_guest)" "$(actions)" "verdicts of all programs, and frames"
expect_eq "$(actions)" "$(native)" "frames on the native path"
expect_eq 1 "$(metric vxdp_program_attached port=vm0 program=drop mode=native)" "drop attached after a refused swap"
