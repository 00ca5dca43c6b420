// Files of the training programs: reading, writing, and files that are never overwritten.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "files.h"
#include "printable.h"
#include "safetensors.h"
#include "training_page.h"

namespace {

namespace fs = std::filesystem;
using namespace training;

class TrainingFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("attn_training_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// The error message of f(); empty if it does not throw.
  template <class F>
  std::string error_of(const F& f) {
    try {
      f();
    } catch (const nn::FileError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "";
  }

  /// Requires a single file to be writable.
  static void require(const std::string& option, const fs::path& file) {
    require_writable({{option, file}}, {}, "this program");
  }

  fs::path folder_;
};

TEST_F(TrainingFiles, RoundTrips) {
  const fs::path file = folder_ / "text";
  const std::string text("a\0b\n\xff", 5);
  write_file(file, text);
  EXPECT_EQ(read_file(file), text);
  write_file(file, "");
  EXPECT_EQ(read_file(file), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "no other file remains";
}

TEST_F(TrainingFiles, ErrorsNameTheFile) {
  EXPECT_EQ(error_of([&] { read_file(folder_ / "nix"); }), (folder_ / "nix").string() + ": there is no such file");
  EXPECT_EQ(error_of([&] { read_file(folder_); }), folder_.string() + ": is not a file");
  write_file(folder_ / "text", "12345");
  EXPECT_EQ(error_of([&] { read_file(folder_ / "text", 4); }),
            (folder_ / "text").string() + ": has 5 bytes, more than 4");
  const fs::path nowhere = folder_ / "no" / "such" / "folder";
  const std::string gone = ": cannot be written: No such file or directory",
                    odd = ": cannot be written: it is not a regular file";
  EXPECT_EQ(error_of([&] { write_file(nowhere, "x"); }), nowhere.string() + gone);
  EXPECT_EQ(error_of([&] { require("--save", nowhere); }), nowhere.string() + gone);
  EXPECT_EQ(error_of([&] { require("--save", folder_); }), folder_.string() + odd);
  EXPECT_EQ(error_of([&] { write_file("/dev/null", "x"); }), "/dev/null" + odd);
}

TEST_F(TrainingFiles, AFailedWriteLeavesTheLastFile) {
  const fs::path file = folder_ / "text";
  write_file(file, "good");
  fs::create_directory(folder_ / "text.part");  // blocks the temporary file
  EXPECT_EQ(error_of([&] { require("--save", file); }), file.string() + ": cannot be written: Is a directory");
  EXPECT_EQ(error_of([&] { write_file(file, "new"); }), file.string() + ": cannot be written: Is a directory");
  EXPECT_EQ(read_file(file), "good");
}

TEST_F(TrainingFiles, RequiringAWritableFileChangesNothing) {
  const fs::path file = folder_ / "text";
  require("--report", file);
  EXPECT_TRUE(fs::is_empty(folder_));
  write_file(file, "<!DOCTYPE html>");
  require("--report", file);
  EXPECT_EQ(read_file(file), "<!DOCTYPE html>");
}

TEST_F(TrainingFiles, OtherFilesAreNotOverwritten) {
  const fs::path file = folder_ / "file";
  const auto refused = [&](const std::string& option) {
    const std::string before = read_file(file), error = error_of([&] { require(option, file); });
    EXPECT_EQ(read_file(file), before);
    if (!error.empty()) {
      EXPECT_EQ(error, file.string() + ": is not a file that " + option + " writes, so it is not overwritten");
    }
    return !error.empty();
  };
  write_file(file, "The only copy of a text.");
  for (const char* option : {"--save", "--report", "--loss-curve", "--map"}) EXPECT_TRUE(refused(option)) << option;
  write_file(file, "");
  for (const char* option : {"--save", "--report", "--loss-curve", "--map"}) EXPECT_FALSE(refused(option)) << option;
  write_file(file, report_html(attn::test::small_report()));
  EXPECT_FALSE(refused("--report"));
  EXPECT_TRUE(refused("--loss-curve"));
  write_file(file, loss_curve_svg({}, ""));
  EXPECT_FALSE(refused("--loss-curve"));
  EXPECT_TRUE(refused("--report"));
  nn::save_safetensors<float>(file, {}, {{"format", "this program"}});
  EXPECT_FALSE(refused("--save"));
  nn::save_safetensors<float>(file, {}, {{"format", "another program"}});
  EXPECT_TRUE(refused("--save"));
  nn::save_safetensors<float>(file, {}, {});
  EXPECT_TRUE(refused("--save"));
}

TEST_F(TrainingFiles, NoFileIsNamedTwice) {
  const fs::path file = folder_ / "file", same = folder_ / "." / "file", link = folder_ / "link";
  const auto refused = [&](const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
    return error_of([&] { require_writable(written, read, ""); }).find("is named by --") != std::string::npos;
  };
  EXPECT_TRUE(refused({{"--save", file}, {"--report", same}}, {})) << "even if the file does not exist yet";
  EXPECT_TRUE(refused({{"--save", file}}, {{"--data", same}}));
  EXPECT_FALSE(refused({{"--save", file}, {"--report", folder_ / "other"}}, {{"--data", folder_ / "text"}}));
  EXPECT_FALSE(refused({{"--save", ""}, {"--report", ""}}, {{"--data", ""}}));
  write_file(file, "");
  fs::create_symlink("file", link);
  EXPECT_TRUE(refused({{"--save", link}}, {{"--data", file}}));
}

TEST_F(TrainingFiles, SymbolicLinksAreKept) {
  write_file(folder_ / "file", "old");
  fs::create_symlink("file", folder_ / "link");
  write_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "file"), "new");
  fs::create_symlink("not there yet", folder_ / "another");
  write_file(folder_ / "another", "text");
  EXPECT_EQ(read_file(folder_ / "not there yet"), "text");
}

TEST_F(TrainingFiles, ReplacedFilesKeepTheirPermissions) {
  write_file(folder_ / "file", "old");
  fs::permissions(folder_ / "file", fs::perms::owner_read | fs::perms::owner_write);
  write_file(folder_ / "file", "new");
  EXPECT_EQ(fs::status(folder_ / "file").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(TrainingFiles, FullDisksGiveTheSystemsMessage) {
  write_file(folder_ / "file", "good");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { write_file(folder_ / "file", std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(error, (folder_ / "file").string() + ": cannot be written: File too large");
  EXPECT_EQ(read_file(folder_ / "file"), "good");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "no partial file remains";
}

TEST(Printable, NothingMovesTheCursor) {
  EXPECT_EQ(nn::as_line("good \xF0\x9F\x98\x80"), "good \U0001F600");
  EXPECT_EQ(nn::as_line("a\nb\rc\td\x1B[2J\x7F"), "a b c d [2J ");
  EXPECT_EQ(nn::as_line("a\xC2\x9B"
                        "31m\xE2\x80\xA8"
                        "b"),
            "a 31m b")
      << "control characters of two and three bytes";
  EXPECT_EQ(nn::as_line("\xFF\xE4\xBDz"), "\uFFFD\uFFFD\uFFFDz");
  EXPECT_EQ(nn::as_line(std::string_view("a\0b", 3)), "a b");
  EXPECT_EQ(nn::as_text("a\n\tb\x1B"), "a\n\tb ");
}

TEST(Printable, NamesOfFilesAreQuotedAndShort) {
  EXPECT_EQ(nn::in_quotes("a \"b\" 好"), "\"a \"b\" 好\"");
  EXPECT_EQ(nn::in_quotes(std::string(1'000'000, 'x')), '"' + std::string(60, 'x') + "\u2026\"");
  EXPECT_EQ(nn::shown(std::string(60, 'x')), std::string(60, 'x'));
  EXPECT_EQ(nn::shown(std::string(59, 'x') + "好久"), std::string(59, 'x') + "好\u2026");
}

}  // namespace
