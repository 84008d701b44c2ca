// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "probe.hpp"
#include "report.hpp"
#include "table.hpp"

namespace vxdp {
namespace {

int run_probe(bool json) {
  utsname system{};
  ::uname(&system);
  Json list = Json::array();
  Table table({"", "FEATURE", "FOUND", "WITHOUT IT"});
  for (const Feature& feature : probe()) {
    list.push_back(Json{{"name", feature.name},
                        {"available", feature.available},
                        {"detail", feature.detail},
                        {"without", feature.without}});
    table.add({feature.available ? "yes" : "no", feature.title, feature.detail, feature.without});
  }
  if (json) {
    print_json(Json{{"kernel", system.release}, {"features", std::move(list)}});
  } else {
    fmt::print("kernel {}\n\n{}", system.release, table.text());
  }
  return 0;
}

}  // namespace

void add_probe_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("probe", "Tell what this kernel and these privileges offer");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &exit_code] { exit_code = run_probe(*json); });
}

}  // namespace vxdp
