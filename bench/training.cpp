// Times a training step of a GPT and its parts: its linear products and its attention, each alone on tensors of the
// same sizes, interleaved with the whole step. The rest is norms, activations, the loss and the optimiser.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "adamw.h"
#include "cross_entropy.h"
#include "gpt.h"
#include "program.h"
#include "progress.h"
#include "random.h"
#include "table.h"
#include "thread_model.h"
#include "threads.h"
#include "timing.h"
#include "timing_with_peak.h"

namespace {

using namespace bench;
using attn::Index;

struct Sizes {
  Index batch = 12, context = 64, tokens = 65, layers = 4, heads = 4, features = 128;

  Index rows() const { return batch * context; }
};

attn::Tensor<float, 3> random_states(const Sizes& s, Index features, std::uint64_t seed) {
  attn::Tensor<float, 3> x({s.batch, s.context, features});
  nn::Random random(seed);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.normal());
  return x;
}

/// A training step: forward, loss, backward, clipping and AdamW, as in train_gpt.
class Step {
 public:
  explicit Step(const Sizes& s)
      : model_({.tokens = s.tokens, .context = s.context, .layers = s.layers, .heads = s.heads, .features = s.features},
               1),
        inputs_({s.batch, s.context}),
        targets_({s.batch, s.context}) {
    nn::Random random(2);
    for (Index i = 0; i < s.rows(); ++i) {
      inputs_.data()[i] = static_cast<std::int32_t>(random.below(s.tokens));
      targets_.data()[i] = static_cast<std::int32_t>(random.below(s.tokens));
    }
  }

  void operator()() {
    nn::CrossEntropy<float> cross_entropy;
    cross_entropy.forward(model_.forward(inputs_), targets_);
    nn::zero_gradients<float>(model_);
    model_.backward(cross_entropy.backward());
    const auto parameters = nn::parameters_of<float>(model_);
    nn::clip_grad_norm(parameters, 1.0);
    optimizer_.step(parameters, 1e-3);
  }

 private:
  nn::Gpt<float> model_;
  nn::AdamW<float> optimizer_;
  nn::Tokens inputs_, targets_;
};

/// One linear layer: its result and both gradients.
class Products {
 public:
  Products(const Sizes& s, Index inputs, Index outputs)
      : x_(random_states(s, inputs, 3)),
        grad_x_(random_states(s, inputs, 4)),
        y_(random_states(s, outputs, 5)),
        grad_y_(random_states(s, outputs, 6)),
        weight_({outputs, inputs}),
        gradient_({outputs, inputs}),
        flops_(3 * 2.0 * static_cast<double>(s.rows() * inputs * outputs)) {}

  double flops() const { return flops_; }
  void operator()() {
    attn::linear_into(y_, x_, weight_, nn::options());
    attn::add_linear_gradients(gradient_, x_, grad_y_, nn::options());
    attn::linear_gradient_into(grad_x_, grad_y_, weight_, nn::options());
  }

 private:
  attn::Tensor<float, 3> x_, grad_x_, y_, grad_y_;
  attn::Tensor<float, 2> weight_, gradient_;
  double flops_;
};

/// The causal attention of one layer, forward and backward: 2 and 5 products over the kept pairs.
class Attention {
 public:
  explicit Attention(const Sizes& s)
      : qkv_(random_states(s, 3 * s.features, 7)),
        out_(random_states(s, s.features, 8)),
        grad_out_(random_states(s, s.features, 9)),
        grads_(random_states(s, 3 * s.features, 10)),
        lse_({s.batch, s.heads, s.context}),
        sizes_(s) {}

  double flops() const {
    const Sizes& s = sizes_;
    const double pairs = static_cast<double>(s.batch * s.heads * s.context * (s.context + 1)) / 2;
    return 7 * 2 * pairs * static_cast<double>(s.features / s.heads);
  }
  void operator()() {
    const auto q = heads(qkv_, 0), k = heads(qkv_, 1), v = heads(qkv_, 2), out = heads(out_, 0);
    attn::attention_into(out, lse_, q, k, v, attn::causal(), nn::options());
    attn::attention_backward_into(heads(grads_, 0), heads(grads_, 1), heads(grads_, 2), heads(grad_out_, 0), q, k, v,
                                  out, lse_, attn::causal(), nn::options());
  }

 private:
  /// Each row of x holds the features of several tensors, one after another; returns the heads of the i-th tensor.
  attn::TensorView<float, 4> heads(attn::Tensor<float, 3>& x, Index i) const {
    const Sizes& s = sizes_;
    const Index dim = s.features / s.heads, row = x.dim(2);
    return {x.data() + i * s.features, {s.batch, s.heads, s.context, dim}, {s.context * row, dim, row, 1}};
  }

  attn::Tensor<float, 3> qkv_, out_, grad_out_, grads_;
  attn::Tensor<float, 3> lse_;
  Sizes sizes_;
};

template <class Part>
double flops(const std::vector<Part>& parts) {
  double sum = 0;
  for (const Part& part : parts) sum += part.flops();
  return sum;
}

template <class Part>
std::function<void()> all_of(std::vector<Part>& parts) {
  return [&parts] {
    for (Part& part : parts) part();
  };
}

/// Prints the predicted time of a step on more threads; see thread_model.h.
void print_model(Step& step, int most, int runs) {
  const auto on = [&](const attn::Executor& executor) {
    nn::set_executor(executor);
    step();
  };
  const double alone = predicted(on, 1, false, runs).time;
  std::cout << "\nA step on more threads, predicted by the model of the benchmark `threads`: "
            << time_text(1e-6 * alone) << " on one";
  for (const int n : doubled_up_to(most))
    if (n > 1) std::cout << ", " << fixed(alone / predicted(on, n, false, runs).time, 1) << " x on " << n;
  std::cout << ".\n";
}

}  // namespace

int main(int argc, char** argv) {
  Program program("training", "Times a training step of a GPT with nanoGPT's CPU sizes, and its parts.");
  int threads = 1, model = 0;
  program.number("--threads", threads, "workers", 1, 1024);
  program.number("--model", model, "also predict a step on up to this many threads", 0, 1024);
  return program.main(argc, argv, [&] {
    nn::keep_memory();
    nn::set_threads(threads);
    const Sizes s;
    Step step(s);
    // Each layer has its own tensors, so that they are in the caches no more often than in the whole step.
    std::vector<Products> products;
    std::vector<Attention> attentions;
    for (Index layer = 0; layer < s.layers; ++layer) {
      products.emplace_back(s, s.features, 3 * s.features);
      products.emplace_back(s, s.features, s.features);
      products.emplace_back(s, s.features, 4 * s.features);
      products.emplace_back(s, 4 * s.features, s.features);
      attentions.emplace_back(s);
    }
    products.emplace_back(s, s.features, s.tokens);

    Progress progress(1);
    progress.begin_row("the step and its parts in turn");
    const auto timed = interleaved_with_peak<float>({step, all_of(products), all_of(attentions)},
                                                    program.quick() ? Budget{0.01, 3} : Budget{2, 41},
                                                    nn::options().executor, progress);
    progress.clear();
    const std::vector<Timing>& times = timed.times;
    const double peak = timed.peak;

    std::ostringstream sizes;
    sizes << s.layers << " layers, " << s.heads << " heads, " << s.features << " features, " << s.batch << " texts of "
          << s.context << " tokens, threads: " << threads << ". FMA peak " << fixed(peak / 1e9, 0) << " GFLOP/s.";
    std::cout << sizes.str() << '\n';
    Table table(1);
    table.column("", "part");
    table.column("time", "ms");
    table.column("time", "of the step");
    table.column("rate", "GFLOP/s");
    table.column("rate", "of peak");
    BarChart chart{.title = "A training step of a GPT",
                   .notes = {sizes.str()},
                   .series = {},
                   .mark = "",
                   .axes = {{"Time", "share of the step", BarChart::Scale::linear, " %"},
                            {"Speed: longer is better", "share of the FMA peak", BarChart::Scale::linear, " %", 240}}};
    const auto row = [&](const char* part, double time, double done) {
      const double share = 100 * time / times[0].seconds, rate = done / time, of_peak = 100 * rate / peak;
      table.row({part, fixed(1e3 * time, 2), fixed(share, 0) + " %", done > 0 ? fixed(rate / 1e9, 0) : "",
                 done > 0 ? fixed(of_peak, 0) + " %" : ""});
      BarChart::Bar bar{0, {{share, time_text(time)}, {}}};
      if (done > 0) bar.on[1] = {of_peak, fixed(rate / 1e9, 0) + " GFLOP/s"};
      chart.groups.push_back({.name = part, .detail = "", .bars = {std::move(bar)}});
    };
    row("step", times[0].seconds, flops(products) + flops(attentions));
    row("linear products", times[1].seconds, flops(products));
    row("attention", times[2].seconds, flops(attentions));
    row("the rest", times[0].seconds - times[1].seconds - times[2].seconds, 0);
    table.print(std::cout);
    if (model > 0) print_model(step, model, program.quick() ? 1 : 5);
    program.draw(chart);
    program.results().add("step", times[0]);
    program.results().add("linear products", times[1], {{"flops_per_second", flops(products) / times[1].seconds}});
    program.results().add("attention", times[2], {{"flops_per_second", flops(attentions) / times[2].seconds}});
  });
}
