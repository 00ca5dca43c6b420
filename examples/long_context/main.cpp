// long_context: exact attention over a sequence that is distributed over many machines.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <attn/attn.h>
#include <attn/mpi.h>

#include "../display/bar.h"
#include "arguments.h"
#include "random.h"
#include "world.h"

namespace {

using namespace long_context;
using attn::mpi::Layout;
using attn::mpi::Ring;
using Tensor = attn::Tensor<float, 4>;
using View = attn::TensorView<const float, 4>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Random queries, keys and values, in place of those that a model computes from its tokens. Each element is a function
/// of the seed and its indices, so that any rank can draw any row, and no rank needs to store all of them.
class RandomSequence {
 public:
  enum Kind { query, key, value };

  explicit RandomSequence(const Request& request) : request_(request) {}

  Index heads(Kind kind) const { return kind == query ? request_.heads : request_.kv_heads; }

  /// Draws `rows` rows; row i belongs to token token_of(i).
  template <class TokenOf>
  Tensor draw(Kind kind, Index rows, const TokenOf& token_of) const {
    auto t = Tensor::uninitialized({1, heads(kind), rows, request_.dim});
    for (Index h = 0; h < heads(kind); ++h)
      for (Index row = 0; row < rows; ++row) {
        const auto place = static_cast<std::uint64_t>((token_of(row) * 3 + kind) * 1024 + h);
        nn::Random random(nn::Random(request_.seed ^ place * 0x632be59bd9b4e019).bits());
        // Uniform, with variance 1.
        for (Index d = 0; d < request_.dim; ++d)
          t(0, h, row, d) = static_cast<float>((2 * random.uniform() - 1) * std::sqrt(3.0));
      }
    return t;
  }
  /// Draws the rows of the tokens from `first` on.
  Tensor draw_from(Kind kind, Index first, Index rows) const {
    return draw(kind, rows, [&](Index row) { return first + row; });
  }

 private:
  const Request& request_;
};

/// Calls use(mods) with the mask of the sequence.
template <class Use>
auto with_mask(const Request& request, const Use& use) {
  if (request.window > 0) return use(attn::causal() | attn::sliding_window(request.window));
  return use(attn::causal());
}

attn::Options options_of(const Request& request) {
  return {.executor = request.threads == 1 ? attn::serial() : attn::threads(request.threads)};
}

std::string mib(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f MiB", bytes / (1 << 20));
  return text;
}

void print_table(const Request& request, const ranks::World& world, Index rows, double seconds,
                 const attn::mpi::Traffic& traffic, double own_bytes) {
  const std::vector<double> all =
      world.gathered({static_cast<double>(rows), seconds, traffic.seconds_waited,
                      static_cast<double>(traffic.bytes_sent), static_cast<double>(traffic.bytes_held), own_bytes});
  if (!world.is_first()) return;
  std::printf("%d %s of %d %s: %td tokens, %td heads over %td key/value heads, %td features\n\n", world.ranks(),
              world.ranks() == 1 ? "rank" : "ranks", request.threads, request.threads == 1 ? "thread" : "threads",
              request.tokens, request.heads, request.kv_heads, request.dim);
  std::printf("%4s  %10s  %10s  %10s  %13s  %13s  %13s\n", "rank", "tokens", "time", "waited", "sent", "own tensors",
              "extra");
  for (int r = 0; r < world.ranks(); ++r) {
    const double* const x = all.data() + 6 * r;
    std::printf("%4d  %10.0f  %8.3f s  %8.3f s  %13s  %13s  %13s\n", r, x[0], x[1], x[2], mib(x[3]).c_str(),
                mib(x[5]).c_str(), mib(x[4]).c_str());
  }
  std::printf("\n");
}

/// Returns evenly spread tokens, including the last.
std::vector<Index> sampled_tokens(const Request& request) {
  std::vector<Index> tokens;
  for (Index i = 1; i <= request.check; ++i) {
    const auto share = static_cast<double>(i) / static_cast<double>(request.check);
    tokens.push_back(i == request.check ? request.tokens - 1
                                        : static_cast<Index>(share * static_cast<double>(request.tokens)) - 1);
  }
  return tokens;
}

/// Returns the rows of the sampled tokens, on rank 0. Each row is on one rank; the others add zeros.
Tensor rows_of_samples(const Ring& ring, const Request& request, const Tensor& out) {
  const std::vector<Index> tokens = sampled_tokens(request);
  Tensor own({static_cast<Index>(tokens.size()), request.heads, 1, request.dim}), all(own.shape());
  for (Index row = 0; row < out.dim(2); ++row) {
    const auto found = std::lower_bound(tokens.begin(), tokens.end(), ring.token(request.tokens, row));
    if (found == tokens.end() || *found != ring.token(request.tokens, row)) continue;
    for (Index h = 0; h < request.heads; ++h)
      for (Index d = 0; d < request.dim; ++d) own(found - tokens.begin(), h, 0, d) = out(0, h, row, d);
  }
  MPI_Reduce(own.data(), all.data(), static_cast<int>(own.size()), MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  return all;
}

double largest_difference(const View& a, const View& b) {
  double largest = 0;
  for (Index h = 0; h < a.dim(1); ++h) {
    const double x = static_cast<double>((a.matrix(0, h) - b.matrix(0, h)).cwiseAbs().maxCoeff());
    if (!(x <= largest)) largest = x;  // NaN too
  }
  return largest;
}

/// Throws on all ranks if a difference exceeds the rounding error of averages of values up to 1.7.
void require_small(double difference) {
  constexpr double kMost = 1e-5;
  MPI_Bcast(&difference, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (difference <= kMost) return;
  throw std::runtime_error("the result differs from that of one rank by " + std::to_string(difference));
}

/// Compares sampled rows with results that rank 0 computes alone, from keys that it draws itself.
void check_prefill(const Ring& ring, const Request& request, const RandomSequence& sequence, const Tensor& out) {
  const Tensor rows = rows_of_samples(ring, request, out);
  double largest = 0;
  if (ring.rank() == 0) {
    const std::vector<Index> tokens = sampled_tokens(request);
    const Tensor k = sequence.draw_from(RandomSequence::key, 0, request.tokens),
                 v = sequence.draw_from(RandomSequence::value, 0, request.tokens);
    display::Bar bar("comparing with one rank");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      attn::Options options = options_of(request);
      options.q_offset = tokens[i];
      const Tensor q = sequence.draw_from(RandomSequence::query, tokens[i], 1);
      const Tensor one =
          with_mask(request, [&](const auto& mods) { return attn::attention(q, k, v, mods, options).out; });
      const auto index = static_cast<Index>(i);
      const double difference = largest_difference(one, rows.slice(0, index, index + 1));
      if (!(difference <= largest)) largest = difference;
      bar.update(i + 1, tokens.size());
    }
    bar.clear();
    std::printf("%td rows compared with one rank: largest difference %.1e\n", request.check, largest);
  }
  require_small(largest);
}

/// Generates tokens over keys that stay on their ranks. The keys are striped, whatever the layout of the prefill,
/// because the sequence grows: token t goes to rank t mod P. A program whose keys are in another layout would move them
/// once.
void decode(const Request& request, const RandomSequence& sequence, const ranks::World& world) {
  Ring ring(MPI_COMM_WORLD, Layout::striped);
  const Index end = request.tokens + request.decode;
  const auto token = [&](Index row) { return ring.token(end, row); };
  const Tensor k = sequence.draw(RandomSequence::key, ring.rows(end), token),
               v = sequence.draw(RandomSequence::value, ring.rows(end), token);
  Tensor all_k, all_v;
  if (world.is_first() && request.check > 0) {
    all_k = sequence.draw_from(RandomSequence::key, 0, end);
    all_v = sequence.draw_from(RandomSequence::value, 0, end);
  }
  const attn::Options options = options_of(request);
  double seconds = 0, largest = 0;
  std::optional<display::Bar> bar;
  if (world.is_first()) bar.emplace("decoding");
  for (Index len = request.tokens + 1; len <= end; ++len) {
    const Tensor q = sequence.draw_from(RandomSequence::query, len - 1, 1);
    const Index own = ring.rows(len);
    with_mask(request, [&](const auto& mods) {
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = Clock::now();
      const auto result = ring.decode(q, k.slice(2, 0, own), v.slice(2, 0, own), mods, options);
      seconds += seconds_since(start);
      if (all_k.size() == 0) return;
      const auto one = attn::attention(q, all_k.slice(2, 0, len), all_v.slice(2, 0, len), mods, options);
      const double difference = largest_difference(result.out, one.out);
      if (!(difference <= largest)) largest = difference;
    });
    if (bar) bar->update(len - request.tokens, request.decode);
  }
  bar.reset();
  if (world.is_first()) {
    std::printf("%td tokens in %.2f ms each over striped keys", request.decode,
                1e3 * seconds / static_cast<double>(request.decode));
    if (request.check > 0) std::printf(": largest difference %.1e", largest);
    std::printf("\n");
  }
  require_small(largest);
}

void prefill(const Request& request, const RandomSequence& sequence, const ranks::World& world) {
  Ring ring(MPI_COMM_WORLD, request.layout);
  const Index rows = ring.rows(request.tokens);
  const auto token = [&](Index row) { return ring.token(request.tokens, row); };
  const Tensor q = sequence.draw(RandomSequence::query, rows, token),
               k = sequence.draw(RandomSequence::key, rows, token),
               v = sequence.draw(RandomSequence::value, rows, token);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  const Tensor out = with_mask(request, [&](const auto& mods) {
    return request.by_heads ? ring.attention_by_heads(q, k, v, mods, options_of(request)).out
                            : ring.attention(q, k, v, mods, options_of(request)).out;
  });
  const double seconds = seconds_since(start);
  const auto own_bytes = static_cast<double>(q.size() + k.size() + v.size() + out.size()) * sizeof(float);
  print_table(request, world, rows, seconds, ring.traffic(), own_bytes);
  if (request.check > 0) check_prefill(ring, request, sequence, out);
}

}  // namespace

int main(int argc, char** argv) {
  const ranks::World world(argc, argv);
  return world.run("long_context", [&] {
    std::ostream nowhere(nullptr);
    const std::optional<Request> request = parse(argc, argv, world.is_first() ? std::cout : nowhere);
    if (!request) return EXIT_SUCCESS;
    const RandomSequence sequence(*request);
    prefill(*request, sequence, world);
    if (request->decode > 0) decode(*request, sequence, world);
    return EXIT_SUCCESS;
  });
}
