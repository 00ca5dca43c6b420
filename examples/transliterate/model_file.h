// Reads the file of a trained model: named float32 arrays. The file is untrusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <attn/attn.h>

namespace transliterate {

/// A file that cannot be used. The message is one line: the file's name, then what is wrong with it.
class FileError : public std::runtime_error {
 public:
  FileError(const std::string& file, const std::string& what_is_wrong)
      : std::runtime_error(file + ": " + what_is_wrong) {}
};

/// The variables of a model file, accessed by name. Each is requested with the shape that the network needs.
///
/// Layout, little-endian: u32 version (2), string spec ("TransformerBase"), u32 revision, u32 number of variables; for
/// each variable: string name, u8 rank, u32 sizes[rank], u8 bytes per item (4: float32), u32 number of items, items. A
/// string is a u16 length followed by that many bytes, the last of which is NUL.
class ModelFile {
 public:
  using Matrix = attn::TensorView<const float, 2>;
  using Vector = attn::TensorView<const float, 1>;

  /// Reads a file. @throws FileError if it cannot be read, is not such a model, is truncated or has trailing bytes.
  static ModelFile load(const std::filesystem::path& path);

  /// Reads a stream of `size` bytes; `name` is for messages.
  static ModelFile read(std::istream& in, std::uint64_t size, const std::string& name);

  bool contains(const std::string& variable) const { return variables_.contains(variable); }

  /// Returns a variable of two dimensions, of any size. Views are valid as long as this object.
  Matrix matrix(const std::string& variable);

  /// Returns a variable of exactly this shape. @throws FileError if it is missing or has another shape.
  Matrix matrix(const std::string& variable, attn::Index rows, attn::Index columns);
  Vector vector(const std::string& variable, attn::Index size);

  /// @throws FileError if a variable was never requested: then the file describes a network other than the one built.
  void require_all_used() const;

  const std::string& name() const { return name_; }

 private:
  struct Variable {
    std::vector<attn::Index> shape;
    std::vector<float> items;
  };

  explicit ModelFile(std::string name) : name_(std::move(name)) {}
  const Variable& use(const std::string& variable, std::size_t rank);
  [[noreturn]] void fail(const std::string& what_is_wrong) const { throw FileError(name_, what_is_wrong); }

  std::string name_;
  std::map<std::string, Variable> variables_;
  std::set<std::string> used_;
};

/// Returns sizes as messages show them: "43 x 32".
std::string shape_text(const std::vector<attn::Index>& shape);

}  // namespace transliterate
