// SPDX-License-Identifier: Apache-2.0
// Whole runs of the guest, from the command line to the exit status, against a back end that echoes every frame.
#include "guest/guest_command.hpp"

#include <gtest/gtest.h>
#include <sys/un.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "unit/guest/test_back_end.hpp"

namespace vxdp {
namespace {

using testing::TestBackEnd;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
  nlohmann::json json;
  std::string complaint;  // of the back end
};

class GuestCommand : public ::testing::Test {
 protected:
  GuestCommand() {
    char name[] = "/tmp/vxdp-guest-XXXXXX";
    if (::mkdtemp(name) == nullptr) {
      throw std::runtime_error("mkdtemp");
    }
    folder_ = name;
    path_ = folder_ / "s";
  }
  ~GuestCommand() override { std::filesystem::remove_all(folder_); }

  Outcome run(const std::string& arguments) {
    CLI::App app("test");
    Outcome outcome;
    add_guest_command(app, outcome.exit_code);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    try {
      app.parse("guest --socket " + path_.string() + " " + arguments);
    } catch (const CLI::Error& e) {
      ADD_FAILURE() << e.what();
    }
    std::fflush(stdout);
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  /// Runs with --json against a back end.
  Outcome run_against(TestBackEnd::Behaviour behaviour, const std::string& arguments,
                      const std::string& timeout = "5") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    const Fd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    std::unique_ptr<TestBackEnd> back_end;
    std::thread accepts([&] {
      back_end = std::make_unique<TestBackEnd>(Fd(::accept(listener.get(), nullptr, nullptr)), std::move(behaviour));
    });
    Outcome outcome = run(arguments + " --json --timeout " + timeout);
    ::shutdown(listener.get(), SHUT_RDWR);  // also ends an accept() that nobody came to
    accepts.join();
    back_end->join();
    outcome.complaint = back_end->complaint();
    if (!outcome.out.empty()) {
      outcome.json = nlohmann::json::parse(outcome.out);
    }
    std::filesystem::remove(path_);
    return outcome;
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(GuestCommand, EveryFrameComesBackWhateverTheRing) {
  for (const char* arguments :
       {"", "--layout separate --indirect --no-event-idx", "--layout split --regions 8 --bytes 1514 --no-mergeable",
        "--layout split --indirect --frame udp --bytes 66", "--bytes 9014 --frame tcp --ring-size 64",
        "--bytes 65535 --regions 3", "--queues 3 --frame udp --bytes 300 --poll", "--layout separate --ring-size 8"}) {
    const Outcome outcome = run_against({}, std::string("--send 1000 --receive --verify --expect 1000 ") + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out << outcome.err;
    EXPECT_EQ(outcome.json.value("sent", 0), 1000) << arguments;
    EXPECT_EQ(outcome.json.value("acknowledged", 0), 1000) << arguments;
    EXPECT_EQ(outcome.json.value("received", 0), 1000) << arguments;
    EXPECT_EQ(outcome.json["verify"].value("good", 0), 1000) << arguments;
    EXPECT_EQ(outcome.complaint, "") << arguments;
  }
}

TEST_F(GuestCommand, TenThousandFramesOverAFullRingWithoutPolling) {
  const Outcome outcome = run_against({}, "--send 10001 --receive --verify --expect 10001 --queues 2 --ring-size 32");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.json.value("acknowledged", 0), 10001);
}

TEST_F(GuestCommand, FaultsOfTheBackEndAreFoundAndNamed) {
  using Frames = std::vector<std::vector<std::byte>>;
  using Frame = std::vector<std::byte>;
  const auto counts_with = [&](auto change) {
    TestBackEnd::Behaviour behaviour;
    behaviour.change = change;
    const Outcome outcome = run_against(behaviour, "--send 500 --receive --verify");
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.json.value("acknowledged", 0), 500);
    EXPECT_NE(outcome.json.value("fault", ""), "");
    return outcome.json["verify"];
  };
  EXPECT_EQ(counts_with([](unsigned n, Frame f) { return n % 50 == 0 && n < 500 ? Frames{} : Frames{f}; })["lost"], 9);
  EXPECT_EQ(counts_with([](unsigned n, Frame f) { return n % 50 == 0 ? Frames{f, f} : Frames{f}; })["duplicated"], 10);
  EXPECT_EQ(counts_with([](unsigned n, Frame f) {
              f[40] ^= n % 50 == 0 ? std::byte{1} : std::byte{0};
              return Frames{f};
            })["corrupted"],
            10);
  EXPECT_EQ(counts_with([held = Frames()](unsigned n, Frame f) mutable {
              if (n % 50 == 1) {
                held = {f};
                return Frames{};
              }
              return n % 50 == 2 ? Frames{f, held[0]} : Frames{f};
            })["reordered"],
            10);
}

TEST_F(GuestCommand, MissingTheExpectedFramesIsAFaultAfterTheTimeout) {
  TestBackEnd::Behaviour behaviour;
  behaviour.change = [](unsigned n, std::vector<std::byte> frame) {
    return n > 90 ? std::vector<std::vector<std::byte>>{} : std::vector<std::vector<std::byte>>{std::move(frame)};
  };
  const Outcome outcome = run_against(behaviour, "--send 100 --receive --verify --expect 100", "0.5");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.json["verify"].value("good", 0), 90);
}

TEST_F(GuestCommand, FramesNobodyTakesAreAFaultInTime) {
  TestBackEnd::Behaviour behaviour;
  behaviour.echo = false;
  const Outcome outcome = run_against(behaviour, "--send 1000", "0.5");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.json.value("acknowledged", 1), 0);
  EXPECT_EQ(outcome.json.value("sent", 0), 256) << "a full ring";
}

TEST_F(GuestCommand, TheRateIsKept) {
  const Outcome outcome = run_against({}, "--rate 2000 --seconds 0.5");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NEAR(outcome.json.value("sent", 0), 1000, 100);
  EXPECT_EQ(outcome.json.value("received", 1), 0) << "nobody asked to receive";
}

TEST_F(GuestCommand, ABackEndWithoutTheFeatureIsOneSentence) {
  TestBackEnd::Behaviour behaviour;
  behaviour.features = feature_bit(VIRTIO_F_VERSION_1) | feature_bit(kVhostUserFProtocolFeatures);
  for (const char* arguments : {"--indirect", "--mergeable", "--event-idx", "--frame udp --bytes 80 --csum",
                                "--frame tcp --bytes 3000 --gso", "--queues 2", "--receive-offloads"}) {
    const Outcome outcome = run_against(behaviour, std::string("--send 10 ") + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_EQ(run_against(behaviour, "--send 10").exit_code, 0) << "what is not offered is not needed";
}

TEST_F(GuestCommand, ImpossibleOptionsAreOneSentenceAndStatusTwo) {
  for (const char* arguments : {"",
                                "--send 0",
                                "--send 1 --bytes 13",
                                "--send 1 --bytes 65536",
                                "--send 1 --bytes 53 --frame tcp",
                                "--send 1 --queues 0",
                                "--send 1 --ring-size 100",
                                "--send 1 --ring-size 65536",
                                "--send 1 --regions 9",
                                "--seconds 0",
                                "--send 1 --rate -1",
                                "--send 1 --verify",
                                "--send 1 --csum",
                                "--send 1 --gso",
                                "--send 1 --src-mac x",
                                "--send 1 --dst-ip 1.2.3",
                                "--send 1 --cpu 9999",
                                "--receive --expect 5",
                                "--send 1 --timeout 0",
                                "--send 1"}) {  // the last: nobody listens
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace vxdp
