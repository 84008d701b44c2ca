// SPDX-License-Identifier: Apache-2.0
// The API and the metrics server with real clients: ours, and raw ones that stall, shout or lie.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <future>
#include <nlohmann/json.hpp>

#include "fake_port_manager.hpp"
#include "vxdp/control/api_server.hpp"
#include "vxdp/control/client.hpp"
#include "vxdp/control/json.hpp"
#include "vxdp/control/listen.hpp"
#include "vxdp/control/metrics_server.hpp"

namespace vxdp {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

Fd connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.reset();
  }
  return fd;
}

/// All the peer sends until it closes.
std::string read_all(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd poll_fd{fd.get(), POLLIN, 0};
    const ssize_t got = ::poll(&poll_fd, 1, 10'000) > 0 ? ::recv(fd.get(), buffer, sizeof buffer, 0) : -1;
    if (got <= 0) {
      return text;
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

void send_all(const Fd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

class ApiTest : public ::testing::Test {
 protected:
  ApiTest()
      : path_(directory_ / "sub/control.sock"),
        listener_(std::move(*UnixListener::create(path_))),
        server_(std::move(*ApiServer::start(listener_.fd(), *loop_, ports_))),
        client_(path_) {}

  std::string raw(std::string_view request) {
    const Fd fd = connect_unix(path_);
    send_all(fd, request);
    return read_all(fd);
  }

  /// The ports belong to the loop's thread.
  void on_loop(const std::function<void()>& work) { ASSERT_TRUE((*loop_).call(work)); }

  testing::TemporaryDirectory directory_;
  std::string path_;
  testing::FakePortManager ports_;
  testing::LoopThread loop_;
  UnixListener listener_;
  std::unique_ptr<ApiServer> server_;
  Client client_;
};

TEST_F(ApiTest, PortsAreAddedShownListedAndRemoved) {
  const auto added = client_.post("/v1/ports", R"({"name":"vm0","socket":"/s0","queues":2,"xdp":"drop"})");
  ASSERT_TRUE(added) << added.error().what;
  EXPECT_EQ(parse_object(*added)->value("tap", ""), "vm0");
  on_loop([&] {
    ASSERT_EQ(ports_.ports.size(), 1u);
    EXPECT_EQ(ports_.ports[0].config.queues, 2u);
  });

  const auto shown = client_.get("/v1/ports/vm0");
  ASSERT_TRUE(shown);
  EXPECT_EQ(parse_object(*shown)->value("xdp", ""), "drop");
  EXPECT_EQ((*parse_object(*client_.get("/v1/ports")))["ports"].size(), 1u);
  EXPECT_EQ((*parse_object(*client_.get("/v1/stats")))["ports"][0]["name"], "vm0");
  EXPECT_GT(parse_object(*client_.get("/v1/stats"))->value("monotonic_ns", 0LL), 0);
  EXPECT_NE(parse_object(*client_.get("/v1/version"))->value("version", ""), "");

  EXPECT_TRUE(client_.remove("/v1/ports/vm0"));
  on_loop([&] { EXPECT_TRUE(ports_.ports.empty()); });
}

TEST_F(ApiTest, ProgramIsSwapped) {
  ASSERT_TRUE(client_.post("/v1/ports", R"({"name":"vm0","socket":"/s0"})"));
  const auto swapped = client_.post("/v1/ports/vm0/program", R"({"program":"redirect","redirect-to":"vm1"})");
  ASSERT_TRUE(swapped) << swapped.error().what;
  EXPECT_EQ(parse_object(*swapped)->value("name", ""), "redirect");
  on_loop([&] { EXPECT_EQ(ports_.last_swap, "vm0 redirect vm1"); });
}

TEST_F(ApiTest, ErrorsCarryTheSentenceAndTheStatus) {
  ASSERT_TRUE(client_.post("/v1/ports", R"({"name":"vm0","socket":"/s0"})"));
  const auto post = [&](const std::string& route, const std::string& body) {
    return raw("POST " + route + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
               body);
  };
  EXPECT_THAT(post("/v1/ports", R"({"name":"vm0","socket":"/s0"})"),
              AllOf(StartsWith("HTTP/1.1 409"), HasSubstr(R"({"error":"port vm0 exists"})")));
  EXPECT_THAT(post("/v1/ports", R"({"name":"vm1"})"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("socket")));
  EXPECT_THAT(post("/v1/ports", "hello"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("JSON object")));
  EXPECT_THAT(post("/v1/ports/vm9/program", R"({"program":"drop"})"),
              AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("vm9")));
  EXPECT_THAT(post("/v1/ports/vm0/program", R"({})"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("program")));
  EXPECT_THAT(post("/v1/ports/vm0/program", R"({"program":1})"),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("program")));
  EXPECT_THAT(post("/v1/ports/vm0/program", R"({"programme":"x"})"),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("programme")));
  EXPECT_THAT(raw("GET /v1/ports/vm9 HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(raw("DELETE /v1/ports/vm9 HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(raw("GET /nowhere HTTP/1.1\r\n\r\n"), AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("\"error\"")));
  EXPECT_THAT(raw("PUT /v1/ports HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"), StartsWith("HTTP/1.1 404"));

  on_loop([&] { ports_.next_error = errno_error("create", "tap vm1", EPERM); });
  EXPECT_THAT(post("/v1/ports", R"({"name":"vm1","socket":"/s1"})"),
              AllOf(StartsWith("HTTP/1.1 500"), HasSubstr("tap vm1")));
  on_loop([&] { ports_.next_error = errno_error("open", "/x.o", ENOENT); });
  EXPECT_THAT(post("/v1/ports/vm0/program", R"({"program":"/x.o"})"),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("/x.o")));
}

TEST_F(ApiTest, OurClientShowsTheDaemonsSentence) {
  const auto missing = client_.get("/v1/ports/" + route_part("a b/c%"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().what, "there is no port a b/c%");
}

TEST_F(ApiTest, GarbageIsAnsweredOrDroppedAndServiceGoesOn) {
  for (const std::string& request :
       {std::string("\0\xff\x01garbage\r\n\r\n", 14), std::string("GET\r\n\r\n"),
        "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n",
        "GET /v1/ports/" + std::string(8000, 'b') + " HTTP/1.1\r\n\r\n",
        "GET /v1/ports HTTP/1.1\r\nX: " + std::string(9000, 'c') + "\r\n\r\n",
        std::string("POST /v1/ports HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}"),
        std::string("POST /v1/ports HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
        std::string("POST /v1/ports HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    const Fd fd = connect_unix(path_);
    send_all(fd, request);
    ::shutdown(fd.get(), SHUT_WR);
    (void)read_all(fd);
    EXPECT_TRUE(client_.get("/v1/ports")) << request.substr(0, 60);
  }
  on_loop([&] { EXPECT_TRUE(ports_.ports.empty()); });
}

TEST_F(ApiTest, MoreThanOneMebibyteIsRefused) {
  const auto answer = client_.post("/v1/ports", R"({"name":")" + std::string(2 << 20, 'x') + "\"}");
  EXPECT_FALSE(answer);
  // No length told in advance: what counts is what comes.
  const Fd fd = connect_unix(path_);
  send_all(fd, "POST /v1/ports HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  std::string all;
  for (int i = 0; i < 40; ++i) {
    all += chunk;
  }
  send_all(fd, all);
  (void)read_all(fd);
  EXPECT_TRUE(client_.get("/v1/ports"));
}

TEST_F(ApiTest, SilentClientsHoldTheServiceOnlyForAMoment) {
  std::vector<Fd> silent;
  for (int i = 0; i < 4; ++i) {  // as many as there are threads
    silent.push_back(connect_unix(path_));
  }
  std::this_thread::sleep_for(50ms);
  const auto start = Clock::now();
  EXPECT_TRUE(client_.get("/v1/ports"));
  EXPECT_LT(Clock::now() - start, 2s);
  EXPECT_THAT(read_all(silent[0]), IsEmpty());  // and they were shown the door
}

TEST_F(ApiTest, AClientThatDripsIsCutOffAfterFiveSeconds) {
  const Fd fd = connect_unix(path_);
  const auto start = Clock::now();
  bool open = true;
  while (open && Clock::now() - start < 10s) {
    open = ::send(fd.get(), "X", 1, MSG_NOSIGNAL) == 1;
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_FALSE(open);
  EXPECT_GT(Clock::now() - start, 4s);
  EXPECT_LT(Clock::now() - start, 7s);
}

TEST_F(ApiTest, AClientThatDoesNotReadDoesNotBlockTheControlThread) {
  on_loop([&] {
    PortStatus status;
    status.queues.resize(32);
    ports_.ports.assign(200, status);  // an answer of megabytes, far more than a socket's buffer
  });
  const Fd fd = connect_unix(path_);
  send_all(fd, "GET /v1/ports HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(300ms);
  const auto start = Clock::now();
  EXPECT_TRUE((*loop_).call([] {}));
  EXPECT_LT(Clock::now() - start, 1s);
  EXPECT_TRUE(client_.get("/v1/version"));
}

TEST_F(ApiTest, RequestsAreRefusedOnceTheLoopHasEnded) {
  loop_.stop();
  const auto answer = client_.get("/v1/ports");
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().what, HasSubstr("stopping"));
}

TEST_F(ApiTest, StoppingDoesNotWaitForSilentClients) {
  const Fd fd = connect_unix(path_);
  send_all(fd, "GET /v1");
  std::this_thread::sleep_for(50ms);
  const auto start = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - start, 500ms);
}

TEST(Client, SaysWhenNobodyIsThere) {
  const testing::TemporaryDirectory directory;
  const auto answer = Client(directory / "none.sock").get("/v1/ports");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().what, "cannot reach vhost-xdp at " + (directory / "none.sock") + ": is it running?");
  const auto too_long = Client("/" + std::string(107, 'x')).get("/v1/ports");
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().what, HasSubstr("108 bytes"));
}

TEST(UnixListener, ModeDirectoryAndCleanUp) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "a/b/c.sock";
  {
    const auto listener = UnixListener::create(path);
    ASSERT_TRUE(listener) << listener.error().what;
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0660u);
    ASSERT_EQ(::stat((directory / "a/b").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0755u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(UnixListener, SecondDaemonIsRefusedAndAStaleSocketReplaced) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "c.sock";
  {
    const auto first = UnixListener::create(path);
    ASSERT_TRUE(first);
    const auto second = UnixListener::create(path);
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().what, AllOf(HasSubstr("another daemon"), HasSubstr(path)));
    EXPECT_TRUE(std::filesystem::exists(path));  // the refused one took nothing away
  }
  {
    Fd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(UnixListener::create(path));
}

TEST(UnixListener, OtherFilesAreNotTouched) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "file";
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  const auto listener = UnixListener::create(path);
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().what, HasSubstr("not a socket"));
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_FALSE(UnixListener::create(path + "/x.sock"));
}

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Port 0 is not for users, so the test asks the kernel for a free one itself.
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address_;
    ASSERT_EQ(::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address_), bytes), 0);
    ASSERT_EQ(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address_), &bytes), 0);
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(address_.sin_port)); }

  void start() {
    auto listener = listen_tcp(address());
    ASSERT_TRUE(listener) << listener.error().what;
    server_ = std::move(*MetricsServer::start(std::move(*listener), *loop_, registry_, [this] {
      return ready_ ? std::string() : std::string("port vm0 is not up");
    }));
  }

  Fd connect() const {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    return fd;
  }

  std::string get(const std::string& path) const {
    const Fd fd = connect();
    send_all(fd, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return read_all(fd);
  }

  sockaddr_in address_{};
  MetricsRegistry registry_;
  std::atomic<bool> ready_{false};
  testing::LoopThread loop_;
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsTest, MetricsHealthAndReadiness) {
  start();
  registry_.add_port(std::make_shared<PortMetrics>("vm0", 1));
  EXPECT_THAT(get("/metrics"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/plain; version=0.0.4"),
                                     HasSubstr("vxdp_session_connects_total{port=\"vm0\"} 0")));
  EXPECT_THAT(get("/healthz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nok\n")));
  EXPECT_THAT(get("/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("port vm0 is not up")));
  ready_ = true;
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 404"));
}

TEST_F(MetricsTest, AHangingControlThreadIsUnhealthyButStillScraped) {
  start();
  std::promise<void> release;
  (*loop_).post([future = release.get_future().share()] { future.wait(); });
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 200"));
  release.set_value();
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsTest, SilentTcpClientsHoldTheServiceOnlyForAMoment) {
  start();
  std::vector<Fd> silent;
  for (int i = 0; i < 4; ++i) {
    silent.push_back(connect());
  }
  std::this_thread::sleep_for(50ms);
  const auto begin = Clock::now();
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(Clock::now() - begin, 2s);
}

TEST_F(MetricsTest, AnAddressInUseIsOneSentence) {
  start();
  const auto second = listen_tcp(address());
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().what, AllOf(HasSubstr(address()), HasSubstr("in use")));
  const auto unknown = listen_tcp("no.such.host.invalid:1");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().what, HasSubstr("no.such.host.invalid:1"));
}

TEST(Address, IsSplit) {
  EXPECT_EQ(*split_address("127.0.0.1:9477"), (std::pair<std::string, std::string>("127.0.0.1", "9477")));
  EXPECT_EQ(*split_address("[::1]:80"), (std::pair<std::string, std::string>("::1", "80")));
  for (const char* bad : {"", "9477", ":9477", "a:", "a:0", "a:65536", "a:b", "::1:80", "[]:80"}) {
    EXPECT_FALSE(split_address(bad)) << bad;
  }
}

}  // namespace
}  // namespace vxdp
