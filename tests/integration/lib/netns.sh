# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the *_test.sh here. Gives a test a network namespace of its own ($NS), a work folder ($WORK), helpers to
# start, await and compare, and takes everything down at the end: also on failure, Ctrl-C or after TIME_LIMIT seconds.
# VXDP is the program under test (ctest sets it). Exit 77 = skipped.
set -euo pipefail

VXDP=${VXDP:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)/build/vhost-xdp}
readonly VXDP
readonly TIME_LIMIT=${TIME_LIMIT:-90}  # seconds; ctest's own limit is longer: it kills without a chance to clean up
readonly NS=vxt$$                      # short: interface and namespace names may start with it

skip() { echo "SKIPPED: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }

# require COMMAND...: skips the test where one of them is missing.
require() {
  local command
  for command; do command -v "$command" >/dev/null || skip "needs $command"; done
}

[ "$(id -u)" = 0 ] || skip "needs root"
require ip curl
ip netns add "$NS" 2>/dev/null || skip "cannot make a network namespace"
WORK=$(mktemp -d /tmp/vxt.XXXXXX)
readonly WORK
namespaces=("$NS")
declare -A pids=()

# Sanitizers report on stderr of the program they watch, which may well exit 0 afterwards.
sanitizer_reports() {
  grep -lE 'ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:' "$WORK"/*.log 2>/dev/null
}

cleanup() {
  local status=$? name ns pid
  trap - EXIT INT TERM
  set +e
  kill "$watchdog" 2>/dev/null
  for name in "${!pids[@]}"; do kill -TERM "${pids[$name]}" 2>/dev/null; done
  for _ in $(seq 50); do
    for name in "${!pids[@]}"; do kill -0 "${pids[$name]}" 2>/dev/null || unset "pids[$name]"; done
    [ ${#pids[@]} = 0 ] && break
    sleep 0.1
  done
  for name in "${!pids[@]}"; do
    echo "FAILED: $name did not end within 5 seconds of SIGTERM" >&2
    [ $status = 0 ] && status=1
    kill -KILL "${pids[$name]}" 2>/dev/null
  done
  for ns in "${namespaces[@]}"; do
    for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
    ip netns del "$ns" 2>/dev/null
  done
  # What a test left in the background without start() must not keep it, and ctest, waiting.
  pkill -KILL -P $$ 2>/dev/null
  wait 2>/dev/null
  if [ -n "$(sanitizer_reports)" ]; then
    echo "FAILED: a sanitizer reported" >&2
    [ $status = 0 ] && status=1
  fi
  if [ $status != 0 ] && [ $status != 77 ]; then
    for name in "$WORK"/*.log; do [ -s "$name" ] && echo "--- $(basename "$name")" >&2 && tail -n 60 "$name" >&2; done
  fi
  rm -rf "$WORK"
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A shell handles a signal only between commands, so the watchdog ends the command it waits for too.
(
  trap - EXIT INT TERM
  sleep "$TIME_LIMIT" &
  trap 'kill $! 2>/dev/null; exit' TERM
  wait $!
  echo "FAILED: not done after $TIME_LIMIT seconds" >&2
  trap - TERM
  kill -TERM $$
  pkill -TERM -P $$
) </dev/null >/dev/null 2>"$WORK/watchdog.log" &
watchdog=$!

in_ns() { ip netns exec "$NS" "$@"; }

# add_ns NAME: one more namespace, "$NS-NAME"; reach it with `ip netns exec "$NS-NAME"`.
add_ns() {
  ip netns add "$NS-$1"
  namespaces+=("$NS-$1")
}

# start NAME COMMAND...: runs in $NS in the background; output goes to $WORK/NAME.log.
start() {
  local name=$1
  shift
  ip netns exec "$NS" "$@" </dev/null >"$WORK/$name.log" 2>&1 &
  pids[$name]=$!
  # Until the child has become another program it is this shell's copy and would swallow a signal.
  while cmp -s "/proc/$$/cmdline" "/proc/${pids[$name]}/cmdline"; do sleep 0.01; done
}

running() { [ -n "${pids[$1]:-}" ] && kill -0 "${pids[$1]}" 2>/dev/null; }

# stop NAME [SIGNAL]: returns the exit status of the program.
stop() {
  local pid=${pids[$1]} status=0
  unset "pids[$1]"
  kill -"${2:-TERM}" "$pid" 2>/dev/null || true
  wait "$pid" || status=$?
  return $status
}

# finish NAME [SECONDS]: waits until the program ends by itself; returns its exit status.
finish() {
  local pid=${pids[$1]} status=0
  gone() { ! kill -0 "$pid" 2>/dev/null; }
  WAIT_SECONDS=${2:-20} wait_for gone
  unset "pids[$1]"
  wait "$pid" || status=$?
  return $status
}

# wait_for CONDITION...: runs it until it is true, at most WAIT_SECONDS (default 10). The condition is run again each
# time, so put what must be read afresh into a function.
wait_for() {
  local end=$((SECONDS + ${WAIT_SECONDS:-10}))
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "waited ${WAIT_SECONDS:-10} seconds in vain for: $*"
    sleep 0.05
  done
}

# expect_eq WANT GOT WHAT, expect_ge LEAST GOT WHAT (integers), expect_match REGEX TEXT WHAT
expect_eq() { [ "$1" = "$2" ] || fail "$3: expected $1, got $2"; }
expect_ge() { [ "$2" -ge "$1" ] || fail "$3: expected at least $1, got $2"; }
expect_match() { grep -qE -- "$1" <<<"$2" || fail "$3: nothing like '$1' in: $2"; }

# expect_status STATUS COMMAND...: runs in $NS; what it printed is in $OUTPUT.
expect_status() {
  local want=$1 status=0
  shift
  OUTPUT=$(in_ns "$@" 2>&1) || status=$?
  [ "$status" = "$want" ] || fail "exit status of '$*': expected $want, got $status: $OUTPUT"
}

# start_daemon [OPTION...]: the daemon as "daemon", ready to be asked. Control socket $CONTROL, metrics at $METRICS.
readonly CONTROL=$WORK/control.sock METRICS=http://127.0.0.1:9477/metrics
start_daemon() {
  [ -x "$VXDP" ] || skip "no program at $VXDP"
  in_ns ip link set lo up
  start daemon "$VXDP" run --control "$CONTROL" --metrics 127.0.0.1:9477 "$@"
  ready() { running daemon || fail "the daemon ended"; in_ns curl -fsS "${METRICS%/metrics}/readyz"; }
  wait_for ready
}

# link_counter DEVICE COUNTER: for example link_counter vm0 rx_packets
link_counter() { in_ns cat "/sys/class/net/$1/statistics/$2"; }

# metric NAME [LABEL=VALUE...]: sum over the series of that name which have all these labels, as an integer.
metric() {
  local name=$1
  shift
  in_ns curl -fsS --max-time 5 "$METRICS" | sum_series "$name" "$@"
}

# sum_series NAME [LABEL=VALUE...]: as metric, reading the exposition text from stdin.
sum_series() {
  awk -v name="$1" -v wanted="${*:2}" '
    BEGIN {
      count = split(wanted, pair, " ")
      for (i = 1; i <= count; i++) { sub(/=/, "=\"", pair[i]); pair[i] = pair[i] "\"" }
    }
    { series = $1; sub(/[{].*/, "", series) }
    series == name {
      labels = $0; sub(/^[^{]*[{]/, ",", labels); sub(/[}][^}]*$/, ",", labels)
      for (i = 1; i <= count; i++) if (!index(labels, "," pair[i] ",")) next
      sum += $NF
    }
    END { printf "%.0f\n", sum }'
}

# huge_pages COUNT: makes sure that many 2 MiB pages are free (DPDK needs them), or skips the test.
huge_pages() {
  local free
  free=$(awk '/HugePages_Free/{print $2}' /proc/meminfo)
  if [ "$free" -lt "$1" ]; then
    echo $(($(cat /proc/sys/vm/nr_hugepages) + $1 - free)) >/proc/sys/vm/nr_hugepages || true
    free=$(awk '/HugePages_Free/{print $2}' /proc/meminfo)
  fi
  [ "$free" -ge "$1" ] || skip "needs $1 free huge pages of 2 MiB, has $free"
}
