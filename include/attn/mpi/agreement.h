// Checks that the ranks of a call agree, and tells all of them if they do not or if one has failed.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "attn/core/tensor/problem.h"
#include "attn/mpi/communicator.h"
#include "attn/mpi/token_layout.h"

namespace attn::mpi {

/// Thrown when another rank could not do its part of a call, because a mod or an allocation threw there. That rank
/// throws the original exception; all others throw this. The communicator stays usable.
class RankError : public std::runtime_error {
 public:
  RankError(int rank, const std::string& what) : std::runtime_error(what), rank_(rank) {}
  /// Returns the rank that failed, numbered as in the Ring's communicator; the lowest if several did.
  int rank() const { return rank_; }

 private:
  int rank_;
};

}  // namespace attn::mpi

namespace attn::detail {

/// FNV-1a: equal on all ranks, which std::hash need not be.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  template <class X>
  requires std::is_arithmetic_v<X>
  void add(X x) {
    char bytes[sizeof(X)];
    std::memcpy(bytes, &x, sizeof(x));
    add(std::string_view(bytes, sizeof(bytes)));
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

/// The values that the ranks of a call compare before they exchange any data: named integers, some of them hashes.
/// Trivially copyable.
struct Terms {
  enum Name {
    operation,
    layout,
    root,
    q_type,
    k_type,
    v_type,
    out_type,
    grad_out_type,
    grad_lse,
    scalar,
    batch,
    sequences,
    query_lens,
    prompts,
    heads,
    kv_heads,
    q_len,
    head_dim,
    v_dim,
    scale,
    q_offset,
    q_offsets,
    kv_offset,
    sigmoid_bias,
    compute,
    row_invariant,
    mods,
    count
  };
  enum class Kind { size, real, opaque };
  struct Description {
    const char* text;
    Kind kind;
  };
  static constexpr std::array<Description, count> kDescriptions{{
      {"the function called", Kind::opaque},
      {"the token layout", Kind::opaque},
      {"the root", Kind::size},
      {"the scalar type of query", Kind::opaque},
      {"the scalar type of key", Kind::opaque},
      {"the scalar type of value", Kind::opaque},
      {"the scalar type of out", Kind::opaque},
      {"the scalar type of grad_out", Kind::opaque},
      {"the number of lse gradients", Kind::size},
      {"the size of the computed scalar type", Kind::size},
      {"batch", Kind::size},
      {"the number of sequences", Kind::size},
      {"the list of ragged query lengths", Kind::opaque},
      {"the list of prompt lengths", Kind::opaque},
      {"the number of heads", Kind::size},
      {"the number of key/value heads", Kind::size},
      {"q_len", Kind::size},
      {"head_dim", Kind::size},
      {"v_dim", Kind::size},
      {"scale", Kind::real},
      {"q_offset", Kind::size},
      {"the list of q_offsets", Kind::opaque},
      {"kv_offset", Kind::size},
      {"the bias of the sigmoid", Kind::real},
      {"Options::compute", Kind::opaque},
      {"Options::row_invariant", Kind::size},
      {"the type of the mods", Kind::opaque},
  }};
  /// The value of an option that is not given.
  static constexpr std::int64_t kNone = INT64_MIN;

  std::array<std::int64_t, count> values{};
  std::int64_t q_rows = 0, kv_rows = 0;  ///< the rank's own, which may differ between ranks
  std::int64_t failed = 0;               ///< Failure::code(); unless 0, the other terms are meaningless

  template <class X>
  void set(Name name, X x) {
    if constexpr (std::is_floating_point_v<X>)
      values[name] = std::bit_cast<std::int64_t>(static_cast<double>(x));
    else
      values[name] = static_cast<std::int64_t>(x);
  }
};

/// Numbers of tokens on all ranks together.
struct Lengths {
  Index q = 0, kv = 0;
};

/// Records that a rank has failed, and what it threw.
class Failure {
 public:
  /// Runs `work`, unless something has failed before.
  template <class Work>
  void guard(const Work& work) {
    if (error_) return;
    try {
      work();
    } catch (const std::invalid_argument& e) {
      error_ = std::current_exception();
      text_ = e.what();
      is_refusal_ = true;
    } catch (const std::exception& e) {
      error_ = std::current_exception();
      text_ = e.what();
    } catch (...) {
      error_ = std::current_exception();
      text_ = "an exception of unknown type";
    }
  }
  bool happened() const { return error_ != nullptr; }
  /// Returns the code that other ranks get: 0 for success, 1 for refused arguments, 2 for another exception.
  std::int64_t code() const { return happened() ? is_refusal_ ? 1 : 2 : 0; }
  const std::string& text() const { return text_; }
  [[noreturn]] void rethrow() const { std::rethrow_exception(error_); }

 private:
  std::exception_ptr error_;
  std::string text_;
  bool is_refusal_ = false;
};

/// Ends a call on all ranks because one has failed. If it refused its arguments before any data was exchanged, all
/// ranks throw std::invalid_argument with its message. Otherwise it rethrows its exception, and the others throw
/// RankError.
[[noreturn]] inline void fail_together(const Communicator& comm, int rank, bool is_refusal, const Failure& failure) {
  std::string text = comm.text_of(rank, failure.text());
  if (!is_refusal) {
    if (failure.happened()) failure.rethrow();
    throw mpi::RankError(rank, joined({"attn: rank ", rank, " failed: ", text}));
  }
  if (text.starts_with("attn: ")) text.erase(0, 6);
  refuse({"rank ", rank, ": ", text});
}

/// Ends a call on all ranks: throws if one of them failed.
inline void end_together(const Communicator& comm, const Failure& failure) {
  const int rank = comm.first_failed(failure.happened());
  if (rank >= 0) fail_together(comm, rank, false, failure);
}

inline std::string term_text(const Terms& terms, Terms::Name name) {
  const std::int64_t x = terms.values[name];
  if (x == Terms::kNone) return "none";
  if (Terms::kDescriptions[name].kind == Terms::Kind::real) return joined({std::bit_cast<double>(x)});
  return joined({x});
}

/// How rows are distributed over ranks.
struct Sharing {
  mpi::Layout layout;
  bool of_queries = true;  ///< false: all ranks have all queries
  bool by_heads = false;   ///< whether ranks exchange tokens for heads, so that no results are merged
};

/// Refuses options that a Ring cannot honour.
inline void check_ring_options(const Options& options, const Sharing& sharing) {
  require(options.workspace.data() == nullptr,
          "a Ring allocates its own memory; Options::workspace must be empty, but has ", options.workspace.size(),
          " bytes");
  require(
      !options.row_invariant || sharing.by_heads,
      "row_invariant: this call merges the results of ranks, so bits depend on the layout; use attention_by_heads()");
}

/// Compares the terms of all ranks. @returns the lengths of the whole sequence.
/// @throws std::invalid_argument, the same on all ranks, if two ranks disagree, if one has refused its arguments, or if
/// one does not have the rows that the layout gives it.
inline Lengths agree(const Communicator& comm, Terms own, const Failure& failure, const Sharing& sharing) {
  own.failed = failure.code();
  own.set(Terms::layout, static_cast<int>(sharing.layout));
  own.set(Terms::q_len, sharing.of_queries ? 0 : own.q_rows);
  const std::vector<Terms> all = comm.all(own);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].failed != 0) fail_together(comm, static_cast<int>(r), all[r].failed == 1, failure);
  Lengths lengths;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t i = 0; i < Terms::count; ++i) {
      const auto name = static_cast<Terms::Name>(i);
      if (all[r].values[i] == all[0].values[i]) continue;
      const char* const text = Terms::kDescriptions[i].text;
      if (Terms::kDescriptions[i].kind == Terms::Kind::opaque)
        refuse({"ranks disagree: ", text, " differs between rank 0 and rank ", r});
      refuse({"ranks disagree: ", text, " is ", term_text(all[0], name), " on rank 0, ", term_text(all[r], name),
              " on rank ", r});
    }
    lengths.q = static_cast<Index>(all[r].q_rows) + (sharing.of_queries ? lengths.q : 0);
    lengths.kv += static_cast<Index>(all[r].kv_rows);
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto rank = static_cast<Index>(r), ranks = static_cast<Index>(all.size());
    const auto check = [&](const char* what, Index rows, Index len) {
      const Index wanted = RankTokens(sharing.layout, len, rank, ranks).rows();
      require(rows == wanted, "rank ", rank, " has ", rows, " rows of ", what, ", but the layout gives it ", wanted,
              " of ", len, " tokens on ", ranks, " ranks");
    };
    if (sharing.of_queries) check("queries", static_cast<Index>(all[r].q_rows), lengths.q);
    check("keys", static_cast<Index>(all[r].kv_rows), lengths.kv);
  }
  return lengths;
}

/// Returns the terms of a call with the given sizes of a rank. `Mods` is the type of its mods.
template <class Mods>
Terms terms_of(const char* operation, const Problem& p, const Options& options) {
  Terms t;
  const auto hash = [](std::string_view text) {
    Hash h;
    h.add(text);
    return h.value();
  };
  t.set(Terms::operation, hash(operation));
  t.set(Terms::batch, p.batch);
  t.set(Terms::heads, p.heads);
  t.set(Terms::kv_heads, p.kv_heads);
  t.set(Terms::head_dim, p.head_dim);
  t.set(Terms::v_dim, p.v_dim);
  t.set(Terms::scale, static_cast<double>(p.scale));
  t.set(Terms::q_offset, options.q_offset ? static_cast<std::int64_t>(*options.q_offset) : Terms::kNone);
  t.set(Terms::kv_offset, options.kv_offset ? static_cast<std::int64_t>(*options.kv_offset) : Terms::kNone);
  Hash offsets;
  for (const Index offset : options.q_offsets.values) offsets.add(static_cast<std::int64_t>(offset));
  t.set(Terms::q_offsets, offsets.value());
  if (p.sigmoid_bias)
    t.set(Terms::sigmoid_bias, *p.sigmoid_bias);
  else
    t.set(Terms::sigmoid_bias, Terms::kNone);
  t.set(Terms::compute, static_cast<int>(options.compute));
  t.set(Terms::row_invariant, options.row_invariant ? 1 : 0);
  t.set(Terms::mods, hash(typeid(Mods).name()));
  t.q_rows = p.q_len;
  t.kv_rows = p.kv_len;
  return t;
}

}  // namespace attn::detail
