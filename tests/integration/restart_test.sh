#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A daemon that is told to stop, or killed, and started again at once finds its sockets and makes its TAP again, with
# other flags too; a guest that reconnects is served.
# ctest: timeout=120
TIME_LIMIT=100
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
in_ns ip link set lo up
queues=1

for signal in TERM KILL TERM KILL TERM KILL; do
  queues=$((queues == 1 ? 2 : 1))
  start daemon "$VXDP" run --control "$CONTROL" --metrics 127.0.0.1:9477 \
    --port "name=vm0,socket=$WORK/vm0.sock,tap=vm0,queues=$queues,xdp=drop"
  ready() { running daemon || fail "after $signal the next daemon ends"; in_ns curl -fsS "${METRICS%/metrics}/readyz"; }
  wait_for ready
  in_ns "$VXDP" guest --socket "$WORK/vm0.sock" --send 50000 --queues "$queues" >"$WORK/guest.log" || fail "$(cat "$WORK/guest.log")"
  expect_eq 50000 "$(metric vxdp_program_frames_total action=drop)" "frames dropped by the program"
  stop daemon "$signal" || [ "$signal" = KILL ] || fail "exit status $? after SIGTERM"
done
