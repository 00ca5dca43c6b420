// Parameters in files of the safetensors format, which Python reads too.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "new_file.h"
#include "parameter.h"

namespace nn {

/// The file's own metadata, its entry "__metadata__".
using Metadata = std::map<std::string, std::string>;

/// Writes the values of all parameters, as F32 or F64, to a NewFile. @throws FileError also for a value that is not
/// finite, so that no file holds a model whose training diverged.
template <class T>
void save_safetensors(const std::filesystem::path& file, const std::vector<Parameter<T>>& parameters,
                      const Metadata& metadata);

/// A file whose header was read and checked: names, shapes, and that the tensors fill the file without overlap.
class SafeTensors {
 public:
  /// @throws FileError
  explicit SafeTensors(const std::filesystem::path& file);

  const Metadata& metadata() const { return metadata_; }
  /// Returns an entry of the metadata. @throws FileError if it is missing.
  const std::string& text(const std::string& key) const;
  /// Returns an entry of the metadata as an integer. @throws FileError unless it is one in lowest … highest.
  Index number(const std::string& key, Index lowest, Index highest) const;

  /// Reads the values of all parameters; the file may hold no other tensors. Converts between F32 and F64. Needs a few
  /// KiB of memory in addition to the parameters.
  /// @throws FileError for a tensor that is missing, superfluous, of another shape or not finite; some parameters may
  /// have been read by then.
  template <class T>
  void load(const std::vector<Parameter<T>>& parameters) const;

 private:
  struct Entry {
    bool is_double;
    std::vector<Index> shape;
    std::size_t begin, end;  // bytes after the header
  };
  template <class Stored, class T>
  void read(std::istream& in, const Parameter<T>& p, const Entry& entry) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
  std::size_t first_ = 0;  // first byte after the header
};

/// Returns the entry "format" of a file's metadata, which says which program wrote it; empty if the file has none or
/// cannot be read.
std::string format_of(const std::filesystem::path& file);

}  // namespace nn
