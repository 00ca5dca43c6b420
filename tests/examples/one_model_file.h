// A test's own file, and the messages that loading it as a model gives.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "files.h"
#include "new_file.h"
#include "support/allocations.h"

/// A file with the name of the test, which is removed after it.
class OneModelFile : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::path(testing::TempDir()) /
            (std::string("attn_") + testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "_" +
             testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(file_); }

  /// Returns the error message of load(file) without the file's name, empty if the file is accepted. Checks that the
  /// peak memory is at most a few times the file's size.
  template <class Load>
  std::string error_of(const std::string& bytes, const Load& load) {
    training::write_file(file_, bytes);
    std::string message;
    const auto taken = attn::test::allocations_of([&] {
      try {
        load(file_);
      } catch (const nn::FileError& error) {
        message = error.what();
      }
    });
    EXPECT_LE(taken.peak, static_cast<std::ptrdiff_t>(40 * bytes.size() + (1 << 20)));
    if (message.empty()) return message;
    EXPECT_EQ(message.rfind(file_.string() + ": ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), file_.string().size() + 300) << message;
    return message.substr(std::min(message.size(), file_.string().size() + 2));
  }

  std::filesystem::path file_;
};
