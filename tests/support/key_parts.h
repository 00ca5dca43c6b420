// Parts of a call's keys (Options::kv_offset), and their meaning for the oracle.
#pragma once

#include <sstream>
#include <string>

#include "attn/tensor_view.h"
#include "row.h"

namespace attn::test {

/// The meaning of a mod in a call over only a part of the keys.
inline Meaning of_part(const Meaning& meaning, Range part) {
  return both(meaning, {[=](const Pair& p) { return part.begin <= p.kv && p.kv < part.end; }, {}});
}

/// Whether a mod's meaning is different for a part of the keys, because it depends on the number of keys or assumes
/// that the queries are the last tokens.
inline bool needs_all_keys(const std::string& name, const Numbers& numbers) {
  return name == "bound not last" || (name.rfind("tree", 0) == 0 && numbers.q_offset);
}

inline std::string text_of_part(const std::string& name, const Sizes& sizes, Range part, const Numbers& numbers) {
  std::ostringstream text;
  text << name << ", " << sizes << ", keys " << part.begin << ".." << part.end << ", first query "
       << numbers.first_position(sizes);
  return text.str();
}

/// The part's rows of keys, values or gradients.
template <class T>
TensorView<T, 4> rows_of(const TensorView<T, 4>& all, Range part) {
  return all.slice(2, part.begin, part.end);
}

}  // namespace attn::test
