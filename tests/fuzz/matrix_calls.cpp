// One head as Eigen matrices: maps, blocks, transposes and expressions, in both storage orders.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {
namespace {

template <class T, int kOrder>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, kOrder>;

/// A block of a larger matrix, surrounded by NaN.
template <class T, int kOrder, class X>
Matrix<T, kOrder> framed(const X& x) {
  Matrix<T, kOrder> all = Matrix<T, kOrder>::Constant(x.rows() + 3, x.cols() + 2, std::numeric_limits<T>::quiet_NaN());
  all.block(1, 1, x.rows(), x.cols()) = x;
  return all;
}

template <class T>
class MatrixCall {
 public:
  using R = Exact<T>;

  MatrixCall(Case& c, const Sizes& sizes)
      : c_(c),
        sizes_(sizes),
        l_(sizes.each[0]),
        q_(c.random, {1, 1, l_.q_len, sizes.head_dim}, Role::input),
        k_(c.random, {1, 1, l_.kv_len, sizes.head_dim}, Role::input),
        v_(c.random, {1, 1, l_.kv_len, sizes.v_dim}, Role::input) {
    fill(c, q_, k_, v_);
    options_ = c.options();
    scale_ = c.draw_scale(options_, sizes.head_dim);
    if (l_.q_offset != l_.kv_len - l_.q_len) options_.q_offset = l_.q_offset;
  }

  template <class M>
  void make(const M& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c_.text << " | " << m.text;
    const auto q = q_.input().matrix(0, 0), k = k_.input().matrix(0, 0), v = v_.input().matrix(0, 0);
    const Index n = l_.q_len, m = l_.kv_len, d = sizes_.head_dim, e = sizes_.v_dim;
    ++c_.calls;
    switch (c_.random.from(0, 4)) {
      case 0: {
        c_.text << " maps";
        const auto r = attn::attention(q, k, v, mods, options_);
        return check(r.out, r.lse, meanings);
      }
      case 1: {
        c_.text << " column-major blocks";
        const auto fq = framed<T, Eigen::ColMajor>(q), fk = framed<T, Eigen::ColMajor>(k),
                   fv = framed<T, Eigen::ColMajor>(v);
        const auto r =
            attn::attention(fq.block(1, 1, n, d), fk.block(1, 1, m, d), fv.block(1, 1, m, e), mods, options_);
        return check(r.out, r.lse, meanings);
      }
      case 2: {
        c_.text << " transposes and expressions";
        const Matrix<T, Eigen::ColMajor> fk = k.transpose();
        const Matrix<T, Eigen::RowMajor> fq = q, fv = framed<T, Eigen::RowMajor>(v);
        const auto r = attn::attention(T(1) * fq, fk.transpose(), fv.block(1, 1, m, e), mods, options_);
        return check(r.out, r.lse, meanings);
      }
      case 3: {
        c_.text << " into a block";
        Matrix<T, Eigen::ColMajor> out = Matrix<T, Eigen::ColMajor>::Constant(n + 2, e + 3, T(7));
        Eigen::Matrix<T, Eigen::Dynamic, 1> lse(n);
        attn::attention_into(out.block(1, 2, n, e), lse, q, k, v, mods, options_);
        check(out.block(1, 2, n, e), lse, meanings);
        out.block(1, 2, n, e).setConstant(T(7));
        if (!(out.array() == T(7)).all()) fail("wrote outside the block");
        return;
      }
      default: {
        c_.text << " into a map";
        Guard4<T> out(c_.random, {1, 1, n, e}, Role::output), lse(c_.random, {1, 1, 1, n}, Role::output);
        const auto into = [&](const auto& to) {
          attn::attention_into(out.view().matrix(0, 0), to, q, k, v, mods, options_);
        };
        T* const first = lse.view().data();
        const Index step = lse.view().stride(3), rank = c_.random.from(1, 4);
        if (rank == 1) into(TensorView<T, 1>(first, {n}, {step}));
        if (rank == 2) into(TensorView<T, 2>(first, {n, 1}, {step, 0}));
        if (rank == 3) into(TensorView<T, 3>(first, {1, 1, n}, {0, 0, step}));
        if (rank == 4) into(TensorView<T, 2>(first, {1, n}, {0, step}));
        out.check_gaps("out"), lse.check_gaps("lse");
        check(out.view().matrix(0, 0), lse.view().matrix(0, 0).transpose(), meanings);
      }
    }
  }

 private:
  template <class Out, class Lse>
  void check(const Out& out, const Lse& lse, const Meanings& meanings) {
    Results<R> results;
    for (Index i = 0; i < out.rows(); ++i) {
      for (Index x = 0; x < out.cols(); ++x) results.out.push_back(out(i, x));
      results.lse.push_back(lse(i, 0));
    }
    judge(c_, sequences_of(sizes_, scale_, q_, k_, v_)[0], meanings, flash_precision_of<T>(), results, "flash");
  }

  Case& c_;
  Sizes sizes_;
  Lens l_;
  Guard4<T> q_, k_, v_;
  attn::Options options_;
  Wide scale_ = 1;
};

template <class T>
void matrix_case(Case& c, double most) {
  Sizes s = random_sizes(c, most);
  s.heads = s.kv_heads = 1;
  s.each.resize(1, Lens{7, 9, 2});
  MatrixCall<T> call(c, s);
  if (c.random.percent(25)) return call.make(attn::Mods<>(), {});
  with_all_mods(c, s, [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
}

}  // namespace

void matrices(Case& c) {
  if (c.random.percent(75)) return matrix_case<float>(c, 2e6);
  matrix_case<double>(c, 5e5);
}

}  // namespace fuzz
