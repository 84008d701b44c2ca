// SPDX-License-Identifier: Apache-2.0
// One guest port: socket and session on one side, TAP and XDP program on the other, queue pairs between.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "port/port_socket.hpp"
#include "vxdp/backend/tap_device.hpp"
#include "vxdp/base/event_loop.hpp"
#include "vxdp/dataplane/queue_pair.hpp"
#include "vxdp/dataplane/worker.hpp"
#include "vxdp/port/port_config.hpp"
#include "vxdp/vhost_user/session.hpp"
#include "vxdp/xdp/program_manager.hpp"

namespace vxdp {

/// Control thread.
class Port final : public DeviceListener {
 public:
  /// A port that waits for its front-end. `choice`: its XDP program, names resolved; empty program = none.
  /// Each queue pair goes to the worker with the fewest. References outlive the port.
  static Result<std::unique_ptr<Port>> create(PortConfig config, const ProgramChoice& choice, EventLoop& loop,
                                              const std::vector<std::unique_ptr<Worker>>& workers);
  ~Port() override;

  [[nodiscard]] const PortConfig& config() const noexcept { return config_; }
  [[nodiscard]] const std::string& tap_name() const noexcept { return tap_.name(); }
  [[nodiscard]] const std::shared_ptr<PortMetrics>& metrics() const noexcept { return metrics_; }
  [[nodiscard]] PortStatus status() const;

  /// Replaces the XDP program in one step; on error what ran before runs on.
  Result<ProgramInfo> swap_program(const std::string& program, const std::string& redirect_to,
                                   const ProgramChoice& choice);

  /// Once a second: rates, rings found broken, an interface that was deleted.
  void tick(double seconds);

  // DeviceListener
  [[nodiscard]] std::uint64_t features() const override;
  [[nodiscard]] unsigned vring_limit() const override { return config_.queues * 2; }
  [[nodiscard]] std::uint16_t mtu() const override { return config_.mtu.value_or(0); }
  Result<> set_features(std::uint64_t acknowledged) override;
  Result<> set_memory(std::shared_ptr<const GuestMemory> memory) override;
  Result<> start_vring(unsigned index, VringConfig config) override;
  std::uint16_t stop_vring(unsigned index) override;
  Result<> set_mtu(std::uint16_t mtu) override;
  void send_rarp(const std::uint8_t* mac) override;

 private:
  /// A queue pair and where it runs.
  struct Lane {
    std::unique_ptr<QueuePair> pair;
    Worker* worker = nullptr;
    std::array<std::uint16_t, 2> ring_size{};  // to_guest, from_guest; 0 = not running
    bool discards = false;                     // from_guest runs only to give frames back
    std::shared_ptr<const GuestMemory> memory;
    std::array<std::uint64_t, 2> frames_before{};  // for the rates
    std::array<bool, 2> broken_logged{};
    [[nodiscard]] bool running() const noexcept { return ring_size[0] != 0 || (ring_size[1] != 0 && !discards); }
  };

  Port(PortConfig config, EventLoop& loop, TapDevice tap);
  Result<> add_lanes(const std::vector<std::unique_ptr<Worker>>& workers);
  Result<std::unique_ptr<Backend>> make_backend(unsigned queue) const;
  Result<ProgramInfo> attach_program(const ProgramChoice& choice);
  void publish_program(const std::optional<ProgramInfo>& info);
  void synchronize_workers();
  void tell_interface();
  void connected(Fd socket);
  void disconnected();
  void update_link();
  void update_rates(Lane& lane, double seconds);
  void report_broken(Lane& lane, unsigned queue);
  void revive_interface();
  Result<> rebuild_interface();
  [[nodiscard]] std::uint32_t largest_frame_to_guest(std::uint64_t features) const;
  void remember_submit();

  PortConfig config_;
  EventLoop& loop_;
  TapDevice tap_;
  std::shared_ptr<PortMetrics> metrics_;
  std::shared_ptr<ProgramManager> program_;
  ProgramChoice choice_;
  bool redirects_at_start_ = false;
  XdpPath path_;
  std::vector<Lane> lanes_;
  std::uint64_t acknowledged_ = 0;
  bool interface_lost_logged_ = false;
  std::unique_ptr<PortSocket> socket_;
  std::unique_ptr<Session> session_;  // last: its destructor still calls stop_vring()
};

}  // namespace vxdp
