// oneDNN as a contestant: attention written with its matmul and softmax primitives over blocks of queries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "rivals.h"

// From libgomp, which oneDNN uses. Its header would require OpenMP mode, which changes Eigen.
extern "C" void omp_set_num_threads(int) noexcept;

namespace bench {

namespace {

using dnnl::memory;
using Args = std::unordered_map<int, memory>;

// The executor's workers are the only threads; oneDNN must not start others. The setting is per thread.
void stay_on_this_thread() { omp_set_num_threads(1); }

const dnnl::engine& cpu() {
  static const dnnl::engine engine = [] {
    // An instruction set forced by ATTN_ISA applies to every contestant.
    const attn::Isa isa = attn::default_isa();
    if (attn::detail::vectors_of(isa) == attn::detail::VectorSet::avx2) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    if (isa == attn::Isa::generic) dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

memory::desc matrix(Index rows, Index cols, memory::format_tag tag = memory::format_tag::ab) {
  return {{rows, cols}, memory::data_type::f32, tag};
}

memory bytes(std::size_t size) {
  return {memory::desc({static_cast<memory::dim>(std::max<std::size_t>(size, 1))}, memory::data_type::u8,
                       memory::format_tag::a),
          cpu()};
}

void* untyped(const float* p) { return const_cast<float*>(p); }  // oneDNN has no const memory

/// The primitives of a block: `rows` queries against the first `keys` keys. Shared by all workers.
struct BlockPrimitives {
  dnnl::matmul::primitive_desc scores, out;
  dnnl::softmax_forward::primitive_desc softmax;
  dnnl::matmul run_scores, run_out;
  dnnl::softmax_forward run_softmax;

  BlockPrimitives(Index rows, Index keys, Index dim, const memory::desc& key_desc, const memory::desc& value_desc) {
    const memory::desc q = matrix(rows, dim), s = matrix(rows, keys);
    dnnl::primitive_attr scaled, plain;  // two objects, because copies share one attribute
    scaled.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    scaled.set_output_scales(0, {1 / std::sqrt(static_cast<float>(dim))});
    plain.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    scores = {dnnl::matmul::desc(q, key_desc, s), scaled, cpu()};
    softmax = {dnnl::softmax_forward::desc(dnnl::prop_kind::forward_inference, s, 1), plain, cpu()};
    out = {dnnl::matmul::desc(s, value_desc, q), plain, cpu()};
    run_scores = dnnl::matmul(scores);
    run_softmax = dnnl::softmax_forward(softmax);
    run_out = dnnl::matmul(out);
  }

  std::size_t scratchpad_bytes() const {
    return std::max(
        {scores.scratchpad_desc().get_size(), softmax.scratchpad_desc().get_size(), out.scratchpad_desc().get_size()});
  }
};

using Shape = std::pair<Index, Index>;  ///< the rows and keys of a block

struct Block {
  Index first, rows, keys;

  Shape shape() const { return {rows, keys}; }
};

/// Everything that depends on the shape of the workload alone.
struct Plan {
  Workload work;
  bool causal;
  Index q_offset;
  Index first_query;                         ///< the first query that sees a key
  Index parts;                               ///< tasks per key head, so that every worker gets one
  std::optional<memory::desc> keys, values;  ///< of a whole head, packed; empty if used unpacked
  std::vector<Block> blocks;                 ///< of one query head
  std::map<Shape, BlockPrimitives> primitives;
  std::size_t scratchpad_bytes = 0;
  Index most_scores = 0;

  Plan(const Workload& w, int workers)
      : work(w),
        causal(w.mod_set == ModSet::causal),
        q_offset(w.kv_len - w.q_len),
        first_query(causal ? std::clamp<Index>(-q_offset, 0, w.q_len) : 0),
        parts((workers + w.batch * w.kv_heads - 1) / (w.batch * w.kv_heads)) {
    choose_packing();
    for (Index first = first_query; first < w.q_len; first += kBlockRows) {
      const Index rows = std::min(kBlockRows, w.q_len - first);
      blocks.push_back({first, rows, keys_before(first + rows)});
    }
    for (const Block& block : blocks) {
      const auto k = keys ? keys->submemory_desc({w.head_dim, block.keys}, {0, 0})
                          : matrix(w.head_dim, block.keys, memory::format_tag::ba);
      const auto v = values ? *values : matrix(block.keys, w.head_dim);
      const auto [at, added] = primitives.try_emplace(block.shape(), block.rows, block.keys, w.head_dim, k, v);
      if (!added) continue;
      scratchpad_bytes = std::max(scratchpad_bytes, at->second.scratchpad_bytes());
      most_scores = std::max(most_scores, block.rows * block.keys);
    }
  }

 private:
  // Measured with AVX-512 at lengths from 512 to 4096: with full attention, blocks of 64, 128 and 256 rows differ by 4
  // %, but with causal attention, blocks of 256 rows lose up to 10 %, because they compute more masked pairs. Packing
  // costs a little up to 512 queries and saves a little at 1024.
  static constexpr Index kBlockRows = 128, kQueriesWorthPacking = 1024;

  void choose_packing() {
    if (work.q_len * (work.heads / work.kv_heads) < kQueriesWorthPacking * parts) return;
    const auto any = memory::format_tag::any;
    const BlockPrimitives whole(std::min(kBlockRows, work.q_len), work.kv_len, work.head_dim,
                                matrix(work.head_dim, work.kv_len, any), matrix(work.kv_len, work.head_dim, any));
    keys = whole.scores.weights_desc();
    // A prefix of packed keys has the packed layout too; a prefix of packed values does not.
    if (!causal) values = whole.out.weights_desc();
  }

  /// Returns the number of keys that a block ending before query `end` multiplies, rounded up to whole groups of packed
  /// keys.
  Index keys_before(Index end) const {
    constexpr Index kGroup = 64;
    return causal ? std::min((q_offset + end + kGroup - 1) / kGroup * kGroup, work.kv_len) : work.kv_len;
  }
};

/// A block's primitives, bound to the memory of one worker.
class BoundBlock {
 public:
  BoundBlock(const BlockPrimitives& p, const memory& scratchpad, const memory& scores, void* packed_keys,
             void* packed_values)
      : primitives_(p),
        q_(p.scores.src_desc(), cpu(), nullptr),
        k_(p.scores.weights_desc(), cpu(), packed_keys),
        v_(p.out.weights_desc(), cpu(), packed_values),
        scores_(p.scores.dst_desc(), cpu(), scores.get_data_handle()),
        out_(p.out.dst_desc(), cpu(), nullptr) {
    const auto scratch = [&](const auto& pd) {
      return memory(pd.scratchpad_desc(), cpu(), scratchpad.get_data_handle());
    };
    score_args_ = {
        {DNNL_ARG_SRC, q_}, {DNNL_ARG_WEIGHTS, k_}, {DNNL_ARG_DST, scores_}, {DNNL_ARG_SCRATCHPAD, scratch(p.scores)}};
    softmax_args_ = {{DNNL_ARG_SRC, scores_}, {DNNL_ARG_DST, scores_}, {DNNL_ARG_SCRATCHPAD, scratch(p.softmax)}};
    out_args_ = {
        {DNNL_ARG_SRC, scores_}, {DNNL_ARG_WEIGHTS, v_}, {DNNL_ARG_DST, out_}, {DNNL_ARG_SCRATCHPAD, scratch(p.out)}};
  }

  void set_keys(const float* k) { k_.set_data_handle(untyped(k)); }
  void set_values(const float* v) { v_.set_data_handle(untyped(v)); }

  /// @param mask  changes the scores before the softmax.
  template <class Mask>
  void run(const dnnl::stream& stream, const float* q, float* out, const Mask& mask) {
    q_.set_data_handle(untyped(q));
    out_.set_data_handle(out);
    primitives_.run_scores.execute(stream, score_args_);
    mask(static_cast<float*>(scores_.get_data_handle()));
    primitives_.run_softmax.execute(stream, softmax_args_);
    primitives_.run_out.execute(stream, out_args_);
  }

 private:
  const BlockPrimitives& primitives_;
  memory q_, k_, v_, scores_, out_;
  Args score_args_, softmax_args_, out_args_;
};

/// One worker's memory. Scratchpads cannot be shared: concurrent calls would overwrite each other.
class Worker {
 public:
  explicit Worker(const Plan& plan)
      : plan_(plan),
        stream_(cpu()),
        scratchpad_(bytes(plan.scratchpad_bytes)),
        scores_(matrix(1, std::max<Index>(plan.most_scores, 1)), cpu()) {
    if (plan.keys) keys_ = memory(*plan.keys, cpu());
    if (plan.values) values_ = memory(*plan.values, cpu());
    for (const auto& [shape, primitives] : plan.primitives)
      blocks_.try_emplace(shape, primitives, scratchpad_, scores_, handle(keys_), handle(values_));
  }

  /// Computes part `part` of key head `head`, counted over the batch.
  void run(attn::Tensor<float, 4>& out, const Inputs<float>& in, Index head, Index part) {
    const Workload& w = plan_.work;
    const Index group = w.heads / w.kv_heads, kv_size = w.kv_len * w.head_dim, q_size = w.q_len * w.head_dim;
    const float *k = in.k_numbers.data() + head * kv_size, *v = in.v_numbers.data() + head * kv_size;
    if (keys_) pack(matrix(w.head_dim, w.kv_len, memory::format_tag::ba), k, keys_);
    if (values_) pack(matrix(w.kv_len, w.head_dim), v, values_);
    for (auto& [shape, block] : blocks_) {
      if (!keys_) block.set_keys(k);
      if (!values_) block.set_values(v);
    }
    for (Index h = head * group; h < (head + 1) * group; ++h) {
      const float* q = in.q_numbers.data() + h * q_size;
      float* o = out.data() + h * q_size;
      if (part == 0) std::fill_n(o, plan_.first_query * w.head_dim, 0.0f);
      const auto blocks = static_cast<Index>(plan_.blocks.size());
      for (Index b = part; b < blocks; b += plan_.parts) {
        const Block& block = plan_.blocks[static_cast<std::size_t>(b)];
        blocks_.at(block.shape())
            .run(stream_, q + block.first * w.head_dim, o + block.first * w.head_dim,
                 [&](float* scores) { mask(scores, block); });
      }
    }
  }

 private:
  static void* handle(const memory& m) { return m ? m.get_data_handle() : nullptr; }

  void pack(const memory::desc& desc, const float* from, memory& to) {
    memory source(desc, cpu(), untyped(from));
    dnnl::reorder(source, to).execute(stream_, source, to);
  }

  void mask(float* scores, const Block& block) const {
    if (!plan_.causal) return;
    for (Index row = 0; row < block.rows; ++row) {
      const Index kept = std::min(plan_.q_offset + block.first + row + 1, block.keys);
      std::fill(scores + row * block.keys + kept, scores + (row + 1) * block.keys,
                -std::numeric_limits<float>::infinity());
    }
  }

  const Plan& plan_;
  dnnl::stream stream_;
  memory scratchpad_, scores_, keys_, values_;
  std::map<Shape, BoundBlock> blocks_;
};

std::function<void()> prepare(attn::Tensor<float, 4>& out, const Inputs<float>& in, const Workload& work,
                              const attn::Options& options) {
  stay_on_this_thread();
  const int workers = options.executor.concurrency();
  const auto plan = std::make_shared<const Plan>(work, workers);
  // Filled by the first call, so that its memory is counted as for the other contestants.
  const auto of = std::make_shared<std::vector<std::unique_ptr<Worker>>>(static_cast<std::size_t>(workers));
  return [&out, &in, executor = options.executor, plan, of] {
    executor.run(plan->work.batch * plan->work.kv_heads * plan->parts, [&](Index task, int worker) {
      stay_on_this_thread();
      auto& mine = (*of)[static_cast<std::size_t>(worker)];
      if (!mine) mine = std::make_unique<Worker>(*plan);
      mine->run(out, in, task / plan->parts, task % plan->parts);
    });
  };
}

std::string_view declines(const Workload& work, const attn::Options&) {
  if (work.mod_set != ModSet::full && work.mod_set != ModSet::causal) return "full and causal only";
  return work.layout == Layout::bhsd && work.v_dim == work.head_dim ? "" : "bhsd with v_dim = head_dim only";
}

}  // namespace

Contestant<float> onednn() { return {"oneDNN", prepare, declines}; }

}  // namespace bench
