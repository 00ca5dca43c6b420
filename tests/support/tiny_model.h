// A model file of the transliteration example, small enough to be corrupted at every byte. Its weights are arbitrary.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace attn::test {

/// Builds the bytes of a model file. Every part can be made invalid on purpose.
class ModelBytes {
 public:
  explicit ModelBytes(std::uint32_t version = 2, const std::string& spec = "TransformerBase",
                      std::uint32_t revision = 2) {
    u32(version);
    string(spec);
    u32(revision);
    count_at_ = bytes_.size();
    u32(0);
  }

  /// Adds a variable with the given shape, whose elements are small and distinct.
  ModelBytes& add(const std::string& name, const std::vector<std::uint32_t>& shape) {
    std::uint32_t items = 1;
    for (const std::uint32_t size : shape) items *= size;
    std::vector<float> values;
    for (std::uint32_t i = 0; i < items; ++i) values.push_back(0.5f * std::sin(static_cast<float>(++seed_)));
    return add_raw(name, shape, 4, items, values);
  }

  /// Adds a variable whose header fields need not be consistent.
  ModelBytes& add_raw(const std::string& name, const std::vector<std::uint32_t>& shape, std::uint8_t item_size,
                      std::uint32_t claimed_items, const std::vector<float>& values) {
    string(name);
    u8(static_cast<std::uint8_t>(shape.size()));
    for (const std::uint32_t size : shape) u32(size);
    u8(item_size);
    u32(claimed_items);
    for (const float x : values) u32(std::bit_cast<std::uint32_t>(x));
    claim_variables(++variables_);
    return *this;
  }

  /// Overwrites the number of variables.
  ModelBytes& claim_variables(std::uint32_t count) {
    for (std::size_t i = 0; i < 4; ++i) bytes_[count_at_ + i] = static_cast<char>(count >> (8 * i));
    return *this;
  }

  ModelBytes& append(const std::string& raw) {
    bytes_ += raw;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void u8(std::uint8_t x) { bytes_ += static_cast<char>(x); }
  void u32(std::uint32_t x) {
    for (int shift = 0; shift < 32; shift += 8) u8(static_cast<std::uint8_t>(x >> shift));
  }
  void string(const std::string& s) {
    u8(static_cast<std::uint8_t>((s.size() + 1) & 0xFF));
    u8(static_cast<std::uint8_t>((s.size() + 1) >> 8));
    bytes_ += s + '\0';
  }

  std::string bytes_;
  std::size_t count_at_ = 0;
  std::uint32_t variables_ = 0;
  int seed_ = 0;
};

constexpr std::uint32_t kTinyWidth = 8, kTinyInner = 4, kTinySourceTokens = 7, kTinyTargetTokens = 6;

/// Adds all parameters of an attention block: linear maps of these output sizes.
inline void add_attention(ModelBytes& file, const std::string& prefix, const std::vector<std::uint32_t>& outputs) {
  for (const char* name : {"/layer_norm/gamma", "/layer_norm/beta"}) file.add(prefix + name, {kTinyWidth});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string linear = prefix + "/linear_" + std::to_string(i);
    file.add(linear + "/weight", {outputs[i], kTinyWidth}).add(linear + "/bias", {outputs[i]});
  }
}

inline void add_feed_forward(ModelBytes& file, const std::string& prefix) {
  file.add(prefix + "/layer_norm/gamma", {kTinyWidth}).add(prefix + "/layer_norm/beta", {kTinyWidth});
  file.add(prefix + "/linear_0/weight", {kTinyInner, kTinyWidth}).add(prefix + "/linear_0/bias", {kTinyInner});
  file.add(prefix + "/linear_1/weight", {kTinyWidth, kTinyInner}).add(prefix + "/linear_1/bias", {kTinyWidth});
}

/// A complete network: one layer on each side, 8 features.
inline ModelBytes tiny_model() {
  ModelBytes file;
  file.add("encoder/embeddings/weight", {kTinySourceTokens, kTinyWidth});
  add_attention(file, "encoder/layer_0/self_attention", {3 * kTinyWidth, kTinyWidth});
  add_feed_forward(file, "encoder/layer_0/ffn");
  file.add("encoder/layer_norm/gamma", {kTinyWidth}).add("encoder/layer_norm/beta", {kTinyWidth});
  file.add("decoder/embeddings/weight", {kTinyTargetTokens, kTinyWidth});
  add_attention(file, "decoder/layer_0/self_attention", {3 * kTinyWidth, kTinyWidth});
  add_attention(file, "decoder/layer_0/attention", {kTinyWidth, 2 * kTinyWidth, kTinyWidth});
  add_feed_forward(file, "decoder/layer_0/ffn");
  file.add("decoder/layer_norm/gamma", {kTinyWidth}).add("decoder/layer_norm/beta", {kTinyWidth});
  file.add("decoder/projection/weight", {kTinyTargetTokens, kTinyWidth});
  file.add("decoder/projection/bias", {kTinyTargetTokens});
  return file;
}

}  // namespace attn::test
