#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How a batch is submitted: registered buffers where allowed, plain io_uring where registering is refused, writev where
# io_uring is forbidden; each says which and why, and each carries the same frames. An idle daemon sleeps.
# ctest: labels=threaded timeout=120
TIME_LIMIT=100
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
vx() { in_ns "$VXDP" "$@" --control "$CONTROL"; }

# without_uring COMMAND...: a seccomp filter that answers io_uring_setup as containerd's default profile does.
cat >"$WORK/without_uring.py" <<'PY'
import ctypes, os, struct, sys
kIoUringSetup, kEperm, kAllow, kErrno = 425, 1, 0x7FFF0000, 0x00050000
code = [(0x20, 0, 0, 0), (0x15, 0, 1, kIoUringSetup), (0x06, 0, 0, kErrno | kEperm), (0x06, 0, 0, kAllow)]
raw = b"".join(struct.pack("HBBI", *line) for line in code)
text = ctypes.create_string_buffer(raw, len(raw))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit("no seccomp")
os.execvp(sys.argv[1], sys.argv[1:])
PY

carry() {  # carry METHOD REASON: frames flow, and method and reason are said
  start guest "$VXDP" guest --socket "$WORK/vm0.sock" --seconds 2 --rate 20000 --layout separate
  uses() { [ "$(metric vxdp_port_submit_info port=vm0 method="$1")" = 1 ]; }
  wait_for uses "$1"
  expect_match "$2" "$(vx port show vm0)" "why $1"
  finish guest 20 || fail "the guest over $1: $(cat "$WORK/guest.log")"
  expect_ge 20000 "$(metric vxdp_queue_frames_total direction=from_guest)" "frames over $1"
  expect_eq 0 "$(metric vxdp_queue_drops_total)" "drops over $1"
}
port="name=vm0,socket=$WORK/vm0.sock,tap=vm0,xdp=drop"

start_daemon --port "$port"
carry uring-fixed registered
# Idle: less than 1 % of a CPU, a connected guest that says nothing included.
start silent "$VXDP" guest --socket "$WORK/vm0.sock" --receive --seconds 8
ready0() { [ "$(metric vxdp_session_state state=running)" = 1 ]; }
wait_for ready0
sleep 1
ticks() { awk '{print $14 + $15}' "/proc/${pids[daemon]}/stat"; }
before=$(ticks)
sleep 5
used=$(($(ticks) - before))
[ "$used" -le 5 ] || fail "an idle daemon used $used ticks of 10 ms in 5 s"
stop silent INT || true
stop daemon

start_daemon --port "$port,submit=writev"
carry writev 'asked for'
stop daemon

start_daemon_without_uring() {
  start daemon python3 "$WORK/without_uring.py" "$VXDP" run --control "$CONTROL" --metrics 127.0.0.1:9477 --port "$1"
}
start_daemon_without_uring "$port"
ready() { running daemon || fail "the daemon ended"; in_ns curl -fsS "${METRICS%/metrics}/readyz"; }
wait_for ready
carry writev forbidden
stop daemon
expect_status 2 python3 "$WORK/without_uring.py" "$VXDP" run --control "$CONTROL" --metrics none --port "$port,submit=uring"
expect_match 'submit=uring.*io_uring is forbidden' "$OUTPUT" "what submit=uring says without io_uring"

# Registering needs locked memory: without CAP_IPC_LOCK and limit the same ring works unregistered.
in_ns prlimit --memlock=65536 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock true || skip "no setpriv"
start daemon prlimit --memlock=262144 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$VXDP" run \
  --control "$CONTROL" --metrics 127.0.0.1:9477 --port "$port"
wait_for ready
carry uring RLIMIT_MEMLOCK
stop daemon
