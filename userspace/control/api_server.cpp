// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/api_server.hpp"

#include <chrono>
#include <nlohmann/json.hpp>

#include "http_server.hpp"
#include "vxdp/control/json.hpp"
#include "vxdp/control/version.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kMaxRequestBytes = 1 << 20;

/// What a handler found out. The text is made later, on the server's thread: a long list costs the control
/// thread a copy, not its JSON.
struct Answer {
  int status = 200;
  std::function<Json()> body;
};

Answer failure(int status, const std::string& what) {
  return {status, [what] { return Json{{"error", what}}; }};
}

template <typename T>
Answer success(T value) {
  return {200, [value = std::move(value)] { return to_json(value); }};
}

/// The HTTP status of an error from the port manager. "Not found" means a port only where one was named.
Answer failure(const Error& error) {
  const bool ours = error.code.category() == std::generic_category();
  if (ours && error.code == std::errc::file_exists) {
    return failure(409, error.what);
  }
  if (ours && (error.code == std::errc::invalid_argument || error.code == std::errc::no_such_file_or_directory)) {
    return failure(400, error.what);
  }
  return failure(500, error.what);
}

class Server : public ApiServer {
 public:
  Server(int listener, EventLoop& loop, PortManager& ports)
      : loop_(loop), ports_(ports), http_(listener, kMaxRequestBytes) {
    http_.Get("/v1/version", [](const auto& /*request*/, auto& response) {
      send(response, {200, [] { return Json{{"version", version()}}; }});
    });
    http_.Get("/v1/ports", on_loop(&Server::list));
    http_.Post("/v1/ports", on_loop(&Server::add));
    http_.Get("/v1/ports/(.+)", on_loop(&Server::show));
    http_.Delete("/v1/ports/(.+)", on_loop(&Server::remove));
    http_.Post("/v1/ports/(.+)/program", on_loop(&Server::swap_program));
    http_.Get("/v1/stats", on_loop(&Server::stats));
  }

  Result<> start() { return http_.start(); }

 private:
  /// What a route does on the control thread: `name` is the port in the path, `body` the request's object.
  using Work = Answer (Server::*)(const std::string& name, const Json& body);

  static void send(httplib::Response& response, const Answer& answer) {
    response.status = answer.status;
    response.set_content(dump(answer.body()) + "\n", "application/json");
  }

  /// A handler that parses on its own thread, runs `work` on the control thread and sends what it answers.
  httplib::Server::Handler on_loop(Work work) {
    return [this, work](const httplib::Request& request, httplib::Response& response) {
      const std::string name = request.matches.size() > 1 ? request.matches[1] : std::string();
      const auto body = request.method == "POST" ? parse_object(request.body) : Json::object();
      if (!body) {
        return send(response, failure(400, body.error().what));
      }
      Answer answer = failure(503, "the daemon is stopping");
      loop_.call([&] { answer = (this->*work)(name, *body); });
      send(response, answer);
    };
  }

  Answer list(const std::string& /*name*/, const Json& /*body*/) {
    return {200, [ports = ports_.list()] {
              Json all = Json::array();
              for (const PortStatus& status : ports) {
                all.push_back(to_json(status));
              }
              return Json{{"ports", std::move(all)}};
            }};
  }

  Answer stats(const std::string& /*name*/, const Json& /*body*/) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return {200, [now, ports = ports_.list()] {
              Json all = Json::array();
              for (const PortStatus& status : ports) {
                all.push_back(stats_to_json(status));
              }
              return Json{{"monotonic_ns", std::chrono::nanoseconds(now).count()}, {"ports", std::move(all)}};
            }};
  }

  Answer show(const std::string& name, const Json& /*body*/) {
    const auto status = ports_.show(name);
    return status ? success(*status) : failure(404, status.error().what);
  }

  Answer add(const std::string& /*name*/, const Json& body) {
    auto config = port_from_json(body);
    if (!config) {
      return failure(400, config.error().what);
    }
    const std::string name = config->name;
    const auto added = ports_.add(std::move(*config));
    return added ? show(name, {}) : failure(added.error());
  }

  Answer remove(const std::string& name, const Json& /*body*/) {
    if (const auto status = ports_.show(name); !status) {
      return failure(404, status.error().what);
    }
    const auto removed = ports_.remove(name);
    return removed ? Answer{200, [name] { return Json{{"removed", name}}; }} : failure(removed.error());
  }

  Answer swap_program(const std::string& name, const Json& body) {
    if (const auto status = ports_.show(name); !status) {
      return failure(404, status.error().what);
    }
    std::string program;
    std::string redirect_to;
    for (const auto& [field, value] : body.items()) {
      if (field != "program" && field != "redirect-to") {
        return failure(400, "unknown field \"" + field + "\"; the fields are program and redirect-to");
      }
      if (!value.is_string()) {
        return failure(400, "field " + field + " must be text");
      }
      (field == "program" ? program : redirect_to) = value.get<std::string>();
    }
    if (program.empty()) {
      return failure(400,
                     "field program is missing; it must be pass, drop, redirect, none or the path of an object file");
    }
    const auto swapped = ports_.swap_program(name, program, redirect_to);
    return swapped ? success(*swapped) : failure(swapped.error());
  }

  EventLoop& loop_;
  PortManager& ports_;
  HttpServer http_;
};

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::start(int listener, EventLoop& loop, PortManager& ports) {
  auto server = std::make_unique<Server>(listener, loop, ports);
  if (const auto started = server->start(); !started) {
    return started.error();
  }
  return std::unique_ptr<ApiServer>(std::move(server));
}

}  // namespace vxdp
