#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the daemon against its limits and its peer, in one go: every round runs every case once, so that a slow
minute of the machine hits all of them. Worker and generator are pinned to different CPUs (1 and 0): two pollers that
share one measure the scheduler. Needs root, 2 quiet CPUs, dpdk-dev and a build. See README.md."""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

GENERATOR_CPU, WORKER_CPU = 0, 1
FRAME_BYTES = 64
METRICS = "127.0.0.1:9477"
HUGE_PAGES = 1024  # of 2 MiB: two testpmd with 512 MiB each, and slack
TO_GUEST_FRAMES = 490_000  # a TAP's queue holds at most 524288

# Case -> --port options of the daemon, for the cases that are the daemon under DPDK's virtio-user.
OURS = {
    "ours": "",
    "ours, batch=1": "batch=1",
    "ours, submit=writev": "submit=writev",
    "ours, scraped each second": "",
}
# Ratio, least value that the project promises.
TARGETS = [
    ("ours", "DPDK net_vhost -> net_tap", 1.5),
    ("ours", "bare WRITE_FIXED loop", 0.85),
    ("ours", "ours, batch=1", 1.35),
    ("ours", "ours, submit=writev", 1.2),
    ("ours, scraped each second", "ours", 0.98),
    ("guest, 1 bad frame in 64", "guest", 0.9),
    ("to guest, ours", "to guest, plain readv loop", 1.0),
]


class Failed(Exception):
    """A case could not be measured; the text says why."""


class Bench:
    def __init__(self, build, seconds):
        self.build, self.seconds = build, seconds
        self.program = build / "vhost-xdp"
        self.tools = build / "tests" / "bench"
        self.drop = build / "bpf" / "drop.bpf.o"
        self.work = None  # a fresh folder for each case
        self.running = []

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, name, *command, **options):
        log = open(self.work / f"{name}.log", "w")
        process = subprocess.Popen([str(c) for c in command], stdin=options.get("stdin", subprocess.DEVNULL),
                                   stdout=options.get("stdout", log), stderr=log, text=True)
        process.log_name = self.work / f"{name}.log"
        self.running.append(process)
        return process

    def log(self, process):
        return process.log_name.read_text(errors="replace")

    def stop_all(self):
        for process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = []
        # The kernel frees a TAP that io_uring wrote to some time after its process has ended.
        for _ in range(250):
            if not os.path.exists("/sys/class/net/vm0"):
                break
            time.sleep(0.02)

    def must(self, *command):
        run = subprocess.run([str(c) for c in command], text=True, capture_output=True)
        if run.returncode:
            raise Failed(f"{' '.join(map(str, command))}: {run.stderr.strip() or run.stdout.strip()}")
        return run.stdout

    def wait_for(self, what, condition, process, seconds=15):
        end = time.monotonic() + seconds
        while not condition():
            if process.poll() is not None:
                raise Failed(f"waiting for {what}: the program ended: {self.log(process)[-2000:]}")
            if time.monotonic() > end:
                raise Failed(f"waited {seconds} s in vain for {what}: {self.log(process)[-2000:]}")
            time.sleep(0.02)

    # --- the daemon -----------------------------------------------------------------------------------------------

    def daemon(self, port_options, xdp="drop"):
        port = f"name=vm0,socket={self.work}/vm0.sock,tap=vm0,queues=1,xdp={xdp}"
        if port_options:
            port += "," + port_options
        process = self.start("daemon", self.program, "run", "--port", port, "--metrics", METRICS, "--control",
                             self.work / "control.sock", "--workers", 1, "--cpus", WORKER_CPU)
        up = lambda: self.metrics_answer() and os.path.exists("/sys/class/net/vm0")
        self.wait_for("the daemon's metrics and TAP", up, process)
        self.must("ip", "link", "set", "vm0", "up")
        return process

    @staticmethod
    def metrics():
        with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=5) as reply:
            return reply.read().decode()

    def metrics_answer(self):
        try:
            return bool(self.metrics())
        except OSError:
            return False

    def total(self, name, label, text=None):
        """Sum over the series `name` that carry `label`."""
        pattern = re.compile(rf"^{name}\{{([^}}]*)\}} (\S+)$", re.MULTILINE)
        return sum(float(value) for labels, value in pattern.findall(text or self.metrics()) if label in labels)

    def taken(self, direction="from_guest", text=None):
        """Frames the daemon has dealt with: handed on, or dropped with a reason."""
        text = text or self.metrics()
        label = f'direction="{direction}"'
        return self.total("vxdp_queue_frames_total", label, text) + self.total("vxdp_queue_drops_total", label, text)

    def rate(self, scrape_every=None):
        """Million frames per second taken from the guest over self.seconds, after a first second."""
        before = self.taken()
        end = time.monotonic() + 20
        while self.taken() == before:
            if time.monotonic() > end:
                raise Failed("no frame came within 20 s: " + " ".join(self.log(p)[-600:] for p in self.running))
            time.sleep(0.1)
        time.sleep(1)
        first, began = self.metrics(), time.monotonic()
        stop = threading.Event()

        def scrape():
            while not stop.wait(scrape_every):
                self.metrics()

        scraper = threading.Thread(target=scrape)
        if scrape_every:
            scraper.start()
        time.sleep(self.seconds)
        last, ended = self.metrics(), time.monotonic()
        stop.set()
        if scrape_every:
            scraper.join()
        dropped = [self.total("vxdp_program_frames_total", 'action="drop"', t) for t in (first, last)]
        if dropped[1] <= dropped[0]:
            raise Failed("the XDP program saw no frame")
        return (self.taken(text=last) - self.taken(text=first)) / (ended - began) / 1e6

    # --- DPDK ---------------------------------------------------------------------------------------------------------

    def virtio_user(self, socket):
        """DPDK's virtio-user sending as fast as the socket's owner takes frames. Its main thread only prints."""
        return self.start(
            "generator", "dpdk-testpmd", "-l", f"{GENERATOR_CPU},{WORKER_CPU}", "--main-lcore", WORKER_CPU,
            "--in-memory", "--single-file-segments", f"--file-prefix=gen{os.getpid()}", "-m", 512, "--no-pci",
            f"--vdev=net_virtio_user0,path={socket},queues=1,queue_size=1024", "--", "--nb-cores=1",
            "--forward-mode=txonly", f"--txpkts={FRAME_BYTES}", "--stats-period", 1, "--auto-start",
            "--txd=1024", "--rxd=1024")

    def virtio_user_rate(self, generator):
        """What testpmd itself says, in Mpps: median of its seconds but the first and the last."""
        rates = [int(r) for r in re.findall(r"Tx-pps:\s+(\d+)", self.log(generator))][1:-1]
        rates = [r for r in rates if r]
        return statistics.median(rates) / 1e6 if rates else None

    # --- the cases: each returns (Mpps, Mpps as the generator saw it or None) ----------------------------------------

    def bare(self):
        self.must("ip", "tuntap", "add", "dev", "bare0", "mode", "tap", "vnet_hdr")
        try:
            self.must("ip", "link", "set", "bare0", "up")
            self.must("ip", "link", "set", "dev", "bare0", "xdpdrv", "obj", self.drop, "sec", "xdp")
            return float(self.must(self.tools / "bare_tap", "bare0", self.seconds, WORKER_CPU)), None
        finally:
            self.must("ip", "link", "del", "bare0")

    def ours(self, case):
        self.daemon(OURS[case])
        generator = self.virtio_user(self.work / "vm0.sock")
        rate = self.rate(scrape_every=1 if "scraped" in case else None)
        return rate, self.virtio_user_rate(generator)

    def dpdk(self):
        socket = self.work / "peer.sock"
        peer = self.start(
            "peer", "dpdk-testpmd", "-l", f"{GENERATOR_CPU},{WORKER_CPU}", "--main-lcore", GENERATOR_CPU,
            "--in-memory", f"--file-prefix=peer{os.getpid()}", "-m", 512, "--no-pci",
            f"--vdev=net_vhost0,iface={socket},queues=1", "--vdev=net_tap0,iface=peer0", "--", "--nb-cores=1",
            "--forward-mode=io", "--stats-period", 5, "--auto-start", "--txd=512", "--rxd=512")
        self.wait_for("the peer's socket", socket.exists, peer)
        self.must("ip", "link", "set", "peer0", "up")
        self.must("ip", "link", "set", "dev", "peer0", "xdpdrv", "obj", self.drop, "sec", "xdp")
        generator = self.virtio_user(socket)
        figures = lambda: len(re.findall("Tx-pps", self.log(generator)))
        self.wait_for("figures", lambda: figures() >= self.seconds + 3, generator, 30)
        rate = self.virtio_user_rate(generator)
        if not rate:
            raise Failed("testpmd sent nothing")
        return rate, rate

    def guest(self, bad):
        self.daemon("")
        self.start("guest", self.program, "guest", "--socket", self.work / "vm0.sock", "--seconds", self.seconds + 30,
                   "--bytes", FRAME_BYTES, "--cpu", GENERATOR_CPU, *(["--bad-every", 64] if bad else []))
        return self.rate(), None

    def plain_read(self):
        self.must("ip", "tuntap", "add", "dev", "read0", "mode", "tap", "vnet_hdr")
        try:
            self.must("ip", "link", "set", "read0", "txqueuelen", TO_GUEST_FRAMES + 1000, "up")
            reader = self.start("reader", self.tools / "plain_read", "read0", 1, WORKER_CPU, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE)
            if reader.stdout.readline() != "ready\n":
                raise Failed(self.log(reader))
            self.must(self.tools / "tap_fill", "read0", TO_GUEST_FRAMES, FRAME_BYTES)
            rate, frames = reader.communicate("\n", timeout=30)[0].split()
            if int(frames) < TO_GUEST_FRAMES:
                raise Failed(f"only {frames} frames were in the queue")
            return float(rate), None
        finally:
            self.stop_all()
            self.must("ip", "link", "del", "read0")

    def ours_to_guest(self):
        """Empties the same queue into a guest that is stopped while the queue is filled, so that its ring runs out of
        buffers. The clock runs while frames are seen moving."""
        daemon = self.daemon("", xdp="none")
        self.must("ip", "link", "set", "vm0", "txqueuelen", TO_GUEST_FRAMES + 1000)
        guest = self.start("guest", self.program, "guest", "--socket", self.work / "vm0.sock", "--seconds", 60,
                           "--receive", "--poll", "--cpu", GENERATOR_CPU)
        self.wait_for("the guest", lambda: self.total("vxdp_session_state", 'state="running"') == 1, daemon)
        guest.send_signal(signal.SIGSTOP)
        self.must(self.tools / "tap_fill", "vm0", TO_GUEST_FRAMES, FRAME_BYTES)
        guest.send_signal(signal.SIGCONT)
        seen, end = [], time.monotonic() + 30
        while time.monotonic() < end:
            frames, now = self.taken("to_guest"), time.monotonic()
            if frames and (not seen or frames > seen[-1][0]):
                seen.append((frames, now))
            if frames >= TO_GUEST_FRAMES:
                break
            time.sleep(0.005)
        if not seen or seen[-1][0] < TO_GUEST_FRAMES * 0.99 or len(seen) < 3:
            raise Failed(f"moved {seen[-1][0] if seen else 0:.0f} of {TO_GUEST_FRAMES} frames")
        # The last sample lies at an unknown time after the queue ran empty.
        (first, began), (last, ended) = seen[0], seen[-2]
        return (last - first) / (ended - began) / 1e6, None

    def cases(self):
        yield "bare WRITE_FIXED loop", self.bare
        yield "ours", lambda: self.ours("ours")
        yield "DPDK net_vhost -> net_tap", self.dpdk
        for case in list(OURS)[1:]:
            yield case, lambda case=case: self.ours(case)
        yield "guest", lambda: self.guest(bad=False)
        yield "guest, 1 bad frame in 64", lambda: self.guest(bad=True)
        yield "to guest, plain readv loop", self.plain_read
        yield "to guest, ours", self.ours_to_guest

    def run_case(self, case):
        with tempfile.TemporaryDirectory(prefix="vxdp-bench.") as folder:
            self.work = pathlib.Path(folder)
            try:
                return case()
            finally:
                self.stop_all()


# --- the report -------------------------------------------------------------------------------------------------------


def report(results, failures):
    rows = {case: {"median": statistics.median(rates), "min": min(rates), "max": max(rates), "rounds": rates}
            for case, rates in results.items() if rates}
    ratios = [{"ratio": f"{a} / {b}", "value": rows[a]["median"] / rows[b]["median"], "target": target}
              for a, b, target in TARGETS if a in rows and b in rows]
    print(f"\n{'case':<30} {'median':>7} {'min - max':>15}   Mpps of {FRAME_BYTES}-byte frames, XDP_DROP, one worker")
    for case, row in rows.items():
        print(f"{case:<30} {row['median']:7.3f} {row['min']:7.3f} - {row['max']:5.3f}")
    for row in ratios:
        print(f"{row['ratio']:<56} {row['value']:5.2f}  target {row['target']:<4} "
              f"{'met' if row['value'] >= row['target'] else 'MISSED'}")
    for case, why in failures.items():
        print(f"{case}: not measured: {why}")
    return {"frame_bytes": FRAME_BYTES, "unit": "Mpps", "kernel": os.uname().release, "cases": rows, "ratios": ratios,
            "not_measured": failures}


def reserve_huge_pages():
    setting = pathlib.Path("/proc/sys/vm/nr_hugepages")
    if int(setting.read_text()) < HUGE_PAGES:
        setting.write_text(str(HUGE_PAGES))
    if int(setting.read_text()) < HUGE_PAGES:
        sys.exit(f"cannot reserve {HUGE_PAGES} huge pages of 2 MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="each case in each round")
    parser.add_argument("--only", help="cases whose name contains this (regular expression)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if os.geteuid() != 0 or os.cpu_count() < 2:
        sys.exit("needs root and 2 CPUs")
    if not options.inside:
        # Everything happens in a network namespace of its own, which takes all interfaces along when it goes.
        name = f"vxdp-bench-{os.getpid()}"
        subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            sys.exit(subprocess.run(["ip", "netns", "exec", name, sys.executable, *sys.argv, "--inside"]).returncode)
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            subprocess.run(["ip", "netns", "del", name])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    reserve_huge_pages()

    bench = Bench(options.build.resolve(), options.seconds)
    cases = [(name, run) for name, run in bench.cases() if not options.only or re.search(options.only, name)]
    results, failures = {name: [] for name, _ in cases}, {}
    for number in range(options.rounds):
        for name, run in cases:
            if name in failures:
                continue
            try:
                rate, generator = bench.run_case(run)
            except (Failed, OSError, ValueError) as error:
                failures[name] = str(error)
                print(f"round {number + 1}  {name:<30} not measured", flush=True)
                continue
            results[name].append(rate)
            note = f"  (generator says {generator:.3f})" if generator and generator != rate else ""
            print(f"round {number + 1}  {name:<30} {rate:7.3f}{note}", flush=True)
    figures = report(results, failures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
