// Checks that the ranks of a call agree, and tells all of them if they do not or if one has failed.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
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
  template <class X>
  requires std::is_arithmetic_v<X>
  void add(X x) {
    unsigned char bytes[sizeof(X)];
    std::memcpy(bytes, &x, sizeof(x));
    for (const unsigned char byte : bytes) value_ = (value_ ^ byte) * 1099511628211u;
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

/// A hash of a text or of a list of integers.
template <class List>
std::int64_t hash_of(const List& list) {
  Hash hash;
  for (const auto x : list) hash.add(x);
  return hash.value();
}

/// The values that the ranks of a call compare before they exchange any data: named integers, some of them hashes. All
/// calls of an operation add the same terms in the same order, and begin with add_types().
class Terms {
 public:
  /// Adds a number, which messages give; std::nullopt is an option that is not given.
  void add(const char* name, std::optional<double> x) {
    add({name, Kind::real}, x ? std::bit_cast<std::int64_t>(*x) : kNone);
  }
  template <std::integral N>
  void add(const char* name, N x) {
    add({name, Kind::size}, static_cast<std::int64_t>(x));
  }
  void add(const char* name, std::optional<Index> x) {
    add({name, Kind::size}, x ? static_cast<std::int64_t>(*x) : kNone);
  }
  /// Adds a hash or a code, which messages do not give.
  template <class Code>
  void add_opaque(const char* name, Code x) {
    add({name, Kind::opaque}, static_cast<std::int64_t>(x));
  }

  template <class T>
  void add_types(const char* operation, DType q, DType k, DType v) {
    add_opaque("the function called", hash_of(std::string_view(operation)));
    add_opaque("the scalar type of query", q);
    add_opaque("the scalar type of key", k);
    add_opaque("the scalar type of value", v);
    add("the size of the computed scalar type", sizeof(T));
  }
  /// Adds the sizes of a rank's part of a call, its options, and the type of its mods, `Mods`.
  template <class Mods>
  void add_call(const Problem& p, const Options& options) {
    add("batch", p.batch);
    add("the number of heads", p.heads);
    add("the number of key/value heads", p.kv_heads);
    add("head_dim", p.head_dim);
    add("v_dim", p.v_dim);
    add("scale", std::optional(static_cast<double>(p.scale)));
    add("q_offset", options.q_offset);
    add_opaque("the list of q_offsets", hash_of(options.q_offsets.values));
    add("kv_offset", options.kv_offset);
    add("the bias of the sigmoid", p.sigmoid_bias);
    add_opaque("Options::compute", options.compute);
    add("Options::row_invariant", static_cast<int>(options.row_invariant));
    add_opaque("the type of the mods", hash_of(std::string_view(typeid(Mods).name())));
    values.q_rows = p.q_len;
    values.kv_rows = p.kv_len;
  }

  /// What ranks exchange. Trivially copyable.
  struct Values {
    std::array<std::int64_t, 32> terms{};
    std::int64_t q_rows = 0, kv_rows = 0;  ///< the rank's own, which may differ between ranks
    std::int64_t failed = 0;               ///< Failure::code(); unless 0, the terms are meaningless
  } values;

  /// Refuses the terms of rank `r`, unless they are those of rank 0.
  void compare(const Values& zero, const Values& other, std::size_t r) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const auto& [name, kind] = terms_[i];
      const std::int64_t a = zero.terms[i], b = other.terms[i];
      if (a == b) continue;
      if (kind == Kind::opaque) refuse({"ranks disagree: ", name, " differs between rank 0 and rank ", r});
      refuse({"ranks disagree: ", name, " is ", text(kind, a), " on rank 0, ", text(kind, b), " on rank ", r});
    }
  }

 private:
  enum class Kind { size, real, opaque };
  struct Term {
    const char* name;
    Kind kind;
  };
  static constexpr std::int64_t kNone = INT64_MIN;

  void add(const Term& term, std::int64_t value) {
    terms_.at(count_) = term;
    values.terms[count_++] = value;
  }
  static std::string text(Kind kind, std::int64_t x) {
    if (x == kNone) return "none";
    return kind == Kind::real ? joined({std::bit_cast<double>(x)}) : joined({x});
  }

  std::array<Term, std::tuple_size_v<decltype(Values::terms)>> terms_{};
  std::size_t count_ = 0;
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

/// How rows are distributed over ranks.
struct Sharing {
  mpi::Layout layout;
  bool of_queries = true;  ///< false: all ranks have all queries
  bool by_heads = false;   ///< whether ranks exchange tokens for heads, so that no results are merged
};

/// Refuses options and mods that a Ring cannot honour.
inline void check_ring_options(const Options& options, const Sharing& sharing, bool changes_weights) {
  require(options.workspace.data() == nullptr,
          "a Ring allocates its own memory; Options::workspace must be empty, but has ", options.workspace.size(),
          " bytes");
  require(
      !options.row_invariant || sharing.by_heads,
      "row_invariant: this call merges the results of ranks, so bits depend on the layout; use attention_by_heads()");
  check_neighbouring_heads(options, "a Ring");
  require(!changes_weights || sharing.by_heads,
          "weight_mod() does not work in calls that merge the results of ranks; use attention_by_heads()");
}

/// Compares the terms of all ranks. @returns the lengths of the whole sequence.
/// @throws std::invalid_argument, the same on all ranks, if two ranks disagree, if one has refused its arguments, or if
/// one does not have the rows that the layout gives it.
inline Lengths agree(const Communicator& comm, Terms own, const Failure& failure, const Sharing& sharing) {
  own.add_opaque("the token layout", sharing.layout);
  own.add("q_len", sharing.of_queries ? 0 : own.values.q_rows);
  own.values.failed = failure.code();
  const std::vector<Terms::Values> all = comm.all(own.values);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].failed != 0) fail_together(comm, static_cast<int>(r), all[r].failed == 1, failure);
  Lengths lengths;
  for (std::size_t r = 0; r < all.size(); ++r) {
    own.compare(all[0], all[r], r);
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

}  // namespace attn::detail
