// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "vxdp/control/listen.hpp"
#include "vxdp/control/port_fields.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr unsigned long kMaxCpu = 1023;  // CPU_SETSIZE - 1

struct DaemonField {
  const char* name;
  const char* allowed;                                         // completes "... must be "
  bool (*set)(DaemonConfig& config, const std::string& text);  // false: not allowed
};

bool set_cpus(DaemonConfig& config, const std::string& text) {
  std::vector<unsigned> cpus;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const auto cpu = parse_number(rest.substr(0, comma), 0, kMaxCpu);
    if (!cpu) {
      return false;
    }
    cpus.push_back(static_cast<unsigned>(*cpu));
    rest.remove_prefix(more ? comma + 1 : rest.size());
  }
  config.cpus = std::move(cpus);
  return true;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> allowed) {
  return std::ranges::find(allowed, text) != allowed.end();
}

constexpr DaemonField kFields[] = {
    {"metrics", "an address and port such as 127.0.0.1:9477 or [::]:9477, or none",
     [](DaemonConfig& config, const std::string& text) {
       config.metrics = text;
       return text == "none" || split_address(text).has_value();
     }},
    {"control", "a path of 1 to 107 bytes",
     [](DaemonConfig& config, const std::string& text) {
       config.control = text;
       return is_socket_path(text);
     }},
    {"workers", "a number from 1 to 64",
     [](DaemonConfig& config, const std::string& text) {
       const auto workers = parse_number(text, 1, 64);
       if (workers) {
         config.workers = static_cast<unsigned>(*workers);
       }
       return workers.has_value();
     }},
    {"cpus", "CPU numbers separated by commas, such as 1,3", set_cpus},
    {"log-level", "debug, info, warn or error",
     [](DaemonConfig& config, const std::string& text) {
       config.log_level = text;
       return is_one_of(text, {"debug", "info", "warn", "error"});
     }},
    {"log-format", "text or json",
     [](DaemonConfig& config, const std::string& text) {
       config.log_format = text;
       return is_one_of(text, {"text", "json"});
     }},
};

std::string all_names() {
  std::vector<std::string_view> names{"ports"};
  for (const DaemonField& field : kFields) {
    names.emplace_back(field.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Reads one YAML document into a DaemonConfig; every error says where.
class YamlReader {
 public:
  YamlReader(DaemonConfig& config, std::string_view origin) : config_(config), origin_(origin) {}

  Result<> read(const std::string& text) {
    try {  // yaml-cpp reports by exception; none of them leaves this function
      return document(YAML::Load(text));
    } catch (const YAML::Exception& error) {
      return invalid(fmt::format("{} line {}: {}", origin_, error.mark.line + 1, error.msg));
    }
  }

 private:
  Result<> document(const YAML::Node& root) {
    if (root.IsNull()) {
      return Ok{};
    }
    if (!root.IsMap()) {
      return error_at(root, "the file must be a map of " + all_names());
    }
    std::vector<std::string> seen;
    for (const auto& entry : root) {
      const auto& name = entry.first.Scalar();
      if (std::ranges::find(seen, name) != seen.end()) {
        return error_at(entry.first, fmt::format("{} is given twice", name));
      }
      seen.push_back(name);
      auto done = name == "ports" ? ports(entry.second) : field(entry.first, entry.second);
      if (!done) {
        return done;
      }
    }
    return Ok{};
  }

  Result<> field(const YAML::Node& name, const YAML::Node& value) {
    const auto text = text_of(name, value, ",");
    if (!text) {
      return text.error();
    }
    const auto set = set_field(config_, name.Scalar(), *text);
    return set ? set : error_at(name, set.error().what);
  }

  Result<> ports(const YAML::Node& list) {
    if (list.IsNull()) {
      return Ok{};
    }
    if (!list.IsSequence()) {
      return error_at(list, "ports must be a list; each port begins with \"- name: ...\"");
    }
    for (const YAML::Node& node : list) {
      if (!node.IsMap()) {
        return error_at(node, "each of ports must be a map with name, socket and more");
      }
      std::vector<FieldText> fields;
      for (const auto& entry : node) {
        const auto text = text_of(entry.first, entry.second, ":");
        if (!text) {
          return text.error();
        }
        fields.emplace_back(entry.first.Scalar(), *text);
        if (const auto one = check_field(fields.back()); !one) {
          return error_at(entry.first, one.error().what);
        }
      }
      auto port = parse_port(fields);
      if (!port) {
        return error_at(node, port.error().what);
      }
      if (const auto added = add_port(config_, std::move(*port)); !added) {
        return error_at(node, added.error().what);
      }
    }
    return Ok{};
  }

  /// Judges one field alone, so that the error carries its own line and not that of the port.
  static Result<> check_field(const FieldText& field) {
    std::vector<FieldText> fields{{"name", "x"}, {"socket", "x"}};
    std::erase_if(fields, [&](const FieldText& other) { return other.first == field.first; });
    fields.push_back(field);
    const auto port = parse_port(fields);
    if (!port) {
      return port.error();
    }
    return Ok{};
  }

  /// A scalar's text; a list of scalars joined by `separator` (the form flags use).
  Result<std::string> text_of(const YAML::Node& name, const YAML::Node& value, std::string_view separator) const {
    if (value.IsScalar()) {
      return value.Scalar();
    }
    std::vector<std::string> items;
    for (const YAML::Node& item : value) {
      if (!value.IsSequence() || !item.IsScalar()) {
        break;
      }
      items.push_back(item.Scalar());
    }
    if (items.empty() || items.size() != value.size()) {
      return error_at(name, fmt::format("{} must have one value", name.Scalar()));
    }
    return fmt::format("{}", fmt::join(items, separator));
  }

  [[nodiscard]] Error error_at(const YAML::Node& node, std::string_view what) const {
    return invalid(fmt::format("{} line {}: {}", origin_, node.Mark().line + 1, what));
  }

  DaemonConfig& config_;
  std::string_view origin_;
};

}  // namespace

Result<> set_field(DaemonConfig& config, std::string_view name, const std::string& text) {
  const auto* const field = std::ranges::find(kFields, name, &DaemonField::name);
  if (field == std::end(kFields)) {
    return invalid(fmt::format("unknown field \"{}\"; the fields are {}", name, all_names()));
  }
  if (!field->set(config, text)) {
    return invalid(fmt::format("{} is \"{}\" but must be {}", name, text, field->allowed));
  }
  return Ok{};
}

Result<> add_port(DaemonConfig& config, PortConfig port) {
  for (const PortConfig& other : config.ports) {
    if (other.name == port.name) {
      return invalid(fmt::format("port name {} is used twice", port.name));
    }
    if (other.socket == port.socket) {
      return invalid(fmt::format("socket {} is used by both port {} and port {}", port.socket, other.name, port.name));
    }
    if (!port.tap.empty() && other.tap == port.tap) {
      return invalid(fmt::format("tap {} is used by both port {} and port {}", port.tap, other.name, port.name));
    }
  }
  config.ports.push_back(std::move(port));
  return Ok{};
}

Result<> apply_yaml(DaemonConfig& config, const std::string& text, std::string_view origin) {
  return YamlReader(config, origin).read(text);
}

Result<> apply_file(DaemonConfig& config, const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return errno_error("open", path);
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) {
    return errno_error("read", path);
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return invalid(fmt::format("{} is larger than 1 MiB", path));
  }
  return apply_yaml(config, text, path);
}

}  // namespace vxdp
