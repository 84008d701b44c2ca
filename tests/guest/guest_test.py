#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Linux guest on the daemon: boots QEMU in a few configurations and runs the checks of lib/checks.py on each.

Exit status: 0 all passed, 1 something failed, 77 this machine lacks what the guest needs.
"""

import argparse
import fnmatch
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import back_end
import checks
import guest_image
import guest_vm
import sandbox
from bench import Bench

SKIPPED = 77
LIMIT_SECONDS = 400  # below the ctest TIMEOUT, so that the logs are still shown
CSUM, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HOST_TSO4, HOST_TSO6 = 0, 1, 7, 8, 11, 12  # virtio 1.2, 5.1.3
MTU, MRG_RXBUF, MQ, INDIRECT_DESC, EVENT_IDX, VERSION_1 = 3, 15, 22, 28, 29, 32
OFFLOADS = (CSUM, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HOST_TSO4, HOST_TSO6)
NO_OFFLOADS = ("csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,"
               "host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off")  # fmt: skip


class Group(NamedTuple):
    """Checks that share one guest. `device` are properties of QEMU's card; `lacking` the features it must not have."""

    name: str
    device: str
    lacking: tuple[int, ...]
    checks: tuple[Callable[[Bench], None], ...]
    queues: int = 1  # pairs of QEMU's card
    port_queues: int = 0  # pairs of the daemon's port; 0: as many


SHORT = (checks.ping_both_ways, checks.files_intact, checks.guest_kernel_content, checks.daemon_stops)
GROUPS = (
    Group("full", "host_mtu=9000", (), (
        checks.ping_both_ways, checks.tcp_tso_on, checks.tcp_tso_off, checks.udp_no_loss, checks.files_intact,
        checks.jumbo_9000, checks.two_queue_pairs, checks.queue_pairs_change_under_traffic, checks.counters_match_tap,
        checks.driver_rebind, checks.guest_reboot, checks.daemon_restart, checks.daemon_crash,
        checks.guest_kernel_content, checks.daemon_stops), queues=2),
    Group("no_mrg_rxbuf", "mrg_rxbuf=off", (MRG_RXBUF, MQ), SHORT),
    Group("no_offloads", NO_OFFLOADS, (*OFFLOADS, MQ), SHORT),
    Group("no_mrg_rxbuf_no_offloads", f"mrg_rxbuf=off,{NO_OFFLOADS}", (MRG_RXBUF, *OFFLOADS, MQ), SHORT),
    Group("no_event_idx_no_indirect", "event_idx=off,indirect_desc=off", (EVENT_IDX, INDIRECT_DESC, MQ), SHORT),
    Group("one_pair_of_two", "", (MQ,), SHORT, port_queues=2),
)  # fmt: skip


class Results:
    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.passed, self.failed = 0, 0

    def wants(self, name: str) -> bool:
        return fnmatch.fnmatch(name, self.wanted)

    def run(self, name: str, check: Callable[[], None]) -> Exception | None:
        """What the check failed with."""
        started = time.monotonic()
        verdict, reason, failure = "PASS", "", None
        try:
            check()
            self.passed += 1
        except checks.NotApplicable:
            verdict = "SKIP"
        except TimeLimit:
            raise
        except Exception as error:  # noqa: BLE001  whatever it was, the other checks still have something to say
            if not isinstance(error, (AssertionError, guest_vm.CommandFailed, guest_vm.GuestGone, TimeoutError)):
                reason = traceback.format_exc().rstrip() + "\n     "
            verdict, reason, failure = "FAIL", f": {reason}{error}", error
            self.failed += 1
        print(f"{verdict} {name} ({time.monotonic() - started:.1f} s){reason}", flush=True)
        return failure


class TimeLimit(Exception):
    """The whole test took too long."""


def run_group(group: Group, logs: pathlib.Path, make_back_end: Callable[[pathlib.Path, int], back_end.BackEnd],
              image: guest_image.Image, results: Results) -> None:  # fmt: skip
    wanted = [check for check in group.checks if results.wants(f"{group.name}.{check.__name__}")]
    server = make_back_end(logs, group.port_queues or group.queues)
    for check in list(wanted):
        name = f"{group.name}.{check.__name__}"
        if reasons := [reason for pattern, reason in server.cannot.items() if fnmatch.fnmatch(name, pattern)]:
            print(f"SKIP {name}: {reasons[0]}", flush=True)
            wanted.remove(check)
    if not wanted:
        return
    guest: guest_vm.Guest | None = None
    bench: Bench | None = None

    def boot() -> None:
        nonlocal guest, bench
        server.start()
        guest = guest_vm.Guest(image, server.socket, logs, queues=group.queues, device=group.device)
        bench = Bench(logs, server, guest)
        bench.configure_host()
        bench.boot()
        require_features(bench, group)

    failed_before = results.failed
    try:
        if results.run(f"{group.name}.boot", boot) is not None:
            return
        for check in wanted:
            failure = results.run(f"{group.name}.{check.__name__}", lambda check=check: check(bench))
            if isinstance(failure, guest_vm.GuestGone) or (check is not wanted[-1] and not server.running()):
                print(f"     {group.name}: guest or back end is gone, and with it the checks that would follow", flush=True)
                return
    finally:
        if results.failed > failed_before or sys.exc_info()[0]:
            show_logs(logs, guest if bench and bench.boot_id else None)
        if guest:
            guest.stop()
        if server.running():
            server.kill()


def require_features(bench: Bench, group: Group) -> None:
    """The check of a configuration says nothing unless the guest really runs with it."""
    bits = bench.features()
    present = {bit for bit in range(64) if bits[bit] == "1"}
    assert not present & set(group.lacking), f"features {present & set(group.lacking)} should be off, got {bits}"
    if bench.back_end.offloads:
        needed = {*OFFLOADS, MRG_RXBUF, INDIRECT_DESC, EVENT_IDX, VERSION_1, *((MQ, MTU) if group.queues > 1 else ())}
        missing = needed - set(group.lacking) - present
        assert not missing, f"features {missing} are missing, got {bits}"
        assert group.queues == 1 or bench.mtu_offered == 9000, f"the guest was offered an MTU of {bench.mtu_offered}"


def show_logs(logs: pathlib.Path, guest: guest_vm.Guest | None) -> None:
    if guest:
        try:
            (logs / "guest-dmesg.log").write_text(guest.run("dmesg", seconds=5))
        except (guest_vm.GuestGone, guest_vm.CommandFailed, OSError):
            pass  # it is lost: the console file has what there is
    for path in sorted(logs.glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()
        if lines and not path.name.startswith("iperf3"):
            print(f"--- {path} (last lines)", *lines[-25:], sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", help="build folder with vhost-xdp; default: $VXDP_BUILD")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="run the checks whose GROUP.CHECK matches, as in 'full.tcp*'")
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    options = parser.parse_args()
    if options.list:
        print(*(f"{group.name}.{check.__name__}" for group in GROUPS for check in group.checks), sep="\n")
        return 0
    build = pathlib.Path(options.build or os.environ.get("VXDP_BUILD") or ".").resolve()
    kind = os.environ.get("VXDP_GUEST_BACKEND", "daemon")
    if kind == "daemon" and not (build / "vhost-xdp").exists():
        print(f"no program vhost-xdp in {build}: give the build folder as argument or in VXDP_BUILD")
        return 2
    if os.geteuid() != 0:
        print("SKIP: namespaces and TAPs need root")
        return SKIPPED
    sandbox.enter()
    logs = pathlib.Path(tempfile.mkdtemp(prefix="vxdp-guest-"))
    results = Results(options.only)
    try:
        cache = guest_image.default_cache()
        image = guest_image.prepare(logs / "initramfs", cache)
        guest_image.which("qemu-system-x86_64")
        run_groups(kind, build, logs, image, results)
    except guest_image.Unavailable as reason:
        print(f"SKIP: {reason}")
        shutil.rmtree(logs)
        return SKIPPED
    print(f"{results.passed} passed, {results.failed} failed")
    if results.failed == 0 and results.passed > 0:
        shutil.rmtree(logs)
        return 0
    print(f"logs: {logs}")
    return 1


def run_groups(kind: str, build: pathlib.Path, logs: pathlib.Path, image: guest_image.Image, results: Results) -> None:
    def out_of_time(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(int(os.environ.get("VXDP_GUEST_LIMIT", LIMIT_SECONDS)))
    try:
        for group in GROUPS:
            folder = logs / group.name
            folder.mkdir()
            run_group(group, folder, back_end.choose(kind, build), image, results)
    except TimeLimit:
        results.failed += 1
        print("FAIL the time for all checks is over", flush=True)
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
