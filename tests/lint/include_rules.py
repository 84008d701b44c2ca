# SPDX-License-Identifier: Apache-2.0
"""Includes go only downwards (README.md "How it works"). A module that is not in the table may not exist."""
import common

# Module -> modules whose headers it may include. This is the picture of the architecture: change it on purpose only.
LOW = {"base", "abi"}
MAY_INCLUDE = {
    "abi": set(),
    "base": {"abi"},
    "metrics": LOW,
    "memory": LOW,
    "packet": LOW,
    "virtqueue": LOW | {"memory", "packet", "metrics"},
    "backend": LOW | {"memory", "packet", "metrics"},
    "xdp": LOW | {"packet", "metrics"},
    "jit": LOW | {"packet", "metrics", "xdp"},
    "dataplane": LOW | {"virtqueue", "backend", "memory", "packet", "metrics", "xdp", "jit"},
    "vhost_user": LOW | {"memory", "metrics"},
    "port": LOW | {"vhost_user", "dataplane", "virtqueue", "backend", "xdp", "jit", "memory", "packet", "metrics"},
    "control": LOW | {"port", "xdp", "metrics"},
    "guest": LOW | {"memory", "packet"},
    "cli": LOW | {"control", "port", "guest", "xdp", "backend", "metrics"},
    "cni": LOW | {"control"},
    "device_plugin": LOW | {"control"},
    "daemon": None,  # puts everything together: may include all
}
# Single headers that may be included beyond the table.
ALSO = {
    "vhost_user": {"vxdp/virtqueue/vring_config.hpp"},  # what a session tells a ring to be
    "guest": {"vxdp/vhost_user/message.hpp"},           # the wire format, seen from the other end
}
# Never, whatever the table may become.
NEVER = {
    ("virtqueue", "vhost_user"): "a ring is tested without a socket",
    ("backend", "virtqueue"): "a backend sees frames, never rings",
    ("vhost_user", "dataplane"): "a session speaks to a DeviceListener",
}
# Third-party headers stay in .cpp files.
THIRD_PARTY = ("bpf/", "xdp/", "liburing", "prometheus/", "CLI/", "httplib")


def module_of(path, root):
    parts = path.relative_to(root).parts
    if parts[:2] == ("include", "vxdp") and len(parts) > 3:
        return parts[2]
    if parts[0] == "userspace" and len(parts) > 2:
        return parts[1]
    return "bpf" if parts[0] == "bpf" else None


def judge(module, name):
    """Why `module` may not include the header `name` of ours; None if it may."""
    target = name.split("/")[1]
    if (module, target) in NEVER and name not in ALSO.get(module, ()):
        return f"{module} must never include {target}: {NEVER[module, target]}"
    if target == "daemon" and module != "daemon":
        return f"{module} must never include daemon"
    if module == "bpf":
        return None if target == "abi" else "bpf may include only vxdp/abi of ours"
    if target not in MAY_INCLUDE:
        return f"unknown module {target}"
    allowed = MAY_INCLUDE[module]
    if allowed is None or target == module or target in allowed or name in ALSO.get(module, ()):
        return None
    return f"{module} may not include {target}"


def lint(root):
    complaints = []
    for path in common.own_files(root, ".hpp", ".h", ".cpp", ".c"):
        module = module_of(path, root)
        if module is None:
            continue
        where = path.relative_to(root)
        if module != "bpf" and module not in MAY_INCLUDE:
            complaints.append(f"{where}: module {module} is not in tests/lint/include_rules.py")
            continue
        for line, name, _ in common.includes(path):
            reason = None
            if name.startswith("vxdp/"):
                reason = judge(module, name)
            elif "../" in name:
                reason = "includes by a relative path that leaves its folder"
            elif where.parts[0] == "include" and name.startswith(THIRD_PARTY):
                reason = f"third-party header {name} belongs in a .cpp"
            if reason:
                complaints.append(f"{where}:{line}: {reason}")
    return complaints


if __name__ == "__main__":
    common.main(lint)
