#include "beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "batches.h"
#include "threads.h"

namespace translation {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// A possible continuation: one of a source's beams and the next piece.
struct Candidate {
  double log_prob;
  Index beam;
  std::int32_t piece;
};

struct Beam {
  Ids target;
  double log_prob;
};

/// The search for one source's target.
class Hypotheses {
 public:
  Hypotheses(const SearchConfig& config, std::size_t most) : config_(config), most_(most) {
    // All beams are equal at first, so only one of them is extended.
    beams_.assign(static_cast<std::size_t>(config.beams), {{}, kNever});
    beams_.front().log_prob = 0;
  }

  bool done() const { return done_; }
  double log_prob(Index beam) const { return beams_[static_cast<std::size_t>(beam)].log_prob; }
  std::int32_t last(Index beam) const {
    const Ids& target = beams_[static_cast<std::size_t>(beam)].target;
    return target.empty() ? Pieces::kEnd : target.back();
  }

  /// Takes the best candidates, best first. There are twice as many as beams, so that enough remain if all beams end.
  /// Returns the beam that each new one extends.
  std::vector<Index> advance(const std::vector<Candidate>& candidates) {
    std::vector<Beam> next;
    std::vector<Index> from;
    const auto beams = static_cast<std::size_t>(config_.beams);
    for (std::size_t i = 0; i < candidates.size() && next.size() < beams; ++i) {
      const Candidate& c = candidates[i];
      Beam beam = beams_[static_cast<std::size_t>(c.beam)];
      beam.log_prob = c.log_prob;
      if (c.piece == Pieces::kEnd) {
        if (i < beams) finish(beam);
        continue;
      }
      beam.target.push_back(c.piece);
      next.push_back(std::move(beam));
      from.push_back(c.beam);
    }
    beams_ = std::move(next);
    beams_.resize(beams, {{}, kNever});  // fewer if the model gives pieces probability 0
    const Beam& first = beams_.front();
    if (first.target.size() >= most_) finish(first);
    // A beam's log-probability falls with each further piece, but a longer target's is divided by more. The best score
    // that any beam can reach is its current log-probability, divided by the penalty of the greatest length. A single
    // beam is greedy: the search is over when it ends.
    const bool hopeless = beams == 1 || best_.log_prob >= score(first.log_prob, most_ + 1);
    done_ = first.log_prob == kNever || first.target.size() >= most_ || (finished_ && hopeless);
    return from;
  }

  const Ids& best() const { return best_.target; }

 private:
  double score(double log_prob, std::size_t length) const {
    return log_prob / std::pow(static_cast<double>(length), config_.length_penalty);
  }

  void finish(const Beam& beam) {
    const double reached = score(beam.log_prob, beam.target.size() + 1);  // including its end
    if (!finished_ || reached > best_.log_prob) best_ = {beam.target, reached};
    finished_ = true;
  }

  SearchConfig config_;
  std::size_t most_;
  std::vector<Beam> beams_;
  Beam best_;  // the best target that ended, with its score
  bool finished_ = false, done_ = false;
};

/// Returns the best candidates of a source, best first, equal ones in the order of beam and piece.
std::vector<Candidate> best_candidates(const Hypotheses& hypotheses, Index first_row, Index beams,
                                       const nn::States<float>& logits) {
  const Index pieces = logits.dim(2);
  std::vector<Candidate> best;
  const auto better = [](const Candidate& a, const Candidate& b) {
    if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
    return std::pair(a.beam, a.piece) < std::pair(b.beam, b.piece);
  };
  const auto most = static_cast<std::size_t>(2 * beams);
  for (Index beam = 0; beam < beams; ++beam) {
    if (hypotheses.log_prob(beam) == kNever) continue;
    const auto row = nn::rows_of(logits).row(first_row + beam);
    const float largest = row.maxCoeff();
    const double log_sum =
        static_cast<double>(largest) + std::log(static_cast<double>((row.array() - largest).exp().sum()));
    for (Index piece = 0; piece < pieces; ++piece) {
      const Candidate c{hypotheses.log_prob(beam) + static_cast<double>(row[piece]) - log_sum, beam,
                        static_cast<std::int32_t>(piece)};
      if (best.size() == most && !better(c, best.back())) continue;
      best.insert(std::upper_bound(best.begin(), best.end(), c, better), c);
      if (best.size() > most) best.pop_back();
    }
  }
  return best;
}

/// Replaces each sequence i with the old sequence from[i]. The next step copies those that are used several times.
void reorder(nn::Caches<float>& caches, const std::vector<Index>& from) {
  std::vector<Index> forks;
  for (const Index i : from) forks.push_back(caches.kv.fork(caches.sequences[static_cast<std::size_t>(i)]));
  for (const Index sequence : caches.sequences) caches.kv.release(sequence);
  caches.sequences = std::move(forks);
}

}  // namespace

std::vector<Ids> search(const nn::Transformer<float>& model, const std::vector<Ids>& sources,
                        const SearchConfig& config) {
  if (config.beams < 1) throw std::invalid_argument("beam search needs at least one beam");
  const auto count = static_cast<Index>(sources.size());
  std::vector<Index> lengths;
  std::vector<Hypotheses> all;
  Index longest = 0;  // of the targets
  for (const Ids& source : sources) {
    lengths.push_back(static_cast<Index>(source.size()));
    const Index most = 3 * lengths.back() + 20;
    all.emplace_back(config, static_cast<std::size_t>(most));
    longest = std::max(longest, most);
  }
  const Index beams = config.beams;
  auto state = model.encode(padded(sources, Characters::kEnd), lengths, longest, beams);
  auto last = nn::Tokens::uninitialized({count * beams, 1});
  std::fill_n(last.data(), last.size(), Pieces::kEnd);
  std::vector<Index> from(static_cast<std::size_t>(count * beams));
  while (!std::all_of(all.begin(), all.end(), [](const Hypotheses& h) { return h.done(); })) {
    const nn::States<float> logits = model.next(last, state);
    constexpr double kNanosecondsOfToken = 3;
    nn::for_blocks(
        count, 1, kNanosecondsOfToken * static_cast<double>(logits.dim(2) * beams), [&](Index begin, Index end) {
          for (Index s = begin; s < end; ++s) {
            Hypotheses& hypotheses = all[static_cast<std::size_t>(s)];
            const Index row = s * beams;
            std::vector<Index> parents;
            if (!hypotheses.done()) parents = hypotheses.advance(best_candidates(hypotheses, row, beams, logits));
            for (Index b = 0; b < beams; ++b) {
              const bool goes_on = b < static_cast<Index>(parents.size());
              from[static_cast<std::size_t>(row + b)] = row + (goes_on ? parents[static_cast<std::size_t>(b)] : b);
              if (goes_on) last(row + b, 0) = hypotheses.last(b);
            }
          }
        });
    if (beams > 1) reorder(state.targets, from);
  }
  std::vector<Ids> targets;
  for (const Hypotheses& hypotheses : all) targets.push_back(hypotheses.best());
  return targets;
}

}  // namespace translation
