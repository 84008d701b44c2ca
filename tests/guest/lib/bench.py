# SPDX-License-Identifier: Apache-2.0
"""One guest, one back end and the TAP between them, with the addresses and measurements that the checks share."""

import itertools
import json
import pathlib
import re
import subprocess
from typing import NamedTuple

from back_end import TAP, BackEnd
from guest_vm import Guest
from sandbox import wait_for
from traffic import EchoFlood, iperf_server

HOST4, GUEST4 = "10.77.0.1", "10.77.0.2"
HOST6, GUEST6 = "fd77::1", "fd77::2"
SOCKET_BUFFER_BYTES = 4 << 20  # an emulated CPU may stand still for a while; no datagram is lost for want of room
MIN_TCP_BITS = 10e6  # far below what emulation reaches, far above a stream that lives by retransmission


class TapCounts(NamedTuple):
    """The kernel's view. A TAP "receives" what comes from the guest."""

    from_guest: int
    from_guest_bytes: int
    from_guest_dropped: int
    to_guest: int
    to_guest_bytes: int


class Bench:
    def __init__(self, logs: pathlib.Path, back_end: BackEnd, guest: Guest) -> None:
        self.logs, self.back_end, self.guest = logs, back_end, guest
        self.ports = itertools.count(5201)
        self.boot_id = ""
        self.mtu_offered = 0

    def boot(self) -> None:
        self.boot_id = self.guest.wait_ready()
        self.mtu_offered = int(self.guest.run("cat /sys/class/net/eth0/mtu"))
        self.configure_guest()

    def configure_host(self, mtu: int = 1500) -> None:
        """Also after the back end made a new TAP. A fixed address, so that the guest's neighbour entry stays right."""
        sh(f"ip link set {TAP} address 02:00:00:77:00:01 mtu {mtu} up")
        sh(f"ip addr replace {HOST4}/24 dev {TAP}")
        sh(f"ip addr replace {HOST6}/64 dev {TAP} nodad")

    def configure_guest(self, mtu: int = 1500) -> None:
        """Also after a reboot or a rebind of the driver."""
        self.guest.run(
            f"echo {SOCKET_BUFFER_BYTES} > /proc/sys/net/core/rmem_default;"
            "for c in default eth0; do echo 0 > /proc/sys/net/ipv6/conf/$c/accept_dad; done;"
            f"ip link set eth0 mtu {mtu} up && ip addr replace {GUEST4}/24 dev eth0 && ip addr replace {GUEST6}/64 dev eth0"
        )
        self.wait_link()

    def wait_link(self, seconds: float = 15) -> None:
        """Returns when the host got an answer from the guest."""
        wait_for("the guest answers a ping", lambda: sh_ok(f"busybox ping -c 1 -W 1 {GUEST4}"), seconds)

    def set_mtu(self, mtu: int) -> None:
        sh(f"ip link set {TAP} mtu {mtu}")
        self.guest.run(f"ip link set eth0 mtu {mtu}")

    def set_tso(self, on: bool) -> None:
        """For both directions; what the guest may be given is switched at the TAP, as a vhost-user guest cannot refuse it."""
        word = "on" if on else "off"
        self.guest.run(f"ethtool -K eth0 tso {word}")
        sh(f"ethtool -K {TAP} tso {word}")

    def features(self) -> str:
        """Acknowledged feature bits, "0" or "1", bit 0 first."""
        return self.guest.run("cat /sys/class/net/eth0/device/features").strip()

    def tap_counts(self) -> TapCounts:
        folder = pathlib.Path(f"/sys/class/net/{TAP}/statistics")
        names = ("rx_packets", "rx_bytes", "rx_dropped", "tx_packets", "tx_bytes")
        return TapCounts(*(int((folder / name).read_text()) for name in names))

    def echo_both_ways(self, payload_bytes: int = 56, seconds: float = 1.5) -> None:
        """AssertionError unless every echo request, of the host and then of the guest, is answered once and in order."""
        with EchoFlood(GUEST4, payload_bytes=payload_bytes) as flood:
            flood.ending.wait(seconds)
        flood.require_perfect()
        count = int(seconds * 50)
        output = self.guest.run(f"ping -c {count} -i 0.02 -W 2 -s {payload_bytes} {HOST4}", seconds=20)
        numbers = [int(number) for number in re.findall(r"seq=(\d+)", output)]
        assert numbers == list(range(count)), f"the guest sent {count}: {output.strip()[-150:]}"

    def iperf(self, options: str, seconds: int = 3) -> dict:
        """iperf3's "end" record. The guest is the client: it sends, and with -R the host does."""
        port = next(self.ports)
        with iperf_server(self.logs, port):
            return self.iperf_end(self.guest.run(self.iperf_client(port, options, seconds), seconds=seconds + 15))

    def iperf_client(self, port: int, options: str, seconds: int) -> str:
        return f"iperf3 --client {HOST4} --port {port} --time {seconds} --json --interval 1 {options}"

    def iperf_end(self, output: str) -> dict:
        record = json.loads(output)
        assert "error" not in record, record["error"]
        assert record["intervals"][-1]["sum"]["bytes"] > 0, "the stream stood still at its end"
        return record["end"]

    def tcp_frame_bytes(self) -> tuple[float, float]:
        """Mean bytes per frame of a TCP stream from the guest and of one to it, as the TAP counts. Both must be quick."""
        before = self.tap_counts()
        self.require_rate("from the guest", self.iperf(""))
        between = self.tap_counts()
        self.require_rate("to the guest", self.iperf("-R"))
        after = self.tap_counts()
        return (
            (between.from_guest_bytes - before.from_guest_bytes) / (between.from_guest - before.from_guest),
            (after.to_guest_bytes - between.to_guest_bytes) / (after.to_guest - between.to_guest),
        )

    def require_rate(self, direction: str, end: dict) -> None:
        bits = end["sum_received"]["bits_per_second"]
        print(f"     TCP {direction}: {bits / 1e6:.0f} Mbit/s, {end['sum_sent'].get('retransmits', 0)} retransmits", flush=True)
        assert bits >= MIN_TCP_BITS, f"TCP {direction}: only {bits / 1e6:.2f} Mbit/s"

    def guest_queue_counts(self) -> dict[str, int]:
        """Frames per queue as the guest's driver counts: "from_guest 0", "to_guest 1", ..."""
        found = re.findall(r"([rt])x_queue_(\d+)_packets: (\d+)", self.guest.run("ethtool -S eth0"))
        return {("from_guest " if kind == "t" else "to_guest ") + queue: int(count) for kind, queue, count in found}

    def checksum_errors(self) -> dict[str, int]:
        host = pathlib.Path("/proc/net/snmp").read_text()
        return {"host": bad_checksums(host), "guest": bad_checksums(self.guest.run("cat /proc/net/snmp"))}


def bad_checksums(snmp: str) -> int:
    """InCsumErrors of all protocols in /proc/net/snmp, where a line of names precedes a line of values."""
    lines = [line.split() for line in snmp.splitlines() if ":" in line]
    return sum(int(value) for names, values in zip(lines[::2], lines[1::2]) for name, value in zip(names, values)
               if name == "InCsumErrors")  # fmt: skip


def sh(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


def sh_ok(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
