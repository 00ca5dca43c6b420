// Parameters in a file that Python reads too: the format safetensors.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "new_file.h"
#include "parameter.h"

namespace nn {

/// What a file says of itself: its text "__metadata__".
using Metadata = std::map<std::string, std::string>;

/// Writes the values of all parameters, as F32 or F64, to a NewFile. @throws FileError also if a number is not finite,
/// so that no file holds a model that went wrong.
template <class T>
void save_safetensors(const std::filesystem::path& file, const std::vector<Parameter<T>>& parameters,
                      const Metadata& metadata);

/// A file whose header was read and checked: names, shapes, and that they fill the file without overlap.
class SafeTensors {
 public:
  /// @throws FileError
  explicit SafeTensors(const std::filesystem::path& file);

  const Metadata& metadata() const { return metadata_; }
  /// A text of the metadata. @throws FileError if it is missing.
  const std::string& text(const std::string& key) const;
  /// A whole number of the metadata. @throws FileError unless it is one in lowest … highest.
  Index number(const std::string& key, Index lowest, Index highest) const;

  /// Reads the values of all parameters; nothing else may be in the file. F32 and F64 are converted. Takes some KiB of
  /// memory beside the parameters' own.
  /// @throws FileError for what is missing, superfluous, of another shape, or not finite; some parameters may have been
  /// read by then.
  template <class T>
  void load(const std::vector<Parameter<T>>& parameters) const;

 private:
  struct Entry {
    bool is_double;
    std::vector<Index> shape;
    std::size_t begin, end;  // bytes behind the header
  };
  template <class Stored, class T>
  void read(std::istream& in, const Parameter<T>& p, const Entry& entry) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
  std::size_t first_ = 0;  // the byte behind the header
};

/// The text "format" of a file's metadata, which says which program wrote it. Empty for a file of another kind, or
/// none.
std::string format_of(const std::filesystem::path& file);

}  // namespace nn
