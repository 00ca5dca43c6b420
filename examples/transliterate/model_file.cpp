#include "model_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string_view>

#include "../nn/printable.h"

namespace transliterate {

namespace {

constexpr std::uint32_t kVersion = 2;
constexpr std::string_view kSpec = "TransformerBase";
constexpr std::uint32_t kRevision = 2;

// Arrays of a Transformer have at most two dimensions, (out, in); the limit only keeps messages short.
constexpr std::uint8_t kMaxRank = 4;

/// Reads numbers and strings from a stream and tracks how many bytes are left, so that every size that the file claims
/// is checked against its actual length first.
class Reader {
 public:
  Reader(std::istream& in, std::uint64_t size, const std::string& name) : in_(in), size_(size), name_(name) {}

  /// Names the item being read, for messages.
  void now_reading(std::string what) { what_ = std::move(what); }

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() { return little_endian(4); }

  std::string string() {
    const std::uint16_t length = u16();
    require_left(length);
    std::string bytes(length, '\0');
    take(bytes.data(), length);
    if (bytes.empty() || bytes.back() != '\0') fail("does not end with a zero byte");
    bytes.pop_back();
    if (bytes.find('\0') != std::string::npos) fail("has a zero byte inside");
    return bytes;
  }

  std::vector<float> floats(std::uint32_t count) {
    static_assert(
        std::endian::native == std::endian::little && std::numeric_limits<float>::is_iec559 && sizeof(float) == 4,
        "items are copied from the file without conversion");
    const std::uint64_t bytes = std::uint64_t{count} * sizeof(float);
    require_left(bytes);
    std::vector<float> items(count);
    take(reinterpret_cast<char*>(items.data()), bytes);
    return items;
  }

  std::uint64_t left() const { return size_ - position_; }

  [[noreturn]] void fail(const std::string& what_is_wrong) const {
    throw FileError(name_, what_ + ' ' + what_is_wrong);
  }

 private:
  std::uint32_t little_endian(unsigned bytes) {
    require_left(bytes);
    unsigned char raw[4] = {};
    take(reinterpret_cast<char*>(raw), bytes);
    std::uint32_t value = 0;
    for (unsigned i = 0; i < bytes; ++i) value |= std::uint32_t{raw[i]} << (8 * i);
    return value;
  }

  void require_left(std::uint64_t bytes) const {
    if (bytes > left())
      throw FileError(name_, "truncated: " + what_ + " needs " + std::to_string(bytes) + " bytes at offset " +
                                 std::to_string(position_) + ", but only " + std::to_string(left()) + " are left");
  }

  void take(char* to, std::uint64_t bytes) {
    if (!in_.read(to, static_cast<std::streamsize>(bytes))) throw FileError(name_, "cannot be read to its end");
    position_ += bytes;
  }

  std::istream& in_;
  std::uint64_t size_;
  std::uint64_t position_ = 0;
  const std::string& name_;
  std::string what_;
};

void read_header(Reader& reader, const std::string& name) {
  reader.now_reading("the version");
  const std::uint32_t version = reader.u32();
  constexpr std::uint32_t kPlausibleVersions = 1000;  // text and other formats begin with far larger numbers
  if (version > kPlausibleVersions) throw FileError(name, "not a model file (it does not begin with a version)");
  if (version != kVersion)
    throw FileError(name, "model file version " + std::to_string(version) + ", but only version " +
                              std::to_string(kVersion) + " can be read");
  reader.now_reading("the name of the network");
  const std::string spec = reader.string();
  if (spec != kSpec)
    throw FileError(name, "holds a network of the kind " + nn::in_quotes(spec) + ", but only " + nn::in_quotes(kSpec) +
                              " can be read");
  reader.now_reading("the revision");
  const std::uint32_t revision = reader.u32();
  if (revision != kRevision)
    throw FileError(name, "revision " + std::to_string(revision) + " of the network, but only revision " +
                              std::to_string(kRevision) + " can be read");
}

}  // namespace

std::string shape_text(const std::vector<attn::Index>& shape) {
  std::string text;
  for (const attn::Index size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text.empty() ? "a single number" : text;
}

ModelFile ModelFile::load(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw FileError(name, "there is no such file");
  if (!std::filesystem::is_regular_file(status)) throw FileError(name, "not a regular file");
  const std::uint64_t size = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) throw FileError(name, "cannot be opened");
  return read(in, size, name);
}

ModelFile ModelFile::read(std::istream& in, std::uint64_t size, const std::string& name) {
  if (size == 0) throw FileError(name, "the file is empty");
  Reader reader(in, size, name);
  read_header(reader, name);
  reader.now_reading("the number of variables");
  const std::uint32_t variables = reader.u32();

  ModelFile file(name);
  for (std::uint32_t i = 0; i < variables; ++i) {
    reader.now_reading("the name of variable " + std::to_string(i + 1) + " of " + std::to_string(variables));
    const std::string variable_name = reader.string();
    reader.now_reading("variable " + nn::in_quotes(variable_name));

    Variable variable;
    const std::uint8_t rank = reader.u8();
    if (rank > kMaxRank) reader.fail("claims " + std::to_string(rank) + " dimensions");
    // Capped at 2^32, which no count reaches, so that the next factor, below 2^32, cannot overflow it.
    std::uint64_t product = 1;
    for (std::uint8_t d = 0; d < rank; ++d) {
      const std::uint32_t dimension = reader.u32();
      variable.shape.push_back(static_cast<attn::Index>(dimension));
      product = std::min(product * dimension, std::uint64_t{1} << 32);
    }
    const std::uint8_t item_size = reader.u8();
    if (item_size != sizeof(float))
      reader.fail("has items of " + std::to_string(item_size) + " bytes, but only float32 (4) can be read");
    const std::uint32_t count = reader.u32();
    if (count != product)
      reader.fail("claims " + std::to_string(count) + " items for the shape " + shape_text(variable.shape));
    variable.items = reader.floats(count);
    if (!std::all_of(variable.items.begin(), variable.items.end(), [](float x) { return std::isfinite(x); }))
      reader.fail("holds a number that is not finite");
    if (!file.variables_.emplace(variable_name, std::move(variable)).second) reader.fail("appears twice");
  }
  if (reader.left() > 0)
    throw FileError(
        name, std::to_string(reader.left()) + " bytes follow the last of " + std::to_string(variables) + " variables");
  return file;
}

const ModelFile::Variable& ModelFile::use(const std::string& variable, std::size_t rank) {
  const auto found = variables_.find(variable);
  if (found == variables_.end()) fail("variable \"" + variable + "\" is missing");
  if (found->second.shape.size() != rank)
    fail("variable \"" + variable + "\" has the shape " + shape_text(found->second.shape) + ", but " +
         std::to_string(rank) + " dimensions are needed");
  used_.insert(variable);
  return found->second;
}

ModelFile::Matrix ModelFile::matrix(const std::string& variable) {
  const Variable& found = use(variable, 2);
  return {found.items.data(), {found.shape[0], found.shape[1]}};
}

ModelFile::Matrix ModelFile::matrix(const std::string& variable, attn::Index rows, attn::Index columns) {
  const Matrix found = matrix(variable);
  if (found.dim(0) != rows || found.dim(1) != columns)
    fail("variable \"" + variable + "\" has the shape " + shape_text({found.dim(0), found.dim(1)}) + ", but " +
         shape_text({rows, columns}) + " is needed");
  return found;
}

ModelFile::Vector ModelFile::vector(const std::string& variable, attn::Index size) {
  const Variable& found = use(variable, 1);
  if (found.shape[0] != size)
    fail("variable \"" + variable + "\" has " + std::to_string(found.shape[0]) + " items, but " + std::to_string(size) +
         " are needed");
  return {found.items.data(), {size}};
}

void ModelFile::require_all_used() const {
  for (const auto& [variable, contents] : variables_)
    if (!used_.contains(variable)) fail("variable " + nn::in_quotes(variable) + " belongs to no part of the network");
}

}  // namespace transliterate
