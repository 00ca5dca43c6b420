// Loads plug-ins that each contain attn into a program that also contains and exports it: host PLUGIN...
#include <attn/attn.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Attention = void(float*, const float*, const float*, const float*, long, long, long);

constexpr long kHeads = 4, kTokens = 70, kDim = 24;  // not whole tiles of queries and keys
constexpr auto kFloats = static_cast<std::size_t>(kHeads * kTokens * kDim);

void check(bool condition, const std::string& what) {
  if (condition) return;
  std::cerr << "wrong: " << what << '\n';
  std::exit(1);
}

std::vector<float> numbers(double step) {
  std::vector<float> all(kFloats);
  for (std::size_t i = 0; i < kFloats; ++i) all[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
  return all;
}

/// softmax(query * key^T / sqrt(dim)) * value over the keys up to each query.
std::vector<double> definition(const std::vector<float>& query, const std::vector<float>& key,
                               const std::vector<float>& value) {
  const auto at = [](const std::vector<float>& all, long head, long token, long feature) {
    return static_cast<double>(all[static_cast<std::size_t>((head * kTokens + token) * kDim + feature)]);
  };
  std::vector<double> out(kFloats);
  for (long h = 0; h < kHeads; ++h)
    for (long i = 0; i < kTokens; ++i) {
      double sum = 0;
      std::vector<double> row(static_cast<std::size_t>(kDim));
      for (long j = 0; j <= i; ++j) {
        double score = 0;
        for (long f = 0; f < kDim; ++f) score += at(query, h, i, f) * at(key, h, j, f);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(kDim)));
        sum += weight;
        for (long f = 0; f < kDim; ++f) row[static_cast<std::size_t>(f)] += weight * at(value, h, j, f);
      }
      for (long f = 0; f < kDim; ++f)
        out[static_cast<std::size_t>((h * kTokens + i) * kDim + f)] = row[static_cast<std::size_t>(f)] / sum;
    }
  return out;
}

double difference(const std::vector<float>& out, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < kFloats; ++i)
    largest = std::fmax(largest, std::abs(static_cast<double>(out[i]) - expected[i]));
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<float> query = numbers(0.37), key = numbers(1.13), value = numbers(0.61);
  const std::vector<double> expected = definition(query, key, value);

  const auto view = [](const std::vector<float>& all) { return attn::bhsd(all.data(), 1, kHeads, kTokens, kDim); };
  const auto mine = attn::attention(view(query), view(key), view(value), attn::causal());
  std::vector<float> out(mine.out.data(), mine.out.data() + kFloats);
  check(difference(out, expected) < 2e-6, "the program's own call");

  check(argc > 2, "there are at least two plug-ins");
  for (int round = 0; round < 2; ++round) {
    std::vector<void*> handles;
    std::vector<Attention*> attentions;
    for (int i = 1; i < argc; ++i) {
      // RTLD_GLOBAL makes a plug-in's exports visible to later ones.
      void* const handle = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL);
      check(handle != nullptr, handle == nullptr ? dlerror() : "");
      handles.push_back(handle);
      attentions.push_back(reinterpret_cast<Attention*>(dlsym(handle, "plugin_attention")));
      check(attentions.back() != nullptr, std::string(argv[i]) + " has no plugin_attention");
    }
    for (std::size_t i = 0; i < attentions.size(); ++i) {
      const std::string name = argv[i + 1];
      out.assign(kFloats, 0);
      attentions[i](out.data(), query.data(), key.data(), value.data(), kHeads, kTokens, kDim);
      const double error = difference(out, expected);
      check(error < 2e-6, name + " is off by " + std::to_string(error));
      bool refused = false;
      try {
        attentions[i](out.data(), query.data(), key.data(), value.data(), kHeads, kTokens, -1);
      } catch (const std::invalid_argument& e) {
        refused = std::string(e.what()).starts_with("attn: ");
      }
      check(refused, name + " takes a negative dim");
    }
    // Unloading a plug-in ends its threads.
    for (void* const handle : handles) check(dlclose(handle) == 0, "a plug-in closes");
  }
}
