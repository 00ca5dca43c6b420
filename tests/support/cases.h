// Reader of the conformance cases: a folder with manifest.txt and one .npy file per tensor.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <Eigen/Core>

#include "attn/tensor.h"

namespace attn::test {

static_assert(std::endian::native == std::endian::little, "the case files are little-endian and are read as they are");

enum class DType { f16, bf16, f32, f64, i64, boolean };

/// One tensor of a case: in C order, as stored in the file.
struct Array {
  DType dtype = DType::f32;
  std::vector<Index> shape;
  std::vector<char> bytes;

  Index size() const {
    Index n = 1;
    for (Index d : shape) n *= d;
    return n;
  }

  /// All elements converted to T, e.g. double, float, Index or bool.
  template <class T>
  std::vector<T> as() const {
    std::vector<T> result(static_cast<std::size_t>(size()));
    copy_to(result.begin());
    return result;
  }

  /// The array as a tensor. @throws std::runtime_error if the rank differs.
  template <class T, int Rank>
  Tensor<T, Rank> tensor() const {
    if (shape.size() != Rank)
      throw std::runtime_error("tensor of rank " + std::to_string(shape.size()) + ", requested as rank " +
                               std::to_string(Rank));
    Shape<Rank> sizes;
    std::copy(shape.begin(), shape.end(), sizes.begin());
    auto t = Tensor<T, Rank>::uninitialized(sizes);
    copy_to(t.data());
    return t;
  }

 private:
  template <class To>
  void copy_to(To to) const {
    switch (dtype) {
      case DType::f16:
        return convert<Eigen::half>(to);
      case DType::bf16:
        return convert<Eigen::bfloat16>(to);
      case DType::f32:
        return convert<float>(to);
      case DType::f64:
        return convert<double>(to);
      case DType::i64:
        return convert<std::int64_t>(to);
      case DType::boolean:
        return convert<std::uint8_t>(to);
    }
  }

  template <class Stored, class To>
  void convert(To to) const {
    using T = typename std::iterator_traits<To>::value_type;
    for (std::size_t at = 0; at + sizeof(Stored) <= bytes.size(); at += sizeof(Stored), ++to) {
      Stored x;
      std::memcpy(static_cast<void*>(&x), &bytes[at], sizeof x);
      if constexpr (std::is_same_v<T, bool>)
        *to = x != Stored(0);
      else
        *to = static_cast<T>(x);
    }
  }
};

/// The contents of a manifest, with the tensors it names.
struct Case {
  std::string name, op, origin;
  int opset = 0;
  std::map<std::string, double> attrs;       ///< integers and floats; only attributes set by the case
  std::map<std::string, std::string> texts;  ///< attributes that are strings; only generated cases have them
  std::map<std::string, Array> inputs, outputs;
  double atol = 0, rtol = 0;
  std::vector<std::string> features;

  bool has(const std::string& input) const { return inputs.count(input) != 0; }
  bool has_attr(const std::string& attr) const { return attrs.count(attr) != 0; }

  double attr(const std::string& attr, double otherwise) const {
    const auto found = attrs.find(attr);
    return found == attrs.end() ? otherwise : found->second;
  }
  std::string text(const std::string& attr, const std::string& otherwise) const {
    const auto found = texts.find(attr);
    return found == texts.end() ? otherwise : found->second;
  }

  const Array& input(const std::string& key) const { return at(inputs, "input", key); }
  const Array& output(const std::string& key) const { return at(outputs, "output", key); }

 private:
  const Array& at(const std::map<std::string, Array>& tensors, const char* kind, const std::string& key) const {
    const auto found = tensors.find(key);
    if (found == tensors.end()) throw std::runtime_error("case " + name + " has no " + kind + " '" + key + "'");
    return found->second;
  }
};

namespace detail {

[[noreturn]] inline void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::runtime_error(file.string() + ": " + what);
}

inline DType dtype_of(const std::string& word, const std::filesystem::path& file, const std::string& where) {
  static const std::map<std::string, DType> known{{"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32},
                                                  {"f64", DType::f64}, {"i64", DType::i64},   {"bool", DType::boolean}};
  const auto found = known.find(word);
  if (found == known.end()) fail(file, where + "unknown dtype '" + word + "'");
  return found->second;
}

inline std::size_t bytes_per_element(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
      return 4;
    default:
      return 8;
  }
}

/// The payload of a .npy file of version 1.0, whose size must be `expected` bytes.
inline std::vector<char> read_npy(const std::filesystem::path& file, std::size_t expected) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(file, "cannot be opened");
  std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};

  constexpr std::size_t kFixed = 10;  // 6 bytes magic, 2 bytes version, 2 bytes length of the header
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(bytes.data(), bytes.size());
  if (text.substr(0, kMagic.size()) != kMagic) fail(file, "is not a .npy file (wrong magic)");
  if (text.size() < kFixed) fail(file, "ends inside the header");
  if (text[6] != 1 || text[7] != 0)
    fail(file, ".npy version " + std::to_string(int(text[6])) + "." + std::to_string(int(text[7])) +
                   ", only 1.0 is supported");
  const std::size_t start = kFixed + static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  if (text.size() < start) fail(file, "ends inside the header");
  if (text.substr(kFixed, start - kFixed).find("'fortran_order': False") == std::string_view::npos)
    fail(file, "is not in C order");
  if (text.size() - start != expected)
    fail(file, "holds " + std::to_string(text.size() - start) + " bytes of data, but the manifest expects " +
                   std::to_string(expected));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(start));
  return bytes;
}

}  // namespace detail

/// Reads `folder`/manifest.txt and every tensor it names.
/// @throws std::runtime_error with the file, the line and the fault.
inline Case read_case(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "manifest.txt";
  std::ifstream in(file);
  if (!in) detail::fail(file, "cannot be opened");

  Case c;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string where = "line " + std::to_string(number) + ": ";
    std::istringstream words(line);
    const auto next = [&](auto& x, const char* what) {
      if (!(words >> x)) detail::fail(file, where + "missing or malformed " + what);
    };
    const auto done = [&] {
      std::string rest;
      if (words >> rest) detail::fail(file, where + "unexpected '" + rest + "'");
    };

    std::string kind;
    next(kind, "keyword");
    if (number == 1) {
      int version = 0;
      if (kind != "onnx_case") detail::fail(file, "is not a case manifest");
      next(version, "format version");
      if (version != 1) detail::fail(file, "format version " + std::to_string(version) + ", only 1 is understood");
    } else if (kind == "name") {
      next(c.name, "name");
    } else if (kind == "op") {
      next(c.op, "operator");
    } else if (kind == "opset") {
      next(c.opset, "opset");
    } else if (kind == "origin") {
      next(c.origin, "origin");
    } else if (kind == "attr") {
      std::string name, type;
      double value = 0;
      next(name, "attribute name");
      next(type, "attribute type");
      next(value, "attribute value");
      if (type != "i" && type != "f") detail::fail(file, where + "unknown attribute type '" + type + "'");
      if (!c.attrs.emplace(name, value).second) detail::fail(file, where + "second attribute '" + name + "'");
    } else if (kind == "input" || kind == "output") {
      std::string name, type, npy;
      std::size_t rank = 0;
      Array array;
      next(name, "tensor name");
      next(type, "dtype");
      array.dtype = detail::dtype_of(type, file, where);
      next(rank, "rank");
      constexpr std::size_t kMaxRank = 8;  // more than any operator has; limits allocations
      if (rank > kMaxRank) detail::fail(file, where + "rank " + std::to_string(rank) + " is not plausible");
      array.shape.resize(rank);
      Index elements = 1;
      for (Index& d : array.shape) {
        next(d, "dimension");
        constexpr Index kMaxElements = Index(1) << 31;  // far above any case; the product of two still fits
        if (d < 0) detail::fail(file, where + "dimension " + std::to_string(d) + " is negative");
        if (d > kMaxElements || (elements *= d) > kMaxElements)
          detail::fail(file, where + "the shape is not plausible");
      }
      next(npy, "file name");
      array.bytes = detail::read_npy(folder / npy,
                                     static_cast<std::size_t>(array.size()) * detail::bytes_per_element(array.dtype));
      auto& tensors = kind == "input" ? c.inputs : c.outputs;
      if (!tensors.emplace(name, std::move(array)).second)
        detail::fail(file, where + "second " + kind + " '" + name + "'");
    } else if (kind == "tol") {
      next(c.atol, "absolute tolerance");
      next(c.rtol, "relative tolerance");
    } else if (kind == "features") {
      for (std::string tag; words >> tag;) c.features.push_back(tag);
      words.clear();
    } else if (kind == "end") {
      done();
      return c;
    } else {
      detail::fail(file, where + "unknown keyword '" + kind + "'");
    }
    done();
  }
  detail::fail(file, "ends without 'end': the file is truncated");
}

}  // namespace attn::test
