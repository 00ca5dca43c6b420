#include "checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace tinystories {

namespace {

constexpr std::uint64_t kHeaderBytes = 7 * sizeof(std::int32_t);

/// Larger than any file. Products and sums of sizes saturate here instead of overflowing.
constexpr std::uint64_t kTooMany = std::uint64_t{1} << 60;

std::uint64_t product(std::initializer_list<Index> sizes) {
  std::uint64_t result = 1;
  for (const Index size : sizes) {
    const auto factor = static_cast<std::uint64_t>(size);
    result = result > kTooMany / factor ? kTooMany : result * factor;  // no size is 0
  }
  return result;
}

std::uint64_t sum(std::initializer_list<std::uint64_t> counts) {
  std::uint64_t result = 0;
  for (const std::uint64_t count : counts) result = std::min(result + count, kTooMany);
  return result;
}

/// Number of values of each kind of weight.
struct Counts {
  std::uint64_t embedding, rms, square, narrow, widening, rms_final, tables;

  explicit Counts(const Config& c)
      : embedding(product({c.vocab_size, c.dim})),
        rms(product({c.n_layers, c.dim})),
        square(product({c.n_layers, c.dim, c.dim})),
        narrow(product({c.n_layers, c.kv_dim(), c.dim})),
        widening(product({c.n_layers, c.hidden_dim, c.dim})),
        rms_final(product({c.dim})),
        tables(product({c.seq_len, c.head_dim()})) {}

  std::uint64_t total(bool tied) const {
    return sum({embedding, rms, square, narrow, narrow, square, rms, widening, widening, widening, rms_final, tables,
                tied ? 0 : embedding});
  }
};

Index positive(BinaryFile& file, const std::string& name, std::int64_t value) {
  if (value <= 0) file.fail(name + " must be positive, but is " + std::to_string(value));
  return static_cast<Index>(value);
}

Config read_header(BinaryFile& file) {
  const auto size = [&](const char* name) { return positive(file, name, file.i32("the header")); };
  Config c;
  c.dim = size("dim");
  c.hidden_dim = size("hidden_dim");
  c.n_layers = size("n_layers");
  c.n_heads = size("n_heads");
  c.n_kv_heads = size("n_kv_heads");
  const std::int64_t vocab_size = file.i32("the header");
  c.tied = vocab_size > 0;
  c.vocab_size = positive(file, "vocab_size", c.tied ? vocab_size : -vocab_size);
  c.seq_len = size("seq_len");

  const auto require_multiple = [&](const char* name, Index of, const char* divisor_name, Index divisor) {
    if (of % divisor != 0)
      file.fail(std::string(name) + ' ' + std::to_string(of) + " is not a multiple of " + divisor_name + ' ' +
                std::to_string(divisor));
  };
  require_multiple("dim", c.dim, "n_heads", c.n_heads);
  require_multiple("n_heads", c.n_heads, "n_kv_heads", c.n_kv_heads);
  if (c.head_dim() % 2 != 0)
    file.fail("dim " + std::to_string(c.dim) + " and n_heads " + std::to_string(c.n_heads) + " give heads of " +
              std::to_string(c.head_dim()) + " features, but rotary embedding needs an even number");
  return c;
}

}  // namespace

Checkpoint::Checkpoint(BinaryFile file) : config_(read_header(file)) {
  const Counts counts(config_);
  const std::uint64_t numbers = counts.total(config_.tied), bytes = kHeaderBytes + sizeof(float) * numbers;
  if (bytes != file.size())
    file.fail((numbers == kTooMany ? "the header needs more than " : "the header needs ") + std::to_string(bytes) +
              " bytes, but the file has " + std::to_string(file.size()));

  const auto read = [&](std::vector<float>& weights, std::uint64_t count, const char* name) {
    weights.resize(count);
    file.finite_floats(weights, name);
  };
  read(embedding_, counts.embedding, "the embedding");
  read(rms_att_, counts.rms, "rms_att");
  read(wq_, counts.square, "wq");
  read(wk_, counts.narrow, "wk");
  read(wv_, counts.narrow, "wv");
  read(wo_, counts.square, "wo");
  read(rms_ffn_, counts.rms, "rms_ffn");
  read(w1_, counts.widening, "w1");
  read(w2_, counts.widening, "w2");
  read(w3_, counts.widening, "w3");
  read(rms_final_, counts.rms_final, "rms_final");
  file.skip(sizeof(float) * counts.tables, "the tables of cos and sin");
  if (!config_.tied) read(classifier_, counts.embedding, "the classifier");
}

LayerWeights Checkpoint::layer(Index layer) const {
  const Config& c = config_;
  const auto matrix = [layer](const std::vector<float>& all, Index rows, Index columns) {
    return MatrixView(all.data() + layer * rows * columns, rows, columns);
  };
  const auto row = [layer](const std::vector<float>& all, Index size) {
    return RowView(all.data() + layer * size, size);
  };
  return {row(rms_att_, c.dim),
          matrix(wq_, c.dim, c.dim),
          matrix(wk_, c.kv_dim(), c.dim),
          matrix(wv_, c.kv_dim(), c.dim),
          matrix(wo_, c.dim, c.dim),
          row(rms_ffn_, c.dim),
          matrix(w1_, c.hidden_dim, c.dim),
          matrix(w2_, c.dim, c.hidden_dim),
          matrix(w3_, c.hidden_dim, c.dim)};
}

}  // namespace tinystories
