// SPDX-License-Identifier: Apache-2.0
#include "http_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

namespace vxdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kThreads = 4;
constexpr std::chrono::seconds kFirstByteTime{1};  // a client that connects and says nothing
constexpr std::chrono::seconds kRequestTime{5};    // from connect to the last byte of the answer, handler excluded
constexpr int kPauseAfterError_ms = 50;            // accept() failed, e.g. no descriptors left

/// A connection with a deadline for everything together, which also ends when the server stops.
class DeadlineStream : public httplib::Stream {
 public:
  DeadlineStream(int connection, int stop, std::size_t readable_bytes)
      : connection_(connection), stop_(stop), left_(readable_bytes) {}

  [[nodiscard]] bool is_readable() const override { return begin_ < end_ || wait(POLLIN, deadline_); }
  [[nodiscard]] bool is_writable() const override { return wait(POLLOUT, deadline_); }

  ssize_t read(char* out, std::size_t size) override {
    if (begin_ == end_ && !fill()) {
      return -1;
    }
    const std::size_t count = std::min(size, end_ - begin_);
    std::copy_n(&buffer_[begin_], count, out);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, std::size_t size) override {
    if (!answering_) {  // the time the handler took is not the client's fault
      answering_ = true;
      deadline_ = std::max(deadline_, Clock::now() + kRequestTime);
    }
    if (!wait(POLLOUT, deadline_)) {
      return -1;
    }
    return ::send(connection_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  [[nodiscard]] socket_t socket() const override { return connection_; }

 private:
  using Stream::write;

  bool fill() {
    if (left_ == 0 || !wait(POLLIN, first_ ? Clock::now() + kFirstByteTime : deadline_)) {
      return false;
    }
    first_ = false;
    const ssize_t got = ::recv(connection_, buffer_.data(), std::min(buffer_.size(), left_), MSG_DONTWAIT);
    begin_ = 0;
    end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
    left_ -= end_;
    return end_ > 0;
  }

  [[nodiscard]] bool wait(short events, Clock::time_point until) const {
    std::array<pollfd, 2> fds{{{connection_, events, 0}, {stop_, POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return left > 0 && ::poll(fds.data(), fds.size(), static_cast<int>(left)) > 0 && fds[1].revents == 0;
  }

  const int connection_;
  const int stop_;
  std::size_t left_;  // bytes this client may still send
  Clock::time_point deadline_ = Clock::now() + kRequestTime;
  bool first_ = true;
  bool answering_ = false;
  std::array<char, 4096> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace

HttpServer::HttpServer(int listener, std::size_t max_request_bytes)
    : listener_(listener), max_request_bytes_(max_request_bytes), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  set_payload_max_length(max_request_bytes);
  // A compressed body could be far larger than its bytes on the wire; no client of ours sends one.
  set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!request.has_header("Content-Encoding")) {
      return HandlerResponse::Unhandled;
    }
    response.status = 400;
    return HandlerResponse::Handled;
  });
  // Fills in the body of answers that httplib makes itself (404, 413, ...).
  set_error_handler([](const httplib::Request& /*request*/, httplib::Response& response) {
    if (response.body.empty()) {
      const std::string what = response.status == 404   ? "there is no such path"
                               : response.status == 413 ? "the request is larger than 1 MiB"
                                                        : "the request could not be understood";
      response.set_content(nlohmann::json{{"error", what}}.dump(), "application/json");
    }
  });
  set_exception_handler([](const httplib::Request& /*request*/, httplib::Response& response, std::exception_ptr cause) {
    std::string what = "unknown cause";
    try {
      std::rethrow_exception(std::move(cause));
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    response.status = 500;
    const auto body = nlohmann::json{{"error", "internal error: " + what}};
    response.set_content(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "application/json");
  });
}

Result<> HttpServer::start() {
  if (!stop_) {
    return errno_error("create", "eventfd");
  }
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { serve(); });
  }
  return Ok{};
}

void HttpServer::stop() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  for (auto& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

void HttpServer::serve() {
  std::array<pollfd, 2> fds{{{stop_.get(), POLLIN, 0}, {listener_, POLLIN, 0}}};
  for (;;) {
    const int ready = ::poll(fds.data(), fds.size(), -1);
    if (ready > 0 && fds[0].revents != 0) {
      return;
    }
    Fd connection(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      serve_connection(std::move(connection));
    } else if (errno != EAGAIN && errno != EINTR) {
      ::poll(fds.data(), 1, kPauseAfterError_ms);
    }
  }
}

void HttpServer::serve_connection(Fd connection) {
  DeadlineStream stream(connection.get(), stop_.get(), max_request_bytes_);
  bool closed = false;
  process_request(stream, /*close_connection=*/true, closed, nullptr);
  ::shutdown(connection.get(), SHUT_RDWR);
}

}  // namespace vxdp
