#include "text.h"

#include <algorithm>
#include <stdexcept>

#include "files.h"
#include "new_file.h"
#include "printable.h"

namespace training {

extern const std::string_view kOwnText;  // own_text.txt, written for this project

}  // namespace training

namespace train_gpt {

namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

Text::Text(const std::filesystem::path& file)
    : file_(file.empty() ? file : std::filesystem::absolute(file).lexically_normal()),
      name_(file.empty() ? "the project's own text" : nn::as_line(file.string())) {
  const std::string bytes = file.empty() ? std::string(training::kOwnText) : training::read_file(file);
  const std::string_view text = training::without_byte_order_mark(bytes);
  try {
    vocabulary_ = Vocabulary::of(text);
    tokens_ = vocabulary_.encode(text);
  } catch (const std::invalid_argument& error) {
    throw nn::FileError(name_ + ": " + error.what());
  }
  if (tokens_.empty()) throw nn::FileError(name_ + ": is empty");
  checksum_ = fnv1a(text);
}

void Text::require_blocks_of(Index context) const {
  if (std::min(training().size(), validation().size()) > static_cast<std::size_t>(context)) return;
  throw nn::FileError(name_ + ": has " + std::to_string(size()) + " characters, of which a tenth is for validation; " +
                      std::to_string(context) + " of context need at least " + std::to_string(10 * (context + 1)));
}

Batch random_blocks(std::span<const std::int32_t> tokens, Index batch, Index context, nn::Random& random) {
  std::vector<Index> starts;
  for (Index i = 0; i < batch; ++i) starts.push_back(random.below(static_cast<Index>(tokens.size()) - context));
  return blocks_at(tokens, starts, context);
}

Batch blocks_at(std::span<const std::int32_t> tokens, const std::vector<Index>& starts, Index context) {
  const auto count = static_cast<Index>(starts.size());
  Batch batch{nn::Tokens({count, context}), nn::Tokens({count, context})};
  for (Index i = 0; i < count; ++i) {
    const std::int32_t* from = tokens.data() + starts[static_cast<std::size_t>(i)];
    std::copy_n(from, context, batch.inputs.data() + i * context);
    std::copy_n(from + 1, context, batch.targets.data() + i * context);
  }
  return batch;
}

std::vector<Index> block_starts(std::span<const std::int32_t> tokens, Index context, Index most) {
  const Index all = (static_cast<Index>(tokens.size()) - 1) / context;
  const Index count = most > 0 ? std::min(most, all) : all;
  std::vector<Index> starts;
  for (Index i = 0; i < count; ++i) starts.push_back(i * all / count * context);
  return starts;
}

}  // namespace train_gpt
