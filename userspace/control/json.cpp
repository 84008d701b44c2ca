// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/json.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "vxdp/control/port_fields.hpp"
#include "vxdp/metrics/collector.hpp"

namespace vxdp {
namespace {

constexpr const char* kNumberFields[] = {"queues", "mtu", "busy-poll-us", "batch"};

bool is_number_field(const std::string& name) {
  return std::find(std::begin(kNumberFields), std::end(kNumberFields), name) != std::end(kNumberFields);
}

/// Total and the reasons that are not zero.
Json drops_to_json(const std::vector<std::uint64_t>& drops) {
  Json json{{"total", std::accumulate(drops.begin(), drops.end(), std::uint64_t{0})}};
  for (std::size_t reason = 0; reason < drops.size(); ++reason) {
    if (drops[reason] != 0) {
      auto& value = json[std::string(drop_reason_label(reason))];
      value = value.is_null() ? drops[reason] : value.get<std::uint64_t>() + drops[reason];
    }
  }
  return json;
}

Json to_json(const QueueStatus& queue) {
  return {{"queue", queue.queue},
          {"direction", queue.direction},
          {"running", queue.running},
          {"broken", queue.broken},
          {"ring_size", queue.ring_size},
          {"worker", queue.worker},
          {"frames_per_second", queue.frames_per_second},
          {"frames", queue.frames},
          {"bytes", queue.bytes},
          {"batches", queue.batches},
          {"kicks", queue.kicks},
          {"calls", queue.calls},
          {"calls_suppressed", queue.calls_suppressed},
          {"syscalls", queue.syscalls},
          {"ring_full", queue.ring_full},
          {"native", queue.native},
          {"generic", queue.generic},
          {"drops", drops_to_json(queue.drops)}};
}

Json to_json(const ProgramStats& stats) {
  Json actions = Json::object();
  for (std::size_t i = 0; i < std::min(kXdpActions, stats.action_frames.size()); ++i) {
    const std::uint64_t bytes = i < stats.action_bytes.size() ? stats.action_bytes[i] : 0;
    actions[std::string(xdp_action_label(i))] = Json{{"frames", stats.action_frames[i]}, {"bytes", bytes}};
  }
  return {{"program", stats.program},      {"tag", stats.tag},
          {"attached", stats.attached},    {"native", stats.native},
          {"actions", std::move(actions)}, {"drops", drops_to_json(stats.drop_frames)}};
}

template <typename T>
Json list_to_json(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) {
    list.push_back(to_json(item));
  }
  return list;
}

}  // namespace

Json to_json(const PortConfig& port) {
  Json json = Json::object();
  for (const auto& [name, text] : port_fields(port)) {
    if (is_number_field(name)) {
      json[name] = std::stoul(text);
    } else {
      json[name] = text;
    }
  }
  return json;
}

Json to_json(const ProgramInfo& program) {
  return {{"name", program.name},     {"origin", program.origin},
          {"tag", program.tag},       {"id", program.id},
          {"native", program.native}, {"generic_reason", program.generic_reason},
          {"counts", program.counts}, {"may_redirect", program.may_redirect}};
}

Json to_json(const PortStatus& status) {
  Json json = to_json(status.config);
  json["tap"] = status.tap;
  json["state"] = status.state;
  json["ifindex"] = status.ifindex;
  json["link_up"] = status.link_up;
  json["features"] = fmt::format("{:#x}", status.features);  // text: a JSON number is exact only to 53 bits
  json["submit_method"] = status.submit;
  json["submit_reason"] = status.submit_reason;
  json["program"] = status.program ? to_json(*status.program) : Json(nullptr);
  json["program_stats"] = list_to_json(status.program_stats);
  json["queue_stats"] = list_to_json(status.queues);
  return json;
}

Json stats_to_json(const PortStatus& status) {
  return {{"name", status.config.name},
          {"state", status.state},
          {"submit_method", status.submit},
          {"program_stats", list_to_json(status.program_stats)},
          {"queue_stats", list_to_json(status.queues)}};
}

Result<PortConfig> port_from_json(const Json& object) {
  std::vector<FieldText> fields;
  for (const auto& [name, value] : object.items()) {
    if (name == "tap-fd") {
      return invalid("port field tap-fd names a descriptor of another process; pass it to vhost-xdp run, or use tap");
    }
    if (value.is_string()) {
      fields.emplace_back(name, value.get<std::string>());
    } else if (value.is_number_integer()) {
      fields.emplace_back(name, value.dump());
    } else {
      return invalid(fmt::format("port field \"{}\" must be text or a whole number", name));
    }
  }
  return parse_port(fields);
}

Result<Json> parse_object(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return invalid("the request's body must be a JSON object");
  }
  return json;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace vxdp
