#include "batches.h"

#include <algorithm>
#include <numeric>

#include "cross_entropy.h"

namespace translation {

namespace {

template <class X>
void shuffle_all(std::vector<X>& all, nn::Random& random) {
  for (std::size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
}

}  // namespace

std::vector<Example> examples_of(const std::vector<Pair>& pairs, const Characters& characters, const Pieces& pieces) {
  std::vector<Example> examples;
  for (const Pair& pair : pairs) examples.push_back({characters.encode(pair.chinese), pieces.encode(pair.english)});
  return examples;
}

nn::Tokens padded(const std::vector<Ids>& rows, std::int32_t padding) {
  std::size_t longest = 0;
  for (const Ids& row : rows) longest = std::max(longest, row.size());
  auto tokens = nn::Tokens::uninitialized({static_cast<Index>(rows.size()), static_cast<Index>(longest)});
  std::fill_n(tokens.data(), tokens.size(), padding);
  for (std::size_t i = 0; i < rows.size(); ++i) std::copy(rows[i].begin(), rows[i].end(), tokens.data() + i * longest);
  return tokens;
}

Batch batch_of(const std::vector<Example>& examples, const std::vector<std::size_t>& which) {
  std::vector<Ids> sources, given, wanted;
  Batch batch;
  for (const std::size_t i : which) {
    const auto& [source, target] = examples[i];
    sources.push_back(source);
    given.push_back(target);
    given.back().insert(given.back().begin(), Pieces::kEnd);
    wanted.push_back(target);
    wanted.back().push_back(Pieces::kEnd);
    batch.lengths.push_back(static_cast<Index>(source.size()));
    batch.tokens += static_cast<Index>(source.size() + target.size() + 1);
  }
  batch.sources = padded(sources, Characters::kEnd);
  batch.given = padded(given, Pieces::kEnd);
  batch.wanted = padded(wanted, nn::CrossEntropy<float>::kIgnored);
  return batch;
}

std::vector<double> chances_of_hiding(const std::vector<Example>& examples, Index characters, double x) {
  std::vector<double> counts(static_cast<std::size_t>(characters), 0.0);
  for (const Example& example : examples)
    for (const std::int32_t id : example.source) ++counts[static_cast<std::size_t>(id)];
  std::vector<double> chances;
  for (const double n : counts) chances.push_back(x > 0 ? x / (x + n) : 0);
  return chances;
}

void hide_characters(Batch& batch, const std::vector<double>& chances, nn::Random& random) {
  for (Index b = 0; b < batch.sources.dim(0); ++b)
    for (Index i = 0; i + 1 < batch.lengths[static_cast<std::size_t>(b)]; ++i) {
      std::int32_t& id = batch.sources(b, i);
      if (random.uniform() < chances[static_cast<std::size_t>(id)]) id = Characters::kUnknown;
    }
}

Batches::Batches(const std::vector<Example>& examples, Index tokens, std::uint64_t seed)
    : examples_(examples), tokens_(tokens), random_(seed) {
  shuffle();
}

const std::vector<std::size_t>& Batches::next() {
  if (next_ == batches_.size()) shuffle();
  return batches_[next_++];
}

void Batches::shuffle() {
  std::vector<std::size_t> order(examples_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  shuffle_all(order, random_);
  const auto lengths = [&](std::size_t i) { return std::pair(examples_[i].target.size(), examples_[i].source.size()); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths(a) < lengths(b); });

  batches_.clear();
  std::size_t source = 0, target = 0;  // longest in the batch
  for (const std::size_t i : order) {
    const std::size_t with_source = std::max(source, examples_[i].source.size()),
                      with_target = std::max(target, examples_[i].target.size() + 1);
    const std::size_t count = batches_.empty() ? 0 : batches_.back().size();
    if (count == 0 || static_cast<Index>((count + 1) * (with_source + with_target)) > tokens_) {
      batches_.push_back({i});
      source = examples_[i].source.size();
      target = examples_[i].target.size() + 1;
    } else {
      batches_.back().push_back(i);
      source = with_source;
      target = with_target;
    }
  }
  shuffle_all(batches_, random_);
  next_ = 0;
}

}  // namespace translation
