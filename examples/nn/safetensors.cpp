#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "printable.h"

namespace nn {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// Size of the longest header that is read. Headers are small; parsing a forged one may take about fifty times its size
/// in memory, so the limit is below the 100 MB of the reference implementation.
constexpr std::uint64_t kMostHeader = 16 << 20;

/// Nesting depth of a header: an object of objects of lists. Deeper levels are rejected, because copies and destructors
/// of a JSON value recurse, and a file could have millions of levels.
constexpr int kMostLevels = 3;

std::size_t product(const std::vector<Index>& shape) {
  std::size_t all = 1;
  for (const Index n : shape) all *= static_cast<std::size_t>(n);
  return all;
}

std::string text_of(const std::vector<Index>& shape) { return nlohmann::json(shape).dump(); }

/// Parses JSON. Returns null if the text is not JSON or too deep, or if an object repeats a name, because readers would
/// disagree about which one counts.
nlohmann::json parsed(const std::string& text) {
  struct Refused {};
  std::vector<std::set<std::string>> names;  // names in each open object
  const auto check = [&](int level, nlohmann::json::parse_event_t event, const nlohmann::json& name) {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && level >= kMostLevels) throw Refused();
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key && !names.back().insert(name.get<std::string>()).second) throw Refused();
    return true;
  };
  try {
    nlohmann::json all = nlohmann::json::parse(text, check, false);
    if (!all.is_discarded()) return all;
  } catch (const Refused&) {
  }
  return {};
}

/// Returns the integers of a list, checked: nlohmann::json would round fractions, and accept negative numbers and
/// booleans.
/// @throws nlohmann::json::exception
std::vector<Index> whole_numbers(const nlohmann::json& list) {
  for (const nlohmann::json& number : list.get_ref<const nlohmann::json::array_t&>())
    if (!number.is_number_unsigned() ||
        number.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
      throw nlohmann::json::other_error::create(0, "not a whole number", &number);
  return list.get<std::vector<Index>>();
}

}  // namespace

template <class T>
void save_safetensors(const std::filesystem::path& file, const std::vector<Parameter<T>>& parameters,
                      const Metadata& metadata) {
  nlohmann::json header{{"__metadata__", metadata}};
  std::size_t end = 0;
  for (const Parameter<T>& p : parameters) {
    if (!std::all_of(p.values.begin(), p.values.end(), [](T x) { return std::isfinite(x); }))
      throw FileError(file.string() + ": is not written, because " + p.name + " has a value that is not finite");
    const std::size_t begin = end;
    end += p.values.size_bytes();
    header[p.name] = {
        {"dtype", std::is_same_v<T, double> ? "F64" : "F32"}, {"shape", p.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw FileError(file.string() + ": cannot be written: names and metadata must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // values begin at a multiple of 8 bytes
  const std::uint64_t length = text.size();
  if (length > kMostHeader)
    throw FileError(file.string() + ": is not written, because its header would have " + std::to_string(length) +
                    " bytes, more than the " + std::to_string(kMostHeader) + " that can be read");

  NewFile out(file);
  out.write(&length, sizeof length);
  out.write(text.data(), text.size());
  for (const Parameter<T>& p : parameters) out.write(p.values.data(), p.values.size_bytes());
  out.put_in_place();
}

SafeTensors::SafeTensors(const std::filesystem::path& file) : file_(file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    fail(error ? "cannot be opened: " + error.message() : "is not a file");
  std::ifstream in(file, std::ios::binary);
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (!in || error) fail("cannot be opened");
  std::uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  if (!in || length > kMostHeader || length + sizeof length > size) fail("is not a safetensors file, or is truncated");
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const nlohmann::json header = parsed(text);
  if (!in || !header.is_object()) fail("its header is not JSON, or repeats a name");

  first_ = sizeof length + length;
  const std::size_t bytes = size - first_;
  std::map<std::size_t, std::size_t> parts;  // ends by beginnings; together they must cover the file
  try {
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = value.get<Metadata>();
        continue;
      }
      const auto dtype = value.at("dtype").get<std::string>();
      if (dtype != "F32" && dtype != "F64")
        fail(shown(name) + " holds " + shown(dtype) + ", which is neither F32 nor F64");
      const std::vector<Index> offsets = whole_numbers(value.at("data_offsets"));
      if (offsets.size() != 2) fail(shown(name) + " does not have two offsets");
      Entry entry{dtype == "F64", whole_numbers(value.at("shape")), static_cast<std::size_t>(offsets[0]),
                  static_cast<std::size_t>(offsets[1])};
      const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
      std::size_t count = empty ? 0 : entry.is_double ? 8 : 4;
      for (const Index n : entry.shape) {
        if (!empty && count > bytes / static_cast<std::size_t>(n)) fail(shown(name) + " is larger than the file");
        count *= static_cast<std::size_t>(n);
      }
      if (entry.begin > entry.end || entry.end > bytes || entry.end - entry.begin != count)
        fail(shown(name) + " of shape " + text_of(entry.shape) + " does not fit its offsets in the file");
      if (count > 0 && !parts.emplace(entry.begin, entry.end).second)
        fail(shown(name) + " has the same offsets as another tensor");
      entries_.emplace(name, std::move(entry));
    }
  } catch (const nlohmann::json::exception&) {
    fail("its header does not describe each tensor");
  }
  std::size_t end = 0;
  for (const auto& [begin, next] : parts) {
    if (begin != end) fail("its tensors overlap, or have gaps between them");
    end = next;
  }
  if (end != bytes) fail("has bytes that belong to no tensor");
}

void SafeTensors::fail(const std::string& what) const { throw FileError(file_.string() + ": " + what); }

const std::string& SafeTensors::text(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) fail("has no metadata entry \"" + key + "\"");
  return found->second;
}

Index SafeTensors::number(const std::string& key, Index lowest, Index highest) const {
  const std::string& digits = text(key);
  Index value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < lowest || value > highest)
    fail("\"" + key + "\" is " + in_quotes(digits) + ", not a number from " + std::to_string(lowest) + " to " +
         std::to_string(highest));
  return value;
}

template <class Stored, class T>
void SafeTensors::read(std::istream& in, const Parameter<T>& p, const Entry& entry) const {
  constexpr std::size_t kNumbers = 16384;  // per read
  std::vector<Stored> numbers(std::min(kNumbers, p.values.size()));
  in.seekg(static_cast<std::streamoff>(first_ + entry.begin));
  for (std::size_t i = 0; i < p.values.size(); i += numbers.size()) {
    numbers.resize(std::min(numbers.size(), p.values.size() - i));
    in.read(reinterpret_cast<char*>(numbers.data()), static_cast<std::streamsize>(numbers.size() * sizeof(Stored)));
    if (!in) fail("cannot be read");
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      p.values[i + n] = static_cast<T>(numbers[n]);
      if (!std::isfinite(p.values[i + n])) fail(p.name + " has a value that is not finite");
    }
  }
}

template <class T>
void SafeTensors::load(const std::vector<Parameter<T>>& parameters) const {
  std::ifstream in(file_, std::ios::binary);
  if (!in) fail("cannot be opened");
  std::set<std::string> wanted;
  for (const Parameter<T>& p : parameters) {
    wanted.insert(p.name);
    const auto found = entries_.find(p.name);
    if (found == entries_.end()) fail(p.name + " is missing");
    const Entry& entry = found->second;
    if (entry.shape != p.shape)
      fail(p.name + " has shape " + text_of(entry.shape) + ", but the model needs " + text_of(p.shape));
    if (product(entry.shape) != p.values.size()) fail(p.name + " has a different size");
    entry.is_double ? read<double>(in, p, entry) : read<float>(in, p, entry);
  }
  for (const auto& [name, entry] : entries_)
    if (!wanted.contains(name)) fail(shown(name) + " is not a parameter of the model");
}

std::string format_of(const std::filesystem::path& file) {
  try {
    const SafeTensors opened(file);
    const auto found = opened.metadata().find("format");
    return found == opened.metadata().end() ? "" : found->second;
  } catch (const FileError&) {
    return "";
  }
}

template void save_safetensors(const std::filesystem::path&, const std::vector<Parameter<float>>&, const Metadata&);
template void save_safetensors(const std::filesystem::path&, const std::vector<Parameter<double>>&, const Metadata&);
template void SafeTensors::load(const std::vector<Parameter<float>>&) const;
template void SafeTensors::load(const std::vector<Parameter<double>>&) const;

}  // namespace nn
