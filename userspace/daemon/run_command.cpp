// SPDX-License-Identifier: Apache-2.0
#include "run_command.hpp"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <optional>

#include "cli/report.hpp"
#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/log.hpp"
#include "vxdp/control/api_server.hpp"
#include "vxdp/control/config.hpp"
#include "vxdp/control/listen.hpp"
#include "vxdp/control/metrics_server.hpp"
#include "vxdp/control/port_fields.hpp"
#include "vxdp/control/version.hpp"
#include "vxdp/port/port_manager.hpp"

namespace vxdp {
namespace {

struct RunOptions {
  std::string file;
  std::vector<std::string> ports;
  std::vector<std::pair<const char*, std::optional<std::string>>> fields = {
      {"metrics", {}}, {"control", {}}, {"workers", {}}, {"cpus", {}}, {"log-level", {}}, {"log-format", {}}};
};

/// The file first, then flags over it.
Result<DaemonConfig> configure(const RunOptions& options) {
  DaemonConfig config;
  if (!options.file.empty()) {
    if (const auto applied = apply_file(config, options.file); !applied) {
      return applied.error();
    }
  }
  for (const auto& [name, text] : options.fields) {
    if (!text) {
      continue;
    }
    if (const auto set = set_field(config, name, *text); !set) {
      return invalid(std::string("--") + set.error().what);
    }
  }
  for (const std::string& text : options.ports) {
    auto port = parse_port_text(text);
    const auto added = port ? add_port(config, std::move(*port)) : port.error();
    if (!added) {
      return invalid("--port " + text + ": " + added.error().what);
    }
  }
  for (const PortConfig& port : config.ports) {
    if (const auto checked = check(port); !checked) {
      return checked.error();
    }
  }
  return config;
}

/// SIGINT and SIGTERM as a descriptor, for this thread and those it starts.
Result<Fd> take_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  Fd fd(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  return fd ? Result<Fd>(std::move(fd)) : errno_error("create", "signalfd");
}

/// A queue pair has about ten descriptors, more than the usual limit of 1024 allows for many ports.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// The parts of the daemon, in the order they are made; they end in the opposite order.
class Daemon {
 public:
  explicit Daemon(DaemonConfig config) : config_(std::move(config)) {}

  /// Runs until a signal; the first thing that fails ends it, with all ports taken down.
  Result<> run() {
    if (auto ready = prepare(); !ready) {
      return ready;
    }
    loop_->post([this] { add_ports(); });
    loop_->run();
    metrics_server_.reset();
    api_server_.reset();
    return outcome_;
  }

 private:
  /// Everything that can fail before a port exists. Sockets first: they are what a second daemon trips over.
  Result<> prepare() {
    if (auto configured = configure_log(config_.log_level, config_.log_format); !configured) {
      return configured;
    }
    raise_descriptor_limit();
    auto signals = take_signals();
    if (!signals) {
      return signals.error();
    }
    signals_ = std::move(*signals);
    auto control = UnixListener::create(config_.control);
    if (!control) {
      return control.error();
    }
    control_.emplace(std::move(*control));
    Fd metrics;
    if (config_.metrics != "none") {
      auto listener = listen_tcp(config_.metrics);
      if (!listener) {
        return listener.error();
      }
      metrics = std::move(*listener);
    }
    auto loop = EventLoop::create();
    if (!loop) {
      return loop.error();
    }
    loop_ = std::move(*loop);
    const auto default_workers = static_cast<unsigned>(std::clamp<std::size_t>(config_.cpus.size(), 1, 64));
    auto ports = PortManager::create(*loop_, registry_, {config_.workers.value_or(default_workers), config_.cpus});
    if (!ports) {
      return ports.error();
    }
    ports_ = std::move(*ports);
    return serve(std::move(metrics));
  }

  Result<> serve(Fd metrics) {
    if (auto watched = loop_->add(signals_.get(), EPOLLIN, [this](std::uint32_t /*events*/) { stop("signal"); });
        !watched) {
      return watched;
    }
    if (metrics) {
      auto server = MetricsServer::start(std::move(metrics), *loop_, registry_, [this] {
        return ready_ ? std::string() : std::string("the configured ports are not all up yet");
      });
      if (!server) {
        return server.error();
      }
      metrics_server_ = std::move(*server);
    }
    // Last: its handlers wait for a loop that, should anything fail here, never runs.
    auto api = ApiServer::start(control_->fd(), *loop_, *ports_);
    if (!api) {
      return api.error();
    }
    api_server_ = std::move(*api);
    return Ok{};
  }

  void add_ports() {
    for (const PortConfig& port : config_.ports) {
      outcome_ = ports_->add(port);
      if (!outcome_) {
        return stop("a port cannot be added");
      }
    }
    ready_ = true;
    log_info("vhost-xdp {} is ready: {} ports, control socket {}, metrics {}", version(), config_.ports.size(),
             config_.control, config_.metrics == "none" ? "off" : "http://" + config_.metrics + "/metrics");
  }

  void stop(std::string_view why) {
    log_info("stopping: {}", why);
    ready_ = false;
    for (const PortStatus& port : ports_->list()) {
      if (const auto removed = ports_->remove(port.config.name); !removed) {
        log_warn("{}", removed.error().what);
      }
    }
    loop_->stop();
  }

  const DaemonConfig config_;
  Result<> outcome_ = Ok{};
  std::atomic<bool> ready_{false};
  Fd signals_;
  MetricsRegistry registry_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<PortManager> ports_;
  std::optional<UnixListener> control_;
  std::unique_ptr<ApiServer> api_server_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

int run(const RunOptions& options) {
  auto config = configure(options);
  if (!config) {
    return report_error(config.error());
  }
  const auto outcome = Daemon(std::move(*config)).run();
  return outcome ? 0 : report_error(outcome.error());
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("run", "Run the daemon");
  auto options = std::make_shared<RunOptions>();
  command->add_option("--config", options->file, "YAML file; flags override what it says");
  command
      ->add_option("--port", options->ports,
                   "A port: name=vm0,socket=/run/vhost-xdp/vm0.sock and any of mode, tap, tap-fd, queues, xdp,\n"
                   "redirect-to, mtu, mac, busy-poll-us, batch, submit. May be given many times")
      ->allow_extra_args(false);
  const char* const help[] = {"Address of /metrics, /healthz and /readyz, or none (default 127.0.0.1:9477)",
                              "Control socket (default /run/vhost-xdp/control.sock)",
                              "Worker threads, 1 to 64 (default: one for each of --cpus)",
                              "CPUs to pin workers to, such as 1,3",
                              "debug, info, warn or error (default info)",
                              "text or json (default text)"};
  for (std::size_t i = 0; i < options->fields.size(); ++i) {
    command->add_option(std::string("--") + options->fields[i].first, options->fields[i].second, help[i]);
  }
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace vxdp
