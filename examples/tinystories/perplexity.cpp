#include "perplexity.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tinystories {

double perplexity(const Transformer& network, const Tokens& tokens, Context& context, const attn::Options& options) {
  if (tokens.size() < 2) throw std::invalid_argument("the text has no tokens");
  double sum = 0;
  // The last token of a part is predicted, but not fed.
  for (auto next = tokens.begin() + 1; next != tokens.end();) {
    const auto end = next + std::min<Index>(context.capacity(), tokens.end() - next);
    Tokens fed{Tokenizer::kBegin};
    fed.insert(fed.end(), next, end - 1);
    context.truncate(0);
    const Matrix logits = network.logits(network.forward(fed, context, options), options);
    for (Index i = 0; next != end; ++i, ++next) {
      const auto row = logits.row(i).cast<double>();
      const double largest = row.maxCoeff();
      sum += largest + std::log((row.array() - largest).exp().sum()) - row(*next);
    }
  }
  return std::exp(sum / static_cast<double>(tokens.size() - 1));
}

}  // namespace tinystories
