#include "new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

namespace nn {

namespace {

/// Name of the file that is being written, for signal handlers. Only one at a time: the most recently opened.
std::atomic<const char*> unfinished{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free);

std::filesystem::path behind_links(std::filesystem::path file) {
  constexpr int kMostLinks = 40;  // Linux's limit
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, ignored); ++i)
    file = file.parent_path() / std::filesystem::read_symlink(file, ignored);
  return file;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& file) : file_(file), target_(behind_links(file)), part_(target_) {
  std::error_code ignored;
  const auto status = std::filesystem::status(target_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw FileError(file_.string() + ": cannot be written: it is not a regular file");
  part_ += ".part";
  descriptor_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(errno);
  unfinished = part_.c_str();
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  unfinished = nullptr;
  ::close(descriptor_);
  ::unlink(part_.c_str());
}

void NewFile::write(const void* bytes, std::size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count > 0;) {
    const ::ssize_t written = ::write(descriptor_, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    at += written;
    count -= static_cast<std::size_t>(written);
  }
}

void NewFile::put_in_place() {
  // The new file takes over the permissions of the old one.
  struct ::stat old {};
  if (::stat(target_.c_str(), &old) == 0) (void)!::fchmod(descriptor_, old.st_mode & 07777);
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail(errno);  // EINVAL: the file does not support synchronisation
  if (::rename(part_.c_str(), target_.c_str()) != 0) fail(errno);
  unfinished = nullptr;
  ::close(descriptor_);
  descriptor_ = -1;
  // Synchronises the folder, which holds the new name. If this fails, the file is still correct.
  const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

void NewFile::fail(int error) const {
  throw FileError(file_.string() + ": cannot be written: " + std::generic_category().message(error));
}

void remove_unfinished() noexcept {
  if (const char* part = unfinished) ::unlink(part);
}

}  // namespace nn
