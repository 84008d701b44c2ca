# SPDX-License-Identifier: Apache-2.0
"""Each lint must refuse a bad example and accept its good twin: a lint that is blind looks just like clean code."""
import json
import os
import pathlib
import tempfile
import unittest
import unittest.mock

import common
import format
import headers
import include_rules
import shell
import text_rules
import tidy

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"


class Example(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for folder in common.FOLDERS:
            (self.root / folder).mkdir()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def refused(self, lint, name, text, why):
        path = self.write(name, text)
        complaints = lint(self.root)
        self.assertTrue(any(why in c for c in complaints), f"{name} {text!r}: {complaints}")
        path.unlink()

    def accepted(self, lint, name, text):
        path = self.write(name, text)
        self.assertEqual(lint(self.root), [], f"{name} {text!r}")
        path.unlink()


class IncludeRules(Example):
    def include(self, folder, header):
        return f"userspace/{folder}/x.cpp", f'#include "{header}"\n'

    def test_upward_and_forbidden_arrows_are_refused(self):
        for folder, header, why in (
                ("virtqueue", "vxdp/vhost_user/session.hpp", "a ring is tested without a socket"),
                ("backend", "vxdp/virtqueue/split_queue.hpp", "a backend sees frames"),
                ("backend", "vxdp/virtqueue/vring_config.hpp", "a backend sees frames"),
                ("vhost_user", "vxdp/dataplane/worker.hpp", "DeviceListener"),
                ("vhost_user", "vxdp/virtqueue/split_queue.hpp", "vhost_user may not include virtqueue"),
                ("control", "vxdp/daemon/main.hpp", "never include daemon"),
                ("base", "vxdp/memory/guest_memory.hpp", "base may not include memory"),
                ("metrics", "vxdp/memory/guest_memory.hpp", "metrics may not include memory"),
                ("dataplane", "vxdp/port/port.hpp", "dataplane may not include port"),
                ("guest", "vxdp/vhost_user/session.hpp", "guest may not include vhost_user"),
                ("port", "vxdp/control/server.hpp", "port may not include control"),
                ("nonsense", "vxdp/base/fd.hpp", "module nonsense is not in"),
                ("port", "vxdp/nonsense/x.hpp", "unknown module nonsense")):
            self.refused(include_rules.lint, *self.include(folder, header), why)

    def test_downward_arrows_are_accepted(self):
        for folder, header in (
                ("vhost_user", "vxdp/virtqueue/vring_config.hpp"), ("guest", "vxdp/vhost_user/message.hpp"),
                ("daemon", "vxdp/control/server.hpp"), ("port", "vxdp/dataplane/worker.hpp")):
            self.accepted(include_rules.lint, *self.include(folder, header))

    def test_headers_are_judged_like_sources(self):
        self.refused(include_rules.lint, "include/vxdp/backend/x.hpp", '  #  include "vxdp/virtqueue/y.hpp"\n', "rings")

    def test_third_party_headers_stay_in_sources(self):
        for header in ("liburing.h", "bpf/libbpf.h", "xdp/xsk.h", "prometheus/counter.h", "CLI/App.hpp", "httplib.h"):
            self.refused(include_rules.lint, "include/vxdp/port/x.hpp", f"#include <{header}>\n", "belongs in a .cpp")
            self.accepted(include_rules.lint, "userspace/port/x.cpp", f"#include <{header}>\n")

    def test_bpf_sees_only_abi(self):
        self.refused(include_rules.lint, "bpf/x.bpf.c", '#include "vxdp/base/fd.hpp"\n', "only vxdp/abi")
        self.accepted(include_rules.lint, "bpf/x.bpf.c", '#include "vxdp/abi/drop_reasons.h"\n')


class Headers(Example):
    def test_header_that_needs_another_is_refused(self):
        body = "#pragma once\ninline std::string name() { return {}; }\n"
        self.refused(headers.lint, "include/vxdp/base/x.hpp", HEAD + body, "does not compile alone")
        self.accepted(headers.lint, "include/vxdp/base/x.hpp", HEAD + body.replace("\n", "\n#include <string>\n", 1))

    def test_missing_guard_is_refused(self):
        self.refused(headers.lint, "include/vxdp/base/x.hpp", HEAD + "struct X {};\n", "does not compile alone")

    def test_licence_is_checked(self):
        self.refused(headers.lint, "userspace/base/x.cpp", "int x;\n", "no SPDX")
        self.refused(headers.lint, "bpf/x.bpf.c", "/* SPDX-License-Identifier: Apache-2.0 */\n", "licence Apache-2.0")
        self.accepted(headers.lint, "bpf/x.bpf.c", "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n")
        self.accepted(headers.lint, "tests/x.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n")


class TextRules(Example):
    def test_each_rule_refuses(self):
        for text, why in (("// see /ho" "me/me/x\n", "path of one machine"), ("// TO" "DO later\n", "name the issue"),
                          ("<" * 7 + " HEAD\n", "merge conflict"), ("int x; \n", "trailing")):
            self.refused(text_rules.lint, "userspace/base/x.cpp", text, why)

    def test_good_twins_are_accepted(self):
        for text in ("// see build/ho" "me/x\n", "// TO" "DO(#12): later\n", "int rx_bytes = link.rx_bytes;\n"):
            self.accepted(text_rules.lint, "userspace/base/x.cpp", text)

    def test_directions_in_our_headers(self):
        for text in ("void rx_burst();\n", "int bytes_tx_;\n", "struct RxQueue {};\n"):
            self.refused(text_rules.lint, "include/vxdp/base/x.hpp", text, "from_guest")
        self.accepted(text_rules.lint, "include/vxdp/base/x.hpp", "void from_guest();  // DPDK calls it tx_burst()\n")


class Format(Example):
    def test_layout(self):
        self.write(".clang-format", (common.ROOT / ".clang-format").read_text())
        self.refused(format.lint, "userspace/base/x.cpp", "int  f( );\n", "not formatted")
        self.accepted(format.lint, "userspace/base/x.cpp", "int f();\n")


class Shell(Example):
    def test_syntax(self):
        self.refused(shell.lint, "tests/x.sh", "#!/bin/bash\nif true; then\necho\n", "x.sh")

    def test_a_script_is_known_by_its_first_line(self):
        self.refused(shell.lint, "quick", "#!/usr/bin/env bash\necho $(\n", "quick")
        self.accepted(shell.lint, "quick", "#!/usr/bin/env bash\necho hello\n")
        self.accepted(shell.lint, "LICENSE", "echo $(\n")


class Tidy(Example):
    def lint(self, root):
        path = root / "userspace/base/x.cpp"
        build = root / "build"
        build.mkdir(exist_ok=True)
        command = f"c++ -std=c++20 -c {path}"
        entry = {"directory": str(root), "file": str(path), "command": command}
        (build / "compile_commands.json").write_text(json.dumps([entry]))
        return tidy.lint(root, build)

    def setUp(self):
        super().setUp()
        self.enterContext(unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.root / "cache")))

    def test_finding_in_a_header_is_refused_after_a_clean_run(self):
        self.write(".clang-tidy", (common.ROOT / ".clang-tidy").read_text())
        source = '#include "x.hpp"\n'
        header = self.write("userspace/base/x.hpp", "#pragma once\ninline int* nothing() { return nullptr; }\n")
        self.accepted(self.lint, "userspace/base/x.cpp", source)
        header.write_text(header.read_text().replace("nullptr", "0"))
        self.refused(self.lint, "userspace/base/x.cpp", source, "nullptr")

    def test_finding_is_refused_also_after_a_clean_run(self):
        self.write(".clang-tidy", (common.ROOT / ".clang-tidy").read_text())
        good, bad = "int* nothing() { return nullptr; }\n", "int* nothing() { return 0; }\n"
        self.accepted(self.lint, "userspace/base/x.cpp", good)
        self.refused(self.lint, "userspace/base/x.cpp", bad, "nullptr")
        self.accepted(self.lint, "userspace/base/x.cpp", good)
        self.refused(self.lint, "userspace/base/x.cpp", bad, "nullptr")


if __name__ == "__main__":
    unittest.main(verbosity=1)
