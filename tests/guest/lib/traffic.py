# SPDX-License-Identifier: Apache-2.0
"""Traffic from the host's side: numbered echo requests, iperf3 servers, whole files over TCP."""

import contextlib
import hashlib
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Self

from guest_image import which
from sandbox import wait_for

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # linux/in.h; Python's socket module lacks them
ECHO_REQUEST, ECHO_REPLY = 8, 0
SILENCE_SECONDS = 0.7  # without a reply, after the last request: none will come


class EchoFlood:
    """Numbered ICMP echo requests with "don't fragment" from a thread, until the `with` block ends and replies ceased.

    `sent_at` and `answered` are keyed and ordered by number: a number that is answered twice stands in `answered` twice.
    """

    def __init__(self, address: str, interval: float = 0.02, payload_bytes: int = 56) -> None:
        self.address, self.interval = address, interval
        self.padding = bytes(payload_bytes)
        self.ident = os.getpid() & 0xFFFF
        self.sent_at: dict[int, float] = {}
        self.answered: list[int] = []
        self.refused = 0  # send calls the host's stack refused: no link, no memory
        self.ending = threading.Event()

    def __enter__(self) -> Self:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.socket.close()

    def _send(self) -> None:
        number = 0
        while not self.ending.is_set():
            number += 1
            body = struct.pack("!HH", self.ident, number & 0xFFFF) + self.padding
            message = struct.pack("!BBH", ECHO_REQUEST, 0, checksum(struct.pack("!BBH", ECHO_REQUEST, 0, 0) + body)) + body
            try:
                self.socket.sendto(message, (self.address, 0))
                self.sent_at[number] = time.monotonic()
            except OSError:
                self.refused += 1
            self.ending.wait(self.interval)

    def _receive(self) -> None:
        self.socket.settimeout(0.1)
        latest = time.monotonic()
        while not self.ending.is_set() or time.monotonic() - latest < SILENCE_SECONDS:
            try:
                packet = self.socket.recv(65535)
            except TimeoutError:
                continue
            body = packet[(packet[0] & 15) * 4 :]
            kind, _, _, ident, number = struct.unpack("!BBHHH", body[:8])
            if kind == ECHO_REPLY and ident == self.ident and body[8:] == self.padding:
                self.answered.append(number)
                latest = time.monotonic()

    def require_perfect(self, since: float = 0.0) -> None:
        """AssertionError unless each request sent from monotonic time `since` on was answered once and in order."""
        expected = [number for number, at in self.sent_at.items() if at >= since]
        got = [number for number in self.answered if self.sent_at.get(number, 0) >= since]
        assert expected, "nothing was sent"
        assert got == expected, describe(expected, got)

    def require_no_duplicates(self) -> None:
        assert len(set(self.answered)) == len(self.answered), describe(list(self.sent_at), self.answered)


def describe(expected: list[int], got: list[int]) -> str:
    lost = sorted(set(expected) - set(got))
    order = "in order" if got == sorted(got) else "NOT in order"
    return f"{len(expected)} sent, {len(lost)} lost {lost[:8]}, {len(got) - len(set(got))} twice, {order}"


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of `data`, as it goes into the header."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@contextlib.contextmanager
def iperf_server(logs: pathlib.Path, port: int) -> Iterator[None]:
    """An iperf3 server for one test on `port`."""
    log = logs / f"iperf3-{port}.log"
    with open(log, "wb") as out:
        command = [which("iperf3"), "--server", "--one-off", "--forceflush", "--port", str(port)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_for("the iperf3 server listens", lambda: b"listening" in log.read_bytes(), 5)
        yield
    finally:
        process.kill()
        process.wait()


class FileServer:
    """Takes one TCP connection: sends `content` and closes, or with None receives until the end. `digest` is the SHA-256."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.digest = ""
        self.listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.listener.settimeout(20)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join()
        self.listener.close()

    def _serve(self) -> None:
        sha = hashlib.sha256()
        try:
            peer, _ = self.listener.accept()
            with peer:
                peer.settimeout(20)
                if self.content is not None:
                    peer.sendall(self.content)
                    sha.update(self.content)
                else:
                    while chunk := peer.recv(1 << 16):
                        sha.update(chunk)
            self.digest = sha.hexdigest()
        except OSError as error:
            self.digest = f"broken off: {error}"
