// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/metrics_server.hpp"

#include <chrono>
#include <future>

#include "http_server.hpp"
#include "vxdp/control/version.hpp"
#include "vxdp/metrics/collector.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kMaxRequestBytes = 64 << 10;
constexpr std::chrono::seconds kHealthyTime{1};

/// Whether the control thread gets to posted work in time.
bool control_thread_answers(EventLoop& loop) {
  auto answered = std::make_shared<std::promise<void>>();
  const auto future = answered->get_future();
  loop.post([answered] { answered->set_value(); });
  return future.wait_for(kHealthyTime) == std::future_status::ready;
}

class Server : public MetricsServer {
 public:
  Server(Fd listener, EventLoop& loop, const MetricsRegistry& registry, NotReady not_ready)
      : listener_(std::move(listener)), http_(listener_.get(), kMaxRequestBytes) {
    http_.Get("/metrics", [&registry](const auto& /*request*/, auto& response) {
      response.set_content(metrics_text(registry, version()), "text/plain; version=0.0.4; charset=utf-8");
    });
    http_.Get("/healthz", [&loop](const auto& /*request*/, auto& response) {
      const bool healthy = control_thread_answers(loop);
      response.status = healthy ? 200 : 503;
      response.set_content(healthy ? "ok\n" : "the control thread did not answer within 1 second\n", "text/plain");
    });
    http_.Get("/readyz", [not_ready = std::move(not_ready)](const auto& /*request*/, auto& response) {
      const std::string why = not_ready();
      response.status = why.empty() ? 200 : 503;
      response.set_content((why.empty() ? "ready" : why) + "\n", "text/plain");
    });
  }

  Result<> start() { return http_.start(); }

 private:
  Fd listener_;
  HttpServer http_;
};

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(Fd listener, EventLoop& loop,
                                                            const MetricsRegistry& registry, NotReady not_ready) {
  auto server = std::make_unique<Server>(std::move(listener), loop, registry, std::move(not_ready));
  if (const auto started = server->start(); !started) {
    return started.error();
  }
  return std::unique_ptr<MetricsServer>(std::move(server));
}

}  // namespace vxdp
