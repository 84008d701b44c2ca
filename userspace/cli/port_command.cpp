// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "report.hpp"
#include "table.hpp"
#include "vxdp/control/client.hpp"
#include "vxdp/control/port_fields.hpp"

namespace vxdp {
namespace {

struct PortOptions {
  std::string control;
  std::string subject;  // a port's name, or its fields for add
  bool json = false;
};

int run_add(const PortOptions& options) {
  auto port = parse_port_text(options.subject);
  if (!port) {
    return report_error(port.error());
  }
  if (!port->tap_fds.empty()) {
    return report_error(invalid(
        "port field tap-fd names a descriptor of this process, which the daemon does not have; use tap, or tap-fd "
        "with vhost-xdp run"));
  }
  // The daemon has another working directory.
  port->socket = std::filesystem::absolute(port->socket).lexically_normal().native();
  port->xdp = absolute_program(port->xdp);
  const auto answer = parse_answer(Client(options.control).post("/v1/ports", dump(to_json(*port))));
  if (!answer) {
    return report_error(answer.error());
  }
  if (options.json) {
    print_json(*answer);
  } else {
    fmt::print("added port {}: tap {}, socket {}\n", answer->value("name", ""), answer->value("tap", ""),
               answer->value("socket", ""));
  }
  return 0;
}

int run_remove(const PortOptions& options) {
  const auto answer = Client(options.control).remove("/v1/ports/" + route_part(options.subject));
  if (!answer) {
    return report_error(answer.error());
  }
  fmt::print("removed port {}\n", options.subject);
  return 0;
}

std::string program_text(const Json& port) {
  if (!port.contains("program") || port["program"].is_null()) {
    return "none";
  }
  const Json& program = port["program"];
  return fmt::format("{} ({})", program.value("name", ""), program.value("native", false) ? "native" : "generic");
}

int run_list(const PortOptions& options) {
  const auto answer = parse_answer(Client(options.control).get("/v1/ports"));
  if (!answer) {
    return report_error(answer.error());
  }
  if (options.json) {
    print_json(*answer);
    return 0;
  }
  Table table({"NAME", "STATE", "TAP", "LINK", ">QUEUES", "XDP", "SUBMIT", "MODE", "SOCKET"});
  for (const Json& port : (*answer)["ports"]) {
    table.add({port.value("name", ""), port.value("state", ""), port.value("tap", ""),
               port.value("link_up", false) ? "up" : "down", std::to_string(port.value("queues", 0)),
               program_text(port), port.value("submit_method", ""), port.value("mode", ""), port.value("socket", "")});
  }
  fmt::print("{}", table.empty() ? "no ports\n" : table.text());
  return 0;
}

std::string with_reason(std::string text, const std::string& reason) {
  return reason.empty() ? text : fmt::format("{} ({})", text, reason);
}

std::string drops_text(const Json& drops) {
  std::vector<std::string> parts;
  for (const auto& [reason, count] : drops.items()) {
    if (reason != "total") {
      parts.push_back(fmt::format("{} {}", reason, count.get<std::uint64_t>()));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_port(const Json& port) {
  const auto line = [](const char* name, const std::string& value) {
    if (!value.empty()) {
      fmt::print("{:<14}{}\n", name, value);
    }
  };
  line("name", port.value("name", ""));
  line("state", port.value("state", ""));
  line("socket", fmt::format("{} ({})", port.value("socket", ""), port.value("mode", "")));
  line("tap", fmt::format("{} (index {}, link {})", port.value("tap", ""), port.value("ifindex", 0),
                          port.value("link_up", false) ? "up" : "down"));
  line("queue pairs", std::to_string(port.value("queues", 0)));
  line("mtu", port.contains("mtu") ? std::to_string(port.value("mtu", 0)) : "");
  line("mac", port.value("mac", ""));
  line("batch", fmt::format("{} frames", port.value("batch", 0)));
  line("busy poll", fmt::format("{} us", port.value("busy-poll-us", 0)));
  line("submit", with_reason(port.value("submit_method", ""), port.value("submit_reason", "")));
  line("features", port.value("features", ""));
  line("xdp", program_text(port));
  if (port.contains("program") && port["program"].is_object()) {
    const Json& program = port["program"];
    line("  origin", program.value("origin", ""));
    line("  tag", fmt::format("{} (id {})", program.value("tag", ""), program.value("id", 0)));
    line("  generic", program.value("generic_reason", ""));
  }
  line("redirect to", port.value("redirect-to", ""));

  Table table({">QUEUE", "DIRECTION", "STATE", ">RING", ">WORKER", ">FRAMES/S", ">FRAMES", ">KICKS", ">CALLS",
               ">SYSCALLS", ">RING-FULL", ">DROPS", "REASONS"});
  for (const Json& queue : port["queue_stats"]) {
    table.add({std::to_string(queue.value("queue", 0)), queue.value("direction", ""),
               queue.value("broken", false)    ? "broken"
               : queue.value("running", false) ? "running"
                                               : "stopped",
               std::to_string(queue.value("ring_size", 0)), std::to_string(queue.value("worker", 0)),
               grouped(static_cast<std::uint64_t>(queue.value("frames_per_second", 0.0))),
               grouped(queue.value("frames", std::uint64_t{0})), grouped(queue.value("kicks", std::uint64_t{0})),
               grouped(queue.value("calls", std::uint64_t{0})), grouped(queue.value("syscalls", std::uint64_t{0})),
               grouped(queue.value("ring_full", std::uint64_t{0})),
               grouped(queue["drops"].value("total", std::uint64_t{0})), drops_text(queue["drops"])});
  }
  if (!table.empty()) {
    fmt::print("\n{}", table.text());
  }
}

int run_show(const PortOptions& options) {
  auto answer = parse_answer(Client(options.control).get("/v1/ports/" + route_part(options.subject)));
  if (!answer) {
    return report_error(answer.error());
  }
  if (options.json) {
    print_json(*answer);
  } else {
    print_port(*answer);
  }
  return 0;
}

}  // namespace

void add_port_command(CLI::App& app, int& exit_code) {
  CLI::App* port = app.add_subcommand("port", "Add, remove, list or show ports of a running daemon");
  port->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const PortOptions&)) {
    CLI::App* command = port->add_subcommand(name, help);
    auto options = std::make_shared<PortOptions>();
    add_control_option(*command, options->control);
    command->callback([options, run, &exit_code] { exit_code = run(*options); });
    return std::pair(command, options);
  };
  const auto [add_command, add_options] = add("add", "Add a port while the daemon runs", run_add);
  add_command
      ->add_option("fields", add_options->subject, "Its fields: name=vm0,socket=/run/vhost-xdp/vm0.sock,xdp=drop,...")
      ->required();
  add_command->add_flag("--json", add_options->json, "Print the port as JSON");
  const auto [remove_command, remove_options] =
      add("remove", "Remove a port; its guest sees the socket close", run_remove);
  remove_command->add_option("name", remove_options->subject, "Name of the port")->required();
  const auto [list_command, list_options] = add("list", "List all ports", run_list);
  list_command->add_flag("--json", list_options->json, "Print JSON");
  const auto [show_command, show_options] = add("show", "Show one port", run_show);
  show_command->add_option("name", show_options->subject, "Name of the port")->required();
  show_command->add_flag("--json", show_options->json, "Print JSON");
}

}  // namespace vxdp
