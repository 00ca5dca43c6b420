// Parameters in a file that Python reads too: the format safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "parameter.h"

namespace nn {

/// A file that is not as it should be. The message names it.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a file says of itself: its text "__metadata__".
using Metadata = std::map<std::string, std::string>;

/// Writes the values of all parameters, as F32 or F64, beside the file, and then puts that in its place, so that the
/// last good file stays if anything fails. @throws FileError also if a number is not finite: no file holds a model that
/// went wrong.
template <class T>
void save_safetensors(const std::filesystem::path& file, const std::vector<Parameter<T>>& parameters,
                      const Metadata& metadata);

/// A file that was opened and whose header was checked: names, shapes, and that they fill the file without overlap.
class SafeTensors {
 public:
  /// @throws FileError
  explicit SafeTensors(const std::filesystem::path& file);

  const Metadata& metadata() const { return metadata_; }
  /// A text of the metadata. @throws FileError if it is missing.
  const std::string& text(const std::string& key) const;
  /// A whole number of the metadata. @throws FileError unless it is one in lowest … highest.
  Index number(const std::string& key, Index lowest, Index highest) const;

  /// Reads the values of all parameters; nothing but them may be in the file. F32 and F64 are converted.
  /// @throws FileError for what is missing, superfluous, of another shape, or not finite; some parameters may have been
  /// read then.
  template <class T>
  void load(const std::vector<Parameter<T>>& parameters) const;

 private:
  struct Entry {
    bool is_double;
    std::vector<Index> shape;
    std::size_t begin, end;  // bytes of data_
  };
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
  std::vector<char> data_;
};

}  // namespace nn
