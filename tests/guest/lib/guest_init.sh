#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
# /init of the test guest: loads the modules, then serves commands on the second serial port.
# Request: "TOKEN COMMAND" on one line. Answer: the output, then "@@done TOKEN STATUS" on a line of its own.
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules
ip link set lo up

exec </dev/ttyS1 >/dev/ttyS1
stty raw -echo
echo "@@ready $(cat /proc/sys/kernel/random/boot_id)"
while :; do
  read -r token line || { sleep 1; continue; } # init must never end: the kernel would panic
  sh -c "$line" </dev/null >/tmp/agent.out 2>&1
  status=$?
  cat /tmp/agent.out
  printf '\n@@done %s %s\n' "$token" "$status"
done
