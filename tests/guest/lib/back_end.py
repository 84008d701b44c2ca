# SPDX-License-Identifier: Apache-2.0
"""What serves the guest's vhost-user socket and owns the TAP: our daemon, or DPDK's testpmd as a control experiment.

Both have: start, stop, kill, running, counters; and what the checks must know of them.
"""

import pathlib
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable

from guest_image import which
from sandbox import wait_for

TAP = "vm0"
METRICS = "127.0.0.1:9477"
STOP_SECONDS = 5
TESTPMD_PAIRS = "testpmd forwards TAP queue 1 to pair 1 also when the guest does not use that pair"


class BackEnd:
    """A process that listens on `socket`. Each start appends to the same log."""

    offloads = True  # the guest is offered segmentation
    cannot: dict[str, str] = {}  # patterns of checks that it is known to fail, with the reason

    def __init__(self, logs: pathlib.Path, queues: int) -> None:
        self.queues = queues
        self.socket = logs / "vm0.sock"
        self.log = logs / f"{type(self).__name__.lower()}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for("the back end listens and has its TAP", self._ready, 15)

    def _ready(self) -> bool:
        if not self.running():
            raise RuntimeError(f"the back end ended with status {self.process.returncode}; see {self.log.name}")
        return self.socket.exists() and self.socket_listens() and pathlib.Path(f"/sys/class/net/{TAP}").exists()

    def socket_listens(self) -> bool:
        # Flag 00010000 is SO_ACCEPTCON: after a crash the path exists, but nobody listens.
        return re.search(rf" 00010000 .* {re.escape(str(self.socket))}$", pathlib.Path("/proc/net/unix").read_text(), re.M) is not None

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int:
        """The exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the back end did not end within {STOP_SECONDS} s of SIGTERM") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def command(self) -> list[str]:
        raise NotImplementedError

    def counters(self) -> dict[str, float] | None:
        """Frames moved and dropped by direction since this process started: None where the back end does not tell."""
        return None


class Daemon(BackEnd):
    def __init__(self, logs: pathlib.Path, queues: int, program: pathlib.Path) -> None:
        super().__init__(logs, queues)
        self.program = program
        self.control = logs / "control.sock"

    def command(self) -> list[str]:
        port = f"name=vm0,socket={self.socket},tap={TAP},queues={self.queues},xdp=pass,mtu=9000"
        return [str(self.program), "run", "--port", port, "--metrics", METRICS, "--control", str(self.control)]

    def counters(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        sums: dict[str, float] = {}
        for kind, labels, value in re.findall(r"^vxdp_queue_(frames|drops)_total\{(.*?)\} (\S+)", text, re.M):
            label = dict(re.findall(r'(\w+)="(.*?)"', labels))
            for key in (f"{label['direction']} {kind}", f"{label['direction']} {kind} queue {label['queue']}"):
                sums[key] = sums.get(key, 0) + float(value)
        if "from_guest frames" not in sums or "to_guest frames" not in sums:
            raise RuntimeError("/metrics lacks vxdp_queue_frames_total of a direction")
        return sums


class Dpdk(BackEnd):
    offloads = False
    cannot = {
        "*.jumbo_9000": "net_tap takes frames of at most 1522 bytes (22.11)",
        "*.queue_pairs_change_under_traffic": TESTPMD_PAIRS,
        "one_pair_of_two.*": TESTPMD_PAIRS,
        "*.daemon_crash": "net_vhost does not replace the socket of a crashed process",
    }

    def command(self) -> list[str]:
        return [
            str(which("dpdk-testpmd")), "-l", "0,1", "--no-huge", "-m", "256", "--no-pci", "--file-prefix=vxdp-guest",
            f"--vdev=net_vhost0,iface={self.socket},queues={self.queues}", f"--vdev=net_tap0,iface={TAP}",
            "--", "--nb-cores=1", "--forward-mode=io", "--auto-start", "--stats-period=60",
            f"--rxq={self.queues}", f"--txq={self.queues}", "--total-num-mbufs=12000", "--mbuf-size=10240",
        ]  # fmt: skip


def choose(kind: str, build: pathlib.Path) -> Callable[[pathlib.Path, int], BackEnd]:
    """What makes a back end from a folder for its files and a number of queue pairs."""
    if kind == "dpdk":
        return Dpdk
    return lambda logs, queues: Daemon(logs, queues, build / "vhost-xdp")
