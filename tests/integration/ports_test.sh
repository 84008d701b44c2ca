#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ports are added, shown and removed while another port carries numbered frames that never notice; a TAP set down,
# deleted or refusing costs frames, never the daemon; every user error is one sentence and exit status 2.
# ctest: labels=threaded timeout=150
TIME_LIMIT=130
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
vx() { in_ns "$VXDP" "$@" --control "$CONTROL"; }

start_daemon --port "name=vm0,socket=$WORK/vm0.sock,tap=vm0,xdp=pass" --workers 2
drops() { metric vxdp_queue_drops_total direction=from_guest port="$1" reason="$2"; }
frames() { metric vxdp_queue_frames_total direction=from_guest port="$1"; }

# --- ports come and go beside a running one
start steady "$VXDP" guest --socket "$WORK/vm0.sock" --seconds 6 --rate 20000 --json
flowing() { [ "$(frames vm0)" -gt 0 ]; }
wait_for flowing
for round in 1 2 3; do
  vx port add "name=vm1,socket=$WORK/vm1.sock,tap=vm1,queues=2,xdp=drop" >/dev/null
  expect_match '"name": ?"vm1"' "$(vx port show vm1 --json)" "port show"
  expect_match 'vm1' "$(vx port list)" "port list"
  in_ns "$VXDP" guest --socket "$WORK/vm1.sock" --send 20000 --queues 2 >"$WORK/guest1.log"
  expect_eq 20000 "$(frames vm1)" "frames of vm1 in round $round"
  expect_eq 20000 "$(metric vxdp_program_drops_total port=vm1 reason=policy)" "frames dropped by its program"
  vx port remove vm1
  [ ! -e "$WORK/vm1.sock" ] || fail "the socket of a removed port is still there"
  gone() { ! in_ns ip link show vm1; }
  wait_for gone
done

# --- user errors
taken=$WORK/taken.sock
in_ns python3 -c "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('$taken'); s.listen(); time.sleep(60)" &
bound() { [ -S "$taken" ]; }
wait_for bound
in_ns ip tuntap add plain mode tap
while IFS='|' read -r words arguments; do
  # shellcheck disable=SC2086
  expect_status 2 "$VXDP" $arguments --control "$CONTROL"
  expect_match "$words" "$OUTPUT" "what '$arguments' says"
  expect_eq 1 "$(wc -l <<<"$OUTPUT")" "lines that '$arguments' says: $OUTPUT"
done <<END
already|port add name=vm0,socket=$WORK/x.sock
taken by port vm0|port add name=vm2,socket=$WORK/vm0.sock
taken by port vm0|port add name=vm2,socket=$WORK/x.sock,tap=vm0
in use by another process|port add name=vm2,socket=$taken
107|port add name=vm2,socket=$WORK/$(printf 'x%.0s' {1..120})
multi_queue|port add name=vm2,socket=$WORK/x.sock,tap=plain,queues=2
not a TAP|port add name=vm2,socket=$WORK/x.sock,tap=lo
colour|port add name=vm2,socket=$WORK/x.sock,colour=red
queues|port add name=vm2,socket=$WORK/x.sock,queues=17
batch|port add name=vm2,socket=$WORK/x.sock,batch=65
redirect-to|port add name=vm2,socket=$WORK/x.sock,xdp=redirect
/no/such|port add name=vm2,socket=$WORK/x.sock,xdp=/no/such.bpf.o
no port nosuch|port show nosuch
no port nosuch|port remove nosuch
END
expect_eq 1 "$(vx port list | grep -c vm)" "ports that are left after refused ones"

# --- TAP trouble on a port of its own
vx port add "name=vm3,socket=$WORK/vm3.sock,tap=vm3,xdp=pass" >/dev/null
start victim "$VXDP" guest --socket "$WORK/vm3.sock" --seconds 8 --rate 5000
started() { [ "$(frames vm3)" -gt 100 ]; }
wait_for started
in_ns ip link set vm3 down
down() { [ "$(drops vm3 backend_down)" -gt 100 ]; }
wait_for down
in_ns ip link set vm3 up
before=$(frames vm3)
moving() { [ "$(frames vm3)" -gt $((before + 100)) ]; }
wait_for moving
in_ns ip link del vm3
lost() { [ "$(drops vm3 backend_gone)" -gt 10 ]; }
wait_for lost
back() { in_ns ip link show vm3; }
wait_for back
before=$(frames vm3)
wait_for moving
finish victim 20 || fail "the guest of the port in trouble: $(cat "$WORK/victim.log")"
vx port remove vm3

finish steady 20 || fail "the steady guest: $(cat "$WORK/steady.log")"
expect_eq "$(grep -oE '"sent": ?[0-9]+' "$WORK/steady.log" | grep -oE '[0-9]+')" "$(frames vm0)" "frames of the steady port"
stop daemon || fail "exit status of the daemon: $?"
nothing_left() { ! in_ns ip link show vm0; }
wait_for nothing_left
[ ! -e "$CONTROL" ] || fail "the control socket is still there"
