// SPDX-License-Identifier: Apache-2.0
// Ports that are only remembered, and a loop that runs beside the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "vxdp/port/port_manager.hpp"

namespace vxdp::testing {

class FakePortManager : public PortManager {
 public:
  Result<> add(PortConfig config) override {
    if (!next_error.what.empty()) {
      return std::exchange(next_error, Error{});
    }
    if (find(config.name) != nullptr) {
      return Error{std::make_error_code(std::errc::file_exists), "port " + config.name + " exists"};
    }
    PortStatus status;
    status.tap = config.tap.empty() ? config.name : config.tap;
    status.config = std::move(config);
    status.state = "waiting";
    ports.push_back(std::move(status));
    return Ok{};
  }
  Result<> remove(const std::string& name) override {
    std::erase_if(ports, [&](const auto& port) { return port.config.name == name; });
    return Ok{};
  }
  [[nodiscard]] std::vector<PortStatus> list() const override { return ports; }
  [[nodiscard]] Result<PortStatus> show(const std::string& name) const override {
    const auto* const port = find(name);
    if (port == nullptr) {
      return Error{std::make_error_code(std::errc::no_such_file_or_directory), "there is no port " + name};
    }
    return *port;
  }
  Result<ProgramInfo> swap_program(const std::string& name, const std::string& program,
                                   const std::string& redirect_to) override {
    if (!next_error.what.empty()) {
      return std::exchange(next_error, Error{});
    }
    last_swap = name + " " + program + " " + redirect_to;
    ProgramInfo info;
    info.name = program;
    info.native = true;
    return info;
  }

  std::vector<PortStatus> ports;
  Error next_error;
  std::string last_swap;

 private:
  [[nodiscard]] const PortStatus* find(const std::string& name) const {
    for (const auto& port : ports) {
      if (port.config.name == name) {
        return &port;
      }
    }
    return nullptr;
  }
};

class LoopThread {
 public:
  LoopThread() : loop_(std::move(*EventLoop::create())), thread_([this] { loop_->run(); }) {}
  ~LoopThread() { stop(); }
  EventLoop& operator*() { return *loop_; }
  void stop() {
    loop_->stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

/// A new directory, gone with all it holds at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vxdp-test-XXXXXX").native();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace vxdp::testing
