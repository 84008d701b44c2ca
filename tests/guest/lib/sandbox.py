# SPDX-License-Identifier: Apache-2.0
"""A private set of namespaces: when the test ends, however it ends, its processes, TAPs and mounts are gone with them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

INSIDE = "VXDP_GUEST_SANDBOX"
PR_SET_PDEATHSIG = 1


def enter() -> None:
    """Returns as process 1 of new network, mount and process namespaces; the caller's first process only waits for it."""
    if INSIDE not in os.environ:
        _run_inside()
    # A new /sys shows the devices of the new network namespace; the one of the parent hides them.
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    subprocess.run(["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _run_inside() -> NoReturn:
    # Process 1 dies with unshare (--kill-child) and takes all others along; unshare dies with this process.
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    child = subprocess.Popen(command, env=os.environ | {INSIDE: "1"}, preexec_fn=_die_with_parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: child.kill())
    status = child.wait()
    sys.exit(status if status >= 0 else 128 - status)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Returns when `condition` holds; TimeoutError naming `what` when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
