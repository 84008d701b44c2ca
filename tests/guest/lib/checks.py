# SPDX-License-Identifier: Apache-2.0
"""The checks. Each takes a Bench, leaves the link as it found it, and raises when what it looks for does not hold."""

import hashlib
import os
import re
import time

from bench import GUEST4, HOST4, HOST6, Bench
from sandbox import wait_for
from traffic import EchoFlood, FileServer, describe, iperf_server

UDP_OPTIONS = "--udp --bitrate 4M --length 1400"
FILE_BYTES = 4 << 20
RECOVERY_SECONDS = 10  # QEMU tries the socket once a second
# What a guest kernel says when a device misbehaves. A stall of the emulated CPU is the machine's fault, not ours.
COMPLAINTS = re.compile(r"^.*(?:BUG: (?!soft)|WARNING: CPU|Oops|virtio_net.*: (?:input|output|id|bad)|NETDEV WATCHDOG|"
                        r"bad gso|TX timeout|Unexpected).*$", re.M)  # fmt: skip


class NotApplicable(Exception):
    """The back end has nothing that this check could look at."""


def ping_both_ways(bench: Bench) -> None:
    bench.echo_both_ways()
    output = bench.guest.run(f"ping -6 -c 10 -i 0.02 -W 2 {HOST6}")
    assert " 0% packet loss" in output, output.strip()[-150:]


def tcp_tso_on(bench: Bench) -> None:
    from_guest, to_guest = bench.tcp_frame_bytes()
    if bench.back_end.offloads:
        assert from_guest > 3000, f"mean frame from the guest: {from_guest:.0f} bytes, so it did not send TSO frames"
        assert to_guest > 3000, f"mean frame to the guest: {to_guest:.0f} bytes, so it did not get TSO frames"


def tcp_tso_off(bench: Bench) -> None:
    bench.set_tso(False)
    try:
        from_guest, to_guest = bench.tcp_frame_bytes()
    finally:
        bench.set_tso(bench.back_end.offloads)
    assert 1000 < from_guest <= 1514, f"mean frame from the guest: {from_guest:.0f} bytes"
    assert 1000 < to_guest <= 1514, f"mean frame to the guest: {to_guest:.0f} bytes"


def udp_no_loss(bench: Bench) -> None:
    """On one queue pair, where order is promised: iperf3 numbers its datagrams."""
    bench.guest.run("ethtool -L eth0 combined 1 2>/dev/null || true")
    for direction, option in (("from the guest", ""), ("to the guest", "-R")):
        end = bench.iperf(f"{UDP_OPTIONS} {option}")
        disordered = sum(stream["udp"].get("out_of_order", 0) for stream in end["streams"])
        sent, lost = end["sum"]["packets"], end["sum"]["lost_packets"]
        assert sent > 500 and lost == 0 and disordered == 0, f"UDP {direction}: {sent} sent, {lost} lost, {disordered} disordered"


def files_intact(bench: Bench) -> None:
    """The SHA-256 of a file sent each way, by IPv4 and IPv6, and no segment with a bad checksum on the way."""
    errors = bench.checksum_errors()
    sent = bench.guest.run(f"head -c {FILE_BYTES} /dev/urandom > /tmp/file; sha256sum /tmp/file").split()[0]
    for address in (HOST4, HOST6):
        with FileServer(None) as server:
            bench.guest.run(f"nc {address} {server.port} < /tmp/file", seconds=25)
        assert server.digest == sent, f"a file from the guest to {address} differs: {server.digest}"
        content = os.urandom(FILE_BYTES)
        with FileServer(content) as server:
            got = bench.guest.run(f"nc {address} {server.port} | sha256sum", seconds=25).split()[0]
        assert server.digest == got == hashlib.sha256(content).hexdigest(), f"a file from {address} to the guest differs: {server.digest}"
    assert bench.checksum_errors() == errors, f"bad checksums: {bench.checksum_errors()}, before {errors}"


def jumbo_9000(bench: Bench) -> None:
    bench.set_mtu(9000)
    bench.set_tso(False)
    try:
        bench.echo_both_ways(payload_bytes=8900)
        from_guest, to_guest = bench.tcp_frame_bytes()
        assert 4000 < from_guest <= 9014, f"mean frame from the guest: {from_guest:.0f} bytes"
        assert 4000 < to_guest <= 9014, f"mean frame to the guest: {to_guest:.0f} bytes"
    finally:
        bench.set_tso(bench.back_end.offloads)
        bench.set_mtu(1500)


def two_queue_pairs(bench: Bench) -> None:
    """A stream in both directions from each of the guest's two CPUs: its driver uses the pair of the CPU."""
    bench.guest.run("ethtool -L eth0 combined 2")
    before, daemon_before = bench.guest_queue_counts(), bench.back_end.counters()
    ports = [next(bench.ports), next(bench.ports)]
    with iperf_server(bench.logs, ports[0]), iperf_server(bench.logs, ports[1]):
        jobs = [f"taskset {cpu + 1} {bench.iperf_client(port, '--bidir', 3)} >/tmp/pair{cpu} 2>&1 &" for cpu, port in enumerate(ports)]
        bench.guest.run(" ".join(jobs) + " wait", seconds=25)
    for cpu in range(2):
        end = bench.iperf_end(bench.guest.run(f"cat /tmp/pair{cpu}"))
        assert end["sum_received"]["bytes"] > 0 and end["sum_received_bidir_reverse"]["bytes"] > 0
    after, daemon_after = bench.guest_queue_counts(), bench.back_end.counters()
    moved = {queue: after[queue] - before[queue] for queue in after}
    assert len(moved) == 4 and min(moved.values()) > 50, f"frames by queue, says the guest: {moved}"
    if daemon_before is not None and daemon_after is not None:
        for queue, count in moved.items():
            key = queue.replace(" ", " frames queue ")
            told = daemon_after[key] - daemon_before[key]
            assert told >= count * 0.9 > 0, f"{queue}: the guest counts {count} frames, the daemon {told:.0f}"


def queue_pairs_change_under_traffic(bench: Bench) -> None:
    port = next(bench.ports)
    with iperf_server(bench.logs, port):
        bench.guest.run(f"({bench.iperf_client(port, '--parallel 2 --bidir', 7)} >/tmp/iperf 2>&1; echo $? >/tmp/iperf-ended) &")
        for pairs in (1, 2, 1, 2, 1):
            time.sleep(1)
            bench.guest.run(f"ethtool -L eth0 combined {pairs}")
        wait_for("iperf3 in the guest ends", lambda: "y" in bench.guest.run("test -e /tmp/iperf-ended && echo y || true"), 15)
        bench.iperf_end(bench.guest.run("cat /tmp/iperf; rm /tmp/iperf-ended"))
    bench.echo_both_ways()
    bench.guest.run("ethtool -L eth0 combined 2")
    bench.echo_both_ways()


def driver_rebind(bench: Bench) -> None:
    device = bench.guest.run("basename $(readlink -f /sys/class/net/eth0/device)").strip()
    with EchoFlood(GUEST4) as flood:
        for _ in range(3):
            for action in ("unbind", "bind"):
                bench.guest.run(f"echo {device} > /sys/bus/virtio/drivers/virtio_net/{action}")
            bench.configure_guest()
    flood.require_no_duplicates()
    assert bench.back_end.running(), "the back end died"
    bench.echo_both_ways()


def guest_reboot(bench: Bench) -> None:
    before, process = bench.back_end.counters(), bench.back_end.process
    with EchoFlood(GUEST4) as flood:
        boot_id = bench.guest.reboot()
        assert boot_id != bench.boot_id, "the guest did not reboot"
        bench.boot_id = boot_id
        bench.configure_guest()
    flood.require_no_duplicates()
    assert bench.back_end.running() and bench.back_end.process is process, "the back end died"
    bench.echo_both_ways()
    after = bench.back_end.counters()
    if before is not None and after is not None:
        fallen = {key: (value, after.get(key, 0)) for key, value in before.items() if after.get(key, 0) < value}
        assert not fallen, f"counters went down: {fallen}"


def counters_match_tap(bench: Bench) -> None:
    """The daemon's frames are the TAP's frames, to the last one, once all is quiet."""
    if (before := bench.back_end.counters()) is None:
        raise NotApplicable
    tap_before = bench.tap_counts()
    bench.echo_both_ways()
    files_intact(bench)

    def told() -> tuple[dict[str, float], dict[str, float]]:
        now, tap = bench.back_end.counters() or {}, bench.tap_counts()
        daemon = {direction: sum(now.get(key, 0) - before.get(key, 0) for key in (f"{direction} frames", *extra))
                  for direction, extra in (("from_guest", ()), ("to_guest", ("to_guest drops",)))}  # fmt: skip
        kernel = {
            "from_guest": tap.from_guest + tap.from_guest_dropped - tap_before.from_guest - tap_before.from_guest_dropped,
            "to_guest": tap.to_guest - tap_before.to_guest,
        }
        return daemon, kernel

    try:
        wait_for("equal counts", lambda: told()[0] == told()[1], 3)
    except TimeoutError:
        raise AssertionError(f"the daemon and the TAP count differently: {told()}") from None


def daemon_restart(bench: Bench) -> None:
    """SIGTERM and a new start: the guest does nothing for it, sees no echo twice, and loses only those of the gap."""
    _restart(bench, crash=False)


def daemon_crash(bench: Bench) -> None:
    """As daemon_restart, with SIGKILL: frames under way may come twice then, so only the recovery is looked at."""
    _restart(bench, crash=True)


def _restart(bench: Bench, crash: bool) -> None:
    bench.guest.run(f"ping -i 0.05 {HOST4} >/tmp/ping 2>&1 & echo $! >/tmp/ping-pid")
    with EchoFlood(GUEST4) as flood:
        time.sleep(0.5)
        if crash:
            bench.back_end.kill()
        else:
            status = bench.back_end.stop()
            assert status == 0, f"after SIGTERM the back end ended with status {status}"
        time.sleep(1)
        bench.back_end.start()
        bench.configure_host()
        started = time.monotonic()
        back = len(flood.answered)
        wait_for("the guest answers again", lambda: len(flood.answered) > back, RECOVERY_SECONDS)
        print(f"     answered again after {time.monotonic() - started:.1f} s", flush=True)
        time.sleep(0.5)  # neighbour entries settle
        steady = time.monotonic()
        time.sleep(1.5)
    bench.guest.run("kill $(cat /tmp/ping-pid); sleep 0.3")
    numbers = [int(number) for number in re.findall(r"seq=(\d+)", bench.guest.run("cat /tmp/ping"))]
    flood.require_perfect(since=steady)
    latest = list(range(numbers[-1] - 14, numbers[-1] + 1))
    assert numbers[-15:] == latest, f"the guest's last echoes: {describe(latest, numbers[-15:])}"
    if not crash:
        flood.require_no_duplicates()
        assert len(set(numbers)) == len(numbers), "the guest got an echo twice"
    assert bench.guest.run("cat /proc/sys/kernel/random/boot_id").strip() == bench.boot_id, "the guest rebooted"
    bench.echo_both_ways()


def guest_kernel_content(bench: Bench) -> None:
    found = [match.group(0) for match in COMPLAINTS.finditer(bench.guest.run("dmesg"))]
    assert not found, f"the guest's kernel complains: {found[:5]}"


def daemon_stops(bench: Bench) -> None:
    """Last in each group: with the guest still attached and sending."""
    bench.guest.run(f"ping -i 0.05 {HOST4} >/dev/null 2>&1 &")
    status = bench.back_end.stop()
    assert status == 0, f"after SIGTERM the back end ended with status {status}"
