#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

namespace nn {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// Headers are small; a length beyond this is no header's. The reference implementation has the same limit.
constexpr std::uint64_t kMostHeader = 100'000'000;

std::size_t product(const std::vector<Index>& shape) {
  std::size_t all = 1;
  for (const Index n : shape) all *= static_cast<std::size_t>(n);
  return all;
}

std::string text_of(const std::vector<Index>& shape) { return nlohmann::json(shape).dump(); }

/// Null for what is no JSON, and where an object has a name twice: readers would disagree about which one counts.
nlohmann::json parsed(const std::string& text) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  bool twice = false;
  const auto check = [&](int, nlohmann::json::parse_event_t event, const nlohmann::json& name) {
    if (event == nlohmann::json::parse_event_t::object_start) names.emplace_back();
    if (event == nlohmann::json::parse_event_t::object_end) names.pop_back();
    if (event == nlohmann::json::parse_event_t::key) twice |= !names.back().insert(name.get<std::string>()).second;
    return true;
  };
  const nlohmann::json all = nlohmann::json::parse(text, check, false);
  return twice || all.is_discarded() ? nlohmann::json() : all;
}

/// nlohmann::json would round fractions, and take negative numbers and truth values for whole ones.
/// @throws nlohmann::json::exception
std::vector<Index> whole_numbers(const nlohmann::json& list) {
  for (const nlohmann::json& number : list.get_ref<const nlohmann::json::array_t&>())
    if (!number.is_number_unsigned() ||
        number.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
      throw nlohmann::json::other_error::create(0, "not a whole number", &number);
  return list.get<std::vector<Index>>();
}

/// Text of a file, as a message can hold it: on one line, and not long.
std::string shown(std::string text) {
  constexpr std::size_t kMost = 60;
  if (text.size() > kMost) text.resize(kMost);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  return text;
}

}  // namespace

template <class T>
void save_safetensors(const std::filesystem::path& file, const std::vector<Parameter<T>>& parameters,
                      const Metadata& metadata) {
  nlohmann::json header{{"__metadata__", metadata}};
  std::size_t end = 0;
  for (const Parameter<T>& p : parameters) {
    if (!std::all_of(p.values.begin(), p.values.end(), [](T x) { return std::isfinite(x); }))
      throw FileError(file.string() + ": is not written, since " + p.name + " has a number that is not finite");
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
  text.resize((text.size() + 7) / 8 * 8, ' ');  // numbers begin at a multiple of 8 bytes
  const std::uint64_t length = text.size();

  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error))
    throw FileError(file.string() + ": cannot be written: it is no regular file");
  std::filesystem::path part = file;
  part += ".part";
  {
    std::ofstream out(part, std::ios::binary);
    if (!out) throw FileError(file.string() + ": cannot be written");
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const Parameter<T>& p : parameters)
      out.write(reinterpret_cast<const char*>(p.values.data()), static_cast<std::streamsize>(p.values.size_bytes()));
    out.flush();
    if (!out) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw FileError(file.string() + ": cannot be written");
    }
  }
  std::filesystem::rename(part, file, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw FileError(file.string() + ": cannot be written: " + error.message());
}

SafeTensors::SafeTensors(const std::filesystem::path& file) : file_(file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    fail(error ? "cannot be opened: " + error.message() : "is no file");
  std::ifstream in(file, std::ios::binary);
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (!in || error) fail("cannot be opened");
  std::uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  if (!in || length > kMostHeader || length + sizeof length > size) fail("is no safetensors file, or is cut short");
  std::string text(length, ' ');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const nlohmann::json header = parsed(text);
  if (!in || !header.is_object()) fail("its header is not JSON, or has a name twice");

  const std::size_t bytes = size - sizeof length - length;
  std::map<std::size_t, std::size_t> parts;  // ends by beginnings: together they must be the file
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
      if (offsets.size() != 2) fail(shown(name) + " has no beginning and end");
      Entry entry{dtype == "F64", whole_numbers(value.at("shape")), static_cast<std::size_t>(offsets[0]),
                  static_cast<std::size_t>(offsets[1])};
      const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
      std::size_t count = empty ? 0 : entry.is_double ? 8 : 4;
      for (const Index n : entry.shape) {
        if (!empty && count > bytes / static_cast<std::size_t>(n)) fail(shown(name) + " is larger than the file");
        count *= static_cast<std::size_t>(n);
      }
      if (entry.begin > entry.end || entry.end > bytes || entry.end - entry.begin != count)
        fail(shown(name) + " of shape " + text_of(entry.shape) + " does not fit its place in the file");
      if (count > 0 && !parts.emplace(entry.begin, entry.end).second)
        fail(shown(name) + " lies where something else does");
      entries_.emplace(name, std::move(entry));
    }
  } catch (const nlohmann::json::exception&) {
    fail("its header does not say what each tensor is");
  }
  std::size_t end = 0;
  for (const auto& [begin, next] : parts) {
    if (begin != end) fail("its tensors overlap, or there are gaps between them");
    end = next;
  }
  if (end != bytes) fail("has bytes that belong to no tensor");
  data_.resize(bytes);
  in.read(data_.data(), static_cast<std::streamsize>(bytes));
  if (!in) fail("cannot be read");
}

void SafeTensors::fail(const std::string& what) const { throw FileError(file_.string() + ": " + what); }

const std::string& SafeTensors::text(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) fail("does not say its \"" + key + "\"");
  return found->second;
}

Index SafeTensors::number(const std::string& key, Index lowest, Index highest) const {
  const std::string& digits = text(key);
  Index value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < lowest || value > highest)
    fail("\"" + key + "\" is \"" + shown(digits) + "\", not a number from " + std::to_string(lowest) + " to " +
         std::to_string(highest));
  return value;
}

template <class T>
void SafeTensors::load(const std::vector<Parameter<T>>& parameters) const {
  std::set<std::string> wanted;
  for (const Parameter<T>& p : parameters) {
    wanted.insert(p.name);
    const auto found = entries_.find(p.name);
    if (found == entries_.end()) fail(p.name + " is missing");
    const Entry& entry = found->second;
    if (entry.shape != p.shape)
      fail(p.name + " has shape " + text_of(entry.shape) + ", the model needs " + text_of(p.shape));
    const char* from = data_.data() + entry.begin;
    const auto read = [&]<class Stored>(Stored) {
      for (T& x : p.values) {
        Stored number;
        std::memcpy(&number, from, sizeof number);
        from += sizeof number;
        x = static_cast<T>(number);
        if (!std::isfinite(x)) fail(p.name + " has a number that is not finite");
      }
    };
    if (product(entry.shape) != p.values.size()) fail(p.name + " has another size");
    entry.is_double ? read(double()) : read(float());
  }
  for (const auto& [name, entry] : entries_)
    if (!wanted.contains(name)) fail(shown(name) + " is not a parameter of the model");
}

template void save_safetensors(const std::filesystem::path&, const std::vector<Parameter<float>>&, const Metadata&);
template void save_safetensors(const std::filesystem::path&, const std::vector<Parameter<double>>&, const Metadata&);
template void SafeTensors::load(const std::vector<Parameter<float>>&) const;
template void SafeTensors::load(const std::vector<Parameter<double>>&) const;

}  // namespace nn
