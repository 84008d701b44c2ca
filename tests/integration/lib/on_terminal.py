# SPDX-License-Identifier: Apache-2.0
"""on_terminal.py SECONDS REGEX COMMAND...: runs COMMAND on a terminal of its own, types Ctrl-C once REGEX was printed, and
ends with the command's exit status. Its output goes to stdout. Exit status 99: not over within SECONDS."""
import os
import pty
import re
import select
import signal
import sys
import time


def main():
    seconds, pattern, command = float(sys.argv[1]), re.compile(sys.argv[2].encode()), sys.argv[3:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    end, seen, typed = time.monotonic() + seconds, b"", False
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            status = os.waitpid(pid, 0)[1]
            sys.exit(os.waitstatus_to_exitcode(status) % 256)
        seen += chunk
        sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        if not typed and pattern.search(seen):
            os.write(terminal, b"\x03")
            typed = True
    os.kill(pid, signal.SIGTERM)
    sys.exit(99)


if __name__ == "__main__":
    main()
