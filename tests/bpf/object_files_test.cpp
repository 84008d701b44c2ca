// SPDX-License-Identifier: Apache-2.0
// What is known of a program before the kernel sees it, and how refusals read. No privilege needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "built_in.hpp"
#include "libbpf_error.hpp"
#include "program_image.hpp"
#include "sandbox.hpp"

namespace vxdp {
namespace {

using ::testing::HasSubstr;
using testing::test_object;

bool redirects(const std::string& program) {
  const Result<bool> found = ProgramManager::may_redirect({program, ""});
  EXPECT_TRUE(found) << found.error().what;
  return found && *found;
}

TEST(ObjectFiles, OnlyProgramsWithARedirectOrTailCallMayRedirect) {
  EXPECT_FALSE(redirects("pass"));
  EXPECT_FALSE(redirects("drop"));
  EXPECT_TRUE(redirects("redirect"));
  EXPECT_FALSE(redirects(test_object("old_style")));
  EXPECT_FALSE(redirects(test_object("several")));
  EXPECT_TRUE(redirects(test_object("tail_call")));
  EXPECT_TRUE(redirects(test_object("subprogram_redirect")));
}

TEST(ObjectFiles, NameIsTheFileWithoutItsEndings) {
  const Result<ProgramImage> image = find_program(test_object("old_style"));
  ASSERT_TRUE(image);
  EXPECT_EQ(image->name, "old_style");
  EXPECT_EQ(image->origin, test_object("old_style"));
}

TEST(ObjectFiles, ABuiltInIsTheElfObjectAndNothingMore) {
  for (const char* name : {"pass", "drop", "redirect"}) {
    const auto object = built_in_object(name);
    ASSERT_GT(object.size(), 64U) << name;
    EXPECT_EQ(std::memcmp(object.data(), "\177ELF", 4), 0) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(object.data()) % 8, 0U) << name;
  }
  EXPECT_TRUE(built_in_object("nothing").empty());
}

class BadFiles : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::system(("rm -r " + folder_).c_str()); }
  std::string file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name) << content;
    return folder_ + "/" + name;
  }
  static std::string sentence(const std::string& program) {
    const Result<bool> found = ProgramManager::may_redirect({program, ""});
    return found ? "no error" : found.error().what;
  }
  std::string folder_ = "/tmp/vxdp-objects-XXXXXX";
};

TEST_F(BadFiles, EachGetsOneSentence) {
  EXPECT_EQ(sentence("passs"),
            "there is no XDP program \"passs\": neither one of the built-in pass, drop, redirect nor a file");
  EXPECT_THAT(sentence(""), HasSubstr("there is no XDP program \"\""));
  EXPECT_THAT(sentence(folder_), HasSubstr("is not a BPF object file"));
  EXPECT_THAT(sentence("/dev/zero"), HasSubstr("is not a BPF object file"));
  EXPECT_THAT(sentence(file("empty.o", "")), HasSubstr("is not a BPF object file"));
  EXPECT_THAT(sentence(file("text.o", "int main() { return 0; }\n")), HasSubstr("is not a BPF object file"));
  EXPECT_THAT(sentence("/proc/self/exe"), HasSubstr("is not a BPF object file"));
}

TEST_F(BadFiles, ACutObjectIsRefusedOrScannedButNeverReadBeyondItsEnd) {
  const auto whole = built_in_object("redirect");
  const std::string bytes(reinterpret_cast<const char*>(whole.data()), whole.size());
  for (std::size_t cut = 0; cut < bytes.size(); cut += 97) {
    ProgramImage image{"cut", "cut", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)}, false};
    (void)inspect(image);  // AddressSanitizer is the judge
  }
  EXPECT_THAT(sentence(file("cut.o", bytes.substr(0, 20))), HasSubstr("is not a BPF object file"));
}

TEST(VerifierReason, IsTheLastRemarkWithTheOneBefore) {
  EXPECT_EQ(verifier_reason("0: R1=ctx()\n"
                            "; const __u8 *frame\n"
                            "1: (71) r1 = *(u8 *)(r1 +100)\n"
                            "invalid access to packet, off=100 size=1\n"
                            "R1 offset is outside of the packet\n"
                            "processed 2 insns (limit 1000000) max_states_per_insn 0\n\n"),
            "invalid access to packet, off=100 size=1; R1 offset is outside of the packet");
  EXPECT_EQ(verifier_reason("5: (95) exit\nR0 !read_ok\nprocessed 1 insns\n"), "R0 !read_ok");
  EXPECT_EQ(verifier_reason("R0 !read_ok"), "R0 !read_ok");
  EXPECT_EQ(verifier_reason("processed 1 insns\n"), "");
  EXPECT_EQ(verifier_reason("\n\n"), "");
  EXPECT_EQ(verifier_reason(""), "");
}

}  // namespace
}  // namespace vxdp
