#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DPDK's virtio-user driver swaps MAC addresses and sends every frame back: numbered frames from the host go through the
# daemon to it and return through the daemon, none lost, doubled, out of order or changed, over the ring options it has.
# ctest: timeout=420 lock=hugepages serial=yes
TIME_LIMIT=390
source "$(dirname "$0")/lib/netns.sh"
require dpdk-testpmd
huge_pages 320
mountpoint -q /dev/hugepages || { mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages; } || skip "no hugetlbfs"
peer=${VXDP_BUILD:?}/tests/integration/tap_peer

# The kernel announces a new interface by IPv6, which would be a frame more than ours.
in_ns sysctl -qw net.ipv6.conf.default.disable_ipv6=1
start_daemon --port "name=vm0,socket=$WORK/vm0.sock,tap=vm0,queues=4,xdp=pass" --workers 1 --cpus 1
in_ns ip link set vm0 txqueuelen 10000

# round NAME OPTIONS QUEUES: one testpmd with these virtio-user options, a run of frames through it and back.
round() {
  local name=$1 options=$2 queues=$3 sizes=${4:-"64 1500"} bytes
  start testpmd dpdk-testpmd -l 0,1 --main-lcore 1 --single-file-segments --file-prefix="$NS" -m 256 --no-pci \
    --vdev="net_virtio_user0,path=$WORK/vm0.sock,queues=$queues,$options" ${EAL_OPTIONS:-} -- --nb-cores=1 \
    --forward-mode=macswap --auto-start --rxq="$queues" --txq="$queues" --no-flush-rx --stats-period 1
  running_port() { running testpmd || fail "testpmd ended"; [ "$(metric vxdp_session_state state=running)" = 1 ]; }
  WAIT_SECONDS=20 wait_for running_port
  forwarding() { grep -q 'Port statistics' "$WORK/testpmd.log"; }
  WAIT_SECONDS=20 wait_for forwarding
  sent=0 returned=0
  for bytes in $sizes; do
    line=$(in_ns "$peer" vm0 --send 40000 --receive 40000 --flows 8 --rate 40000 --bytes "$bytes" || true)
    [[ $line == *" duplicated 0 reordered 0 corrupted 0 bad_checksum 0 "* ]] || fail "$name, $bytes bytes: $line"
    sent=$((sent + $(field sent "$line"))) returned=$((returned + $(field good "$line")))
  done
  stop testpmd INT || true
  # testpmd drops, and counts, what its own ring has no room for; everything else must have come through.
  total() { awk -v key="$1" '/Accumulated/{seen = 1} seen && $1 == key {print $2}' "$WORK/testpmd.log"; }
  expect_eq "$sent" "$(total RX-packets:)" "$name: frames the driver received"
  expect_eq "$(total TX-packets:)" "$returned" "$name: frames that came back of those the driver sent"
  expect_ge $((sent / 2)) "$returned" "$name: frames that came back"
  echo "ok $name: $returned of $sent"
}

field() { sed -E "s/.*\b$1 ([0-9]+).*/\1/" <<<"$2"; }

round "mergeable, in order" mrg_rxbuf=1,in_order=1,queue_size=256 1
round "mergeable" mrg_rxbuf=1,in_order=0,queue_size=256 1
round "in order" mrg_rxbuf=0,in_order=1,queue_size=256 1
round "plain" mrg_rxbuf=0,in_order=0,queue_size=256 1
EAL_OPTIONS=--force-max-simd-bitwidth=512 round "vectorized" mrg_rxbuf=0,in_order=0,vectorized=1,queue_size=256 1
round "64 descriptors" mrg_rxbuf=1,in_order=0,queue_size=64 1
round "1024 descriptors" mrg_rxbuf=1,in_order=0,queue_size=1024 1
round "4 queues" mrg_rxbuf=1,in_order=0,queue_size=256 4

for reason in bad_chain bad_address bad_header runt too_big backend_refused; do
  expect_eq 0 "$(metric vxdp_queue_drops_total reason=$reason)" "frames dropped for $reason"
done
for queue in 0 1 2 3; do
  expect_ge 1 "$(metric vxdp_queue_frames_total direction=from_guest queue=$queue)" "frames on queue $queue"
done
