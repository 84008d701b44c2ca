// SPDX-License-Identifier: Apache-2.0
#include "vxdp/port/port_manager.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "port/port.hpp"
#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{1000};
constexpr unsigned kMaxWorkers = 64;

class Manager final : public PortManager {
 public:
  Manager(EventLoop& loop, MetricsRegistry& registry) : loop_(loop), registry_(registry), last_tick_(Clock::now()) {
    timer_ = loop_.after(kTick, [this] { tick(); });
  }
  ~Manager() override {
    loop_.cancel(timer_);
    for (const auto& port : ports_) {
      registry_.remove_port(port->config().name);
    }
    ports_.clear();  // before the workers
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  Result<> start_workers(const WorkerPlan& plan) {
    if (plan.workers < 1 || plan.workers > kMaxWorkers) {
      return invalid(fmt::format("workers={} is not within 1 to {}", plan.workers, kMaxWorkers));
    }
    for (unsigned index = 0; index < plan.workers; ++index) {
      const auto cpu = plan.cpus.empty() ? std::nullopt : std::optional(plan.cpus[index % plan.cpus.size()]);
      auto counters = std::make_shared<WorkerCounters>();
      auto worker = Worker::create(index, cpu, counters);
      if (!worker) {
        return worker.error();
      }
      registry_.add_worker(std::move(counters));
      workers_.push_back(std::move(*worker));
    }
    return Ok{};
  }

  Result<> add(PortConfig config) override {
    if (config.tap.empty() && config.tap_fds.empty()) {
      config.tap = config.name;
    }
    if (auto checked = check(config); !checked) {
      return checked;
    }
    for (const auto& port : ports_) {
      const PortConfig& other = port->config();
      const auto taken = [&](const char* field, const std::string& value) {
        return Error{std::make_error_code(std::errc::file_exists),
                     fmt::format("port {}: {} {} is taken by port {}", config.name, field, value, other.name)};
      };
      if (other.name == config.name) {
        return Error{std::make_error_code(std::errc::file_exists),
                     fmt::format("there is a port {} already", config.name)};
      }
      if (other.socket == config.socket) {
        return taken("socket", config.socket);
      }
      if (port->tap_name() == config.tap) {
        return taken("tap", config.tap);
      }
    }
    auto port = Port::create(config, {config.xdp, interface_of(config.redirect_to)}, loop_, workers_);
    if (!port) {
      // Errors from further down name their object; the port's name is added where it is missing.
      Error error = port.error();
      const std::string prefix = fmt::format("port {}: ", config.name);
      error.what = error.what.starts_with(prefix) ? error.what : prefix + error.what;
      return error;
    }
    registry_.add_port((*port)->metrics());
    ports_.push_back(std::move(*port));
    return Ok{};
  }

  Result<> remove(const std::string& name) override {
    const auto found = find(name);
    if (found == ports_.end()) {
      return no_such(name);
    }
    registry_.remove_port(name);
    ports_.erase(found);
    log_info("port {}: removed", name);
    return Ok{};
  }

  [[nodiscard]] std::vector<PortStatus> list() const override {
    std::vector<PortStatus> all;
    for (const auto& port : ports_) {
      all.push_back(port->status());
    }
    return all;
  }

  [[nodiscard]] Result<PortStatus> show(const std::string& name) const override {
    const auto found = find(name);
    if (found == ports_.end()) {
      return no_such(name);
    }
    return (*found)->status();
  }

  Result<ProgramInfo> swap_program(const std::string& name, const std::string& program,
                                   const std::string& redirect_to) override {
    const auto found = find(name);
    if (found == ports_.end()) {
      return no_such(name);
    }
    if (program == "redirect" && redirect_to.empty()) {
      return invalid(fmt::format("port {}: program redirect needs a port or interface to redirect to", name));
    }
    return (*found)->swap_program(program, redirect_to, {program, interface_of(redirect_to)});
  }

 private:
  [[nodiscard]] std::vector<std::unique_ptr<Port>>::const_iterator find(const std::string& name) const {
    return std::find_if(ports_.begin(), ports_.end(), [&](const auto& port) { return port->config().name == name; });
  }

  static Error no_such(const std::string& name) {
    return {std::make_error_code(std::errc::no_such_file_or_directory), fmt::format("there is no port {}", name)};
  }

  /// The TAP of the port of that name, else the name itself, an interface's.
  [[nodiscard]] std::string interface_of(const std::string& target) const {
    const auto found = find(target);
    return found == ports_.end() ? target : (*found)->tap_name();
  }

  void tick() {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_tick_).count();
    last_tick_ = now;
    for (const auto& port : ports_) {
      port->tick(seconds);
    }
    timer_ = loop_.after(kTick, [this] { tick(); });
  }

  EventLoop& loop_;
  MetricsRegistry& registry_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Port>> ports_;
  Clock::time_point last_tick_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace

Result<std::unique_ptr<PortManager>> PortManager::create(EventLoop& loop, MetricsRegistry& registry,
                                                         const WorkerPlan& plan) {
  auto manager = std::make_unique<Manager>(loop, registry);
  if (auto started = manager->start_workers(plan); !started) {
    return started.error();
  }
  return std::unique_ptr<PortManager>(std::move(manager));
}

}  // namespace vxdp
