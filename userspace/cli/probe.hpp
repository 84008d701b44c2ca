// SPDX-License-Identifier: Apache-2.0
// What this kernel and these privileges offer, found by trying it.
#pragma once

#include <string>
#include <vector>

namespace vxdp {

struct Feature {
  std::string name;   // short and stable, for scripts: "xdp-native"
  std::string title;  // for people
  bool available = false;
  std::string detail;   // what was found, or why not
  std::string without;  // what is lost without it
};

/// Tries each feature and leaves nothing behind; the temporary TAP vxdp-probeN exists for some milliseconds.
/// Works without privileges: then the answer is "no" with the reason.
std::vector<Feature> probe();

/// The parts of probe() that need libbpf. `ifindex` is an interface to try on, 0 if there is none.
Feature probe_bpf_load();
Feature probe_native_xdp(int ifindex);
Feature probe_freplace();

}  // namespace vxdp
