#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The two-command start does what it says: the demo moves frames and shows /metrics to the host, two demos live side by
# side, Ctrl-C leaves nothing behind, and a demo without frames, guest or daemon fails with the reason.
# ctest: serial=yes timeout=240
TIME_LIMIT=${TIME_LIMIT:-220}
# shellcheck source=lib/netns.sh
source "$(dirname "$0")/lib/netns.sh"
quickstart=$(cd "$(dirname "$0")/../.." && pwd)/quickstart
require python3
[ -x "$VXDP" ] || skip "no program at $VXDP"

left_behind() {
  ip netns list | grep -E "^vxdp-demo-$1\b"
  ip -o link show "vxd$1" 2>/dev/null
  ls -d /tmp/vxdp-demo-"$1".* 2>/dev/null
  pgrep -f "vxdp-demo-$1"
}
nothing_left() { [ -z "$(left_behind "$1")" ] || fail "after $2 there is still: $(left_behind "$1")"; }
# demo NAME [OPTION...]: in the background, outside of $NS, since it makes its own; its pid names what it makes.
demo() {
  local name=$1
  shift
  "$quickstart" demo "$@" </dev/null >"$WORK/$name.log" 2>&1 &
  pids[$name]=$!
}
metrics_url() { grep -oE 'http://[0-9.]+:[0-9]+/metrics' "$WORK/$1.log" | head -n 1; }
has_rows() { [ "$(grep -c '^vm0 *from_guest' "$WORK/$1.log")" -ge "$2" ]; }

# --- the command line
expect_ge 1 "$("$quickstart" --help | grep -c 'quickstart test')" "lines about test in --help"
for wrong in --seconds "--seconds 0" "--seconds x" "build --seconds 3" nonsense; do
  status=0
  # shellcheck disable=SC2086
  "$quickstart" $wrong >"$WORK/wrong.log" 2>&1 || status=$?
  expect_eq 2 "$status" "exit status of 'quickstart $wrong'"
done
status=0
setpriv --reuid 65534 --clear-groups "$quickstart" >"$WORK/user.log" 2>&1 || status=$?
expect_eq 1 "$status" "exit status without root"
expect_match 'needs root' "$(cat "$WORK/user.log")" "message without root"

# --- two demos at once, one with an end and one without
demo timed --seconds 4
demo endless
for name in timed endless; do WAIT_SECONDS=60 wait_for has_rows $name 2; done
for name in timed endless; do
  curl -fsS --max-time 5 "$(metrics_url $name)" >"$WORK/$name.metrics"
  frames=$(sum_series vxdp_queue_frames_total direction=from_guest <"$WORK/$name.metrics")
  expect_ge 1 "$frames" "frames seen from the host"
done
[ "$(metrics_url timed)" != "$(metrics_url endless)" ] || fail "both demos answer on $(metrics_url timed)"
first=${pids[timed]} second=${pids[endless]}
finish timed 60 || fail "the demo with an end failed"
expect_match 'dropped by XDP +[1-9][0-9]*' "$(cat "$WORK/timed.log")" "summary"
expect_match 'batches +[1-9][0-9]*' "$(cat "$WORK/timed.log")" "summary"
nothing_left "$first" "a demo that ended"
running endless || fail "one demo took the other down"

# Bash starts background commands with SIGINT ignored, so this one gets TERM; Ctrl-C comes below.
stop endless TERM || expect_eq 143 $? "exit status after SIGTERM"
nothing_left "$second" "SIGTERM"

# --- Ctrl-C on a terminal, as a person would
python3 -B "$(dirname "$0")/lib/on_terminal.py" 60 'vm0 +from_guest' "$quickstart" demo >"$WORK/terminal.log" 2>&1 ||
  fail "after Ctrl-C the demo exits with $?"
expect_match 'dropped by XDP +[1-9][0-9]*' "$(cat "$WORK/terminal.log")" "summary after Ctrl-C"
nothing_left "$(grep -oE 'vxdp-demo-[0-9]+' "$WORK/terminal.log" | head -n 1 | tr -dc 0-9)" "Ctrl-C"

# --- a demo that does not move frames must not end well
for victim in guest run; do
  demo doomed --seconds 30
  doomed=${pids[doomed]}
  WAIT_SECONDS=60 wait_for has_rows doomed 2
  for pid in $(ip netns pids "vxdp-demo-$doomed"); do
    if tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "vhost-xdp $victim "; then kill -KILL "$pid"; fi
  done
  status=0
  finish doomed 20 || status=$?
  expect_eq 1 "$status" "exit status when '$victim' dies"
  expect_match 'ended before its time' "$(cat "$WORK/doomed.log")" "reason when '$victim' dies"
  nothing_left "$doomed" "the death of '$victim'"
done

# A guest that never sends: a build folder whose program is the real one, but for the guest.
mkdir "$WORK/build"
printf 'rule none\n  command = true\nbuild vhost-xdp: phony\n' >"$WORK/build/build.ninja"
cat >"$WORK/build/vhost-xdp" <<END
#!/bin/sh
[ "\$1" = guest ] && exec sleep 1000
exec "$VXDP" "\$@"
END
chmod +x "$WORK/build/vhost-xdp"
status=0
VXDP_BUILD=$WORK/build "$quickstart" demo --seconds 2 >"$WORK/silent.log" 2>&1 || status=$?
expect_eq 1 "$status" "exit status when no frame flows"
expect_match 'no frame came out of the guest' "$(cat "$WORK/silent.log")" "reason when no frame flows"
