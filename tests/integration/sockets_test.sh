#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ways to a front-end and to a TAP: client mode connects when the socket appears and again after it went, a second
# client of a busy socket is refused without harm to the first, a TAP may come as an open descriptor, and the whole
# configuration as a YAML file.
# ctest: labels=threaded timeout=120
TIME_LIMIT=100
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
require python3
frames() { metric vxdp_queue_frames_total direction=from_guest port="$1"; }

cat >"$WORK/config.yaml" <<END
ports:
  - name: vm0
    socket: $WORK/vm0.sock
    mode: client
    tap: vm0
    xdp: drop
    mtu: 9000
  - name: vm1
    socket: $WORK/vm1.sock
    tap-fd: 9
workers: 1
END
# The TAP of vm1 is opened by whoever starts the daemon.
cat >"$WORK/with_tap.py" <<'PY'
import fcntl, os, struct, sys
kTunSetIff, kTap, kNoPi, kVnetHdr = 0x400454CA, 0x0002, 0x1000, 0x4000
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, kTunSetIff, struct.pack("16sH22x", b"given0", kTap | kNoPi | kVnetHdr))
os.dup2(tap, 9, inheritable=True)
os.execv(sys.argv[1], sys.argv[1:])
PY
in_ns ip link set lo up
start daemon python3 "$WORK/with_tap.py" "$VXDP" run --config "$WORK/config.yaml" --control "$CONTROL" --metrics 127.0.0.1:9477
ready() { running daemon || fail "the daemon ended"; in_ns curl -fsS "${METRICS%/metrics}/readyz"; }
wait_for ready
expect_eq 9000 "$(in_ns cat /sys/class/net/vm0/mtu)" "MTU"

# --- client mode, three times in a row
for round in 1 2 3; do
  in_ns "$VXDP" guest --listen --socket "$WORK/vm0.sock" --send 10000 --bytes 9000 >"$WORK/guest.log" ||
    fail "round $round: $(cat "$WORK/guest.log")"
  expect_eq $((round * 10000)) "$(frames vm0)" "frames after round $round"
done

# --- an adopted TAP: down as it was, then up
in_ns ip link set given0 up
start first "$VXDP" guest --socket "$WORK/vm1.sock" --seconds 3 --rate 10000 --json
flowing() { [ "$(frames vm1)" -gt 0 ]; }
wait_for flowing
status=0
in_ns timeout 20 "$VXDP" guest --socket "$WORK/vm1.sock" --send 10 --timeout 1 >"$WORK/second.log" 2>&1 || status=$?
[ $status != 0 ] && [ $status != 124 ] || fail "a second client of a busy socket ends with $status: $(cat "$WORK/second.log")"
finish first 20 || fail "the first client: $(cat "$WORK/first.log")"
expect_eq "$(grep -oE '"sent": ?[0-9]+' "$WORK/first.log" | grep -oE '[0-9]+')" "$(frames vm1)" "frames of the first client"
expect_eq "$(frames vm1)" "$(link_counter given0 rx_packets)" "frames on the adopted TAP"
stop daemon || fail "exit status of the daemon: $?"
