// Memory that begins or ends at a guard page.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace fuzz {

/// Pages between two guard pages. The requested memory ends at the second, or begins at the first, so that an access
/// one byte past its end, or before its beginning, ends the program.
class Guarded {
 public:
  Guarded() = default;
  Guarded(std::size_t bytes, bool against_end, unsigned char filled_with) : bytes_(bytes) {
    const std::size_t page = page_size();
    inside_ = (bytes + page - 1) / page * page;
    void* all = mmap(nullptr, inside_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    first_ = static_cast<std::byte*>(all) + page;
    if (inside_ > 0 && mprotect(first_, inside_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    data_ = against_end ? first_ + (inside_ - bytes) : first_;
    if (inside_ > 0) std::memset(first_, filled_with, inside_);
  }
  Guarded(Guarded&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)),
        data_(other.data_),
        bytes_(other.bytes_),
        inside_(other.inside_) {}
  Guarded& operator=(Guarded other) noexcept {
    std::swap(first_, other.first_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(inside_, other.inside_);
    return *this;
  }
  ~Guarded() {
    if (first_ != nullptr) munmap(first_ - page_size(), inside_ + 2 * page_size());
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  /// Makes further writes end the program.
  void forbid_writing() const {
    if (inside_ > 0 && mprotect(first_, inside_, PROT_READ) != 0) throw std::bad_alloc();
  }
  /// Whether every byte outside [data, data + size), up to the guard pages, is still `filled_with`.
  bool is_untouched_around(unsigned char filled_with) const {
    for (const std::byte* b = first_; b != first_ + inside_; ++b)
      if ((b < data_ || b >= data_ + bytes_) && *b != std::byte{filled_with}) return false;
    return true;
  }

 private:
  static std::size_t page_size() {
    static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return size;
  }

  std::byte* first_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, inside_ = 0;
};

}  // namespace fuzz
