// Parts of the keys of a call (Options::kv_offset), and what they mean to the oracle.
#pragma once

#include <sstream>
#include <string>

#include "attn/tensor_view.h"
#include "row.h"

namespace attn::test {

/// What a mod means for a call that has a part of the keys alone.
inline Meaning of_part(const Meaning& meaning, Range part) {
  return both(meaning, {[=](const Pair& p) { return part.begin <= p.kv && p.kv < part.end; }, {}});
}

/// Whether a mod means something else for a part: it asks for the number of keys, or takes the queries for the last of
/// them.
inline bool needs_all_keys(const std::string& name, const Numbers& numbers) {
  return name == "bound not last" || (name.rfind("tree", 0) == 0 && numbers.q_offset);
}

inline std::string text_of_part(const std::string& name, const Sizes& sizes, Range part, const Numbers& numbers) {
  std::ostringstream text;
  text << name << ", " << sizes << ", keys " << part.begin << ".." << part.end << ", first query "
       << numbers.first_position(sizes);
  return text.str();
}

/// The rows of a part, of keys, values or their gradients.
template <class T>
TensorView<T, 4> rows_of(const TensorView<T, 4>& all, Range part) {
  return all.slice(2, part.begin, part.end);
}

}  // namespace attn::test
