// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/client.hpp"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "vxdp/control/listen.hpp"
#include "vxdp/control/version.hpp"

namespace vxdp {
namespace {

constexpr time_t kAnswerSeconds = 30;

/// httplib's client, connected to a unix socket.
class UnixClient : public httplib::ClientImpl {
 public:
  explicit UnixClient(std::string path) : ClientImpl("localhost", 80), path_(std::move(path)) {
    set_read_timeout(kAnswerSeconds);
    set_write_timeout(kAnswerSeconds);
  }

 private:
  bool create_and_connect_socket(Socket& socket, httplib::Error& error) override {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      if (fd >= 0) {
        ::close(fd);
      }
      error = httplib::Error::Connection;
      return false;
    }
    socket.sock = fd;
    return true;
  }

  std::string path_;
};

Result<std::string> request(const std::string& path, httplib::Request request) {
  if (!is_socket_path(path)) {
    return invalid(fmt::format("control path {} has {} bytes; 1 to 107 are possible", path, path.size()));
  }
  UnixClient client(path);
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  if (!client.send(request, response, error)) {
    if (error == httplib::Error::Connection) {
      return Error{std::make_error_code(std::errc::connection_refused),
                   fmt::format("cannot reach vhost-xdp at {}: is it running?", path)};
    }
    return Error{std::make_error_code(std::errc::io_error),
                 fmt::format("vhost-xdp at {} did not answer: {}", path, httplib::to_string(error))};
  }
  if (response.status == 200) {
    return std::move(response.body);
  }
  const auto body = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_object() && body.contains("error") && body["error"].is_string()) {
    return invalid(body["error"].get<std::string>());
  }
  return invalid(fmt::format("vhost-xdp at {} answered with status {}", path, response.status));
}

httplib::Request make_request(const char* method, const std::string& route) {
  httplib::Request request;
  request.method = method;
  request.path = route;
  return request;
}

}  // namespace

Result<std::string> Client::get(const std::string& route) const {
  return request(path_, make_request("GET", route));
}

Result<std::string> Client::post(const std::string& route, const std::string& json) const {
  auto post = make_request("POST", route);
  post.body = json;
  post.set_header("Content-Type", "application/json");
  return request(path_, std::move(post));
}

Result<std::string> Client::remove(const std::string& route) const {
  return request(path_, make_request("DELETE", route));
}

std::string route_part(const std::string& text) {
  std::string part;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '.' || c == '_' || c == '-') {
      part += c;
    } else {
      part += fmt::format("%{:02X}", byte);
    }
  }
  return part;
}

std::string_view version() noexcept {
  return VXDP_VERSION;
}

}  // namespace vxdp
