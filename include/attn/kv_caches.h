// KvCaches: the keys and values of all layers of a decoder, for any number of sequences.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/cache/append_undo.h"
#include "attn/cache/paged_layers.h"
#include "attn/cached_attention.h"
#include "attn/kv_options.h"
#include "attn/out_of_pages.h"

namespace attn {

/// The sizes of a latent row, which is stored in place of a key and a value (multi-head latent attention; DeepSeek-AI
/// 2024, "DeepSeek-V2", section 2.1).
struct LatentConfig {
  Index rank = 0;      ///< features of the compressed key and value (d_c, kv_lora_rank); 0: no latent rows
  Index rope_dim = 0;  ///< rotated features of the key that follow them (d_h^R, qk_rope_head_dim)
};

/// The sizes of KvCaches.
struct KvCachesConfig {
  Index layers = 0;      ///< layers of the decoder; required
  Index kv_heads = 1;    ///< heads of keys and values
  Index head_dim = 0;    ///< features of a key; required
  Index v_dim = 0;       ///< features of a value; 0: head_dim
  Index pages = 0;       ///< pages in the pool, for all sequences; required. A page holds the tokens of all layers.
  Index page_size = 64;  ///< tokens in a page; see PagedKvCacheConfig
  std::optional<Rope> rope = std::nullopt;  ///< rotates keys as they are appended, and queries of attention()
  /// Replaces `rope` if layers differ: one rope per layer, or std::nullopt for a layer without one.
  std::vector<std::optional<Rope>> ropes = {};
  Index window = 0;  ///< if positive, how many of the last tokens stay; see PagedKvCacheConfig
  Index sinks = 0;   ///< with a window: how many of the first tokens stay in addition; see PagedKvCacheConfig
  /// If its rank is positive, a token has one row of rank + rope_dim features, which is its key and, without the last
  /// rope_dim, its value. kv_heads must be 1; head_dim and v_dim follow. There is no rope: append rotated rows.
  LatentConfig latent = {};
};

namespace detail {
/// A KvCachesConfig whose rope is given in braces; see KvCacheWithRopeInBraces.
struct KvCachesWithRopeInBraces {
  Index layers, kv_heads, head_dim, v_dim, pages, page_size;
  RopeConfig rope;
  std::vector<std::optional<Rope>> ropes;
  Index window, sinks;
  LatentConfig latent;
};

/// What a step of KvCaches appends, and where.
struct OpenStep {
  ShortList<Index> sequences, lens;
  ShortList<PageTables::Mark> marks;  // of the sequences before the step
  bool has_positions;                 // whether step() was given the positions of its tokens
};
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

template <class T>
class KvStep;
template <class T>
class KvLayer;

/// The keys and values of all layers of a decoder: a PagedKvCache for each layer, with one set of sequences and one
/// table of pages for all. A page number denotes the page with that number in every layer. Tokens are appended in
/// steps; either all layers get the tokens of a step, or none does:
///
///     attn::KvCaches<float> caches({.layers = 6, .kv_heads = 8, .head_dim = 128, .pages = 512, .rope = rope});
///     const attn::Index a = caches.add(), b = caches.fork(a);
///     auto step = caches.step({a, b}, 1);                         // a token for each; or {512, 1}
///     for (attn::Index l = 0; l < 6; ++l)
///       x = block[l](x, step.layer(l));                           // calls mha(x, step.layer(l), attn::causal())
///     step.commit();
///
/// T may be any element type of KvCache. The constructor allocates all memory. With `.pages = batch, .page_size =
/// capacity`, each of up to `batch` sequences is contiguous in memory, as in a KvCache of that capacity.
///
/// One step may be open at a time. Until the step is committed, functions of KvCaches show the sequences without the
/// tokens of the step. The exceptions are free_pages(), table(), and position() of the new rows. Calls that change
/// sequences throw while a step is open. If a call throws, nothing has changed, except that tokens may have left
/// windows. release() and truncate() throw only std::invalid_argument. Concurrent calls that only read are safe. Copies
/// are deep, without the tokens of an open step. While a step is open, the caches must not be moved, assigned to or
/// destroyed. A moved-from object may only be assigned to or destroyed.
template <class T>
class KvCaches {
 public:
  using Computed = detail::cached_t<T>;  ///< the type that attention is computed in

  /// @throws std::invalid_argument if a size is not positive (0 is allowed where it selects a default), or if a rope or
  /// the window does not fit.
  explicit KvCaches(const KvCachesConfig& config)
      : config_(checked(config)), storage_(config_, config_.layers, ropes(config_)) {}
  /// Not to be called: fails to compile, with the message of detail::refuse_rope_in_braces().
  template <int kNever = 0>
  explicit KvCaches(const detail::KvCachesWithRopeInBraces&)
      : KvCaches(detail::refuse_rope_in_braces<KvCachesConfig, kNever>()) {}
  /// A deep copy, without the tokens of an open step.
  KvCaches(const KvCaches& other) : config_(other.config_), storage_(other.storage_) {
    if (other.open_) storage_.tables.restore(other.open_->sequences, other.open_->marks);
  }
  /// Moves; no step may be open. The moved-from object may then only be assigned to or destroyed.
  KvCaches(KvCaches&&) noexcept = default;
  /// A deep copy; no step of this object may be open. If copying throws, this object is unchanged.
  KvCaches& operator=(const KvCaches& other) { return *this = KvCaches(other); }
  /// Moves; no step of either object may be open. The moved-from object may then only be assigned to or destroyed.
  KvCaches& operator=(KvCaches&&) noexcept = default;

  /// The sizes, with the defaults filled in.
  const KvCachesConfig& config() const { return config_; }
  /// The number of layers.
  Index layers() const { return config_.layers; }
  /// The number of pages in the pool, each with the tokens of all layers.
  Index pages() const { return config_.pages; }
  /// The number of pages that no sequence uses.
  Index free_pages() const { return storage_.tables.free_pages(); }
  /// The size of the pool in bytes: keys, values and their scales, of all layers.
  Index bytes() const { return storage_.bytes(); }

  /// Adds an empty sequence and returns its number. Numbers are never reused.
  Index add() { return unopened("add").tables.add(); }
  /// Adds a sequence with the tokens of another, or with the first `length` of them, in all layers; see
  /// PagedKvCache::fork().
  Index fork(Index sequence, std::optional<Index> length = std::nullopt) {
    return unopened("fork").tables.fork(sequence, length);
  }
  /// Removes a sequence and frees the pages that no other sequence uses.
  void release(Index sequence) { unopened("release").tables.release(sequence); }
  /// Keeps the first `length` tokens of a sequence in all layers; see PagedKvCache::truncate().
  void truncate(Index sequence, Index length) { unopened("truncate").tables.truncate(sequence, length); }

  /// Removes tokens begin … end - 1 of a sequence in all layers; see PagedKvCache::drop().
  void drop(Index sequence, Index begin, Index end, const DropOptions& options = {}) {
    unopened("drop").drop(sequence, begin, end, options);
  }
  /// Keeps only the given rows of a sequence in all layers; see PagedKvCache::retain().
  void retain(Index sequence, const Indices& rows, const DropOptions& options = {}) {
    unopened("retain").retain(sequence, rows.values, options);
  }
  /// Keeps one path of the tree of drafts that the last step appended to a sequence, in all layers; see
  /// PagedKvCache::accept().
  void accept(Index sequence, const Indices& path) { unopened("accept").accept(sequence, path.values); }

  /// Whether there is a sequence with this number.
  bool has(Index sequence) const { return storage_.tables.has(sequence); }
  /// The number of sequences.
  Index sequences() const { return storage_.tables.count(); }
  /// The number of tokens of a sequence. @throws std::invalid_argument if there is no such sequence.
  Index length(Index sequence) const { return storage_.tables.of(sequence).length; }
  /// The position by which ropes rotate a row of a sequence; see KvCache::position().
  Index position(Index sequence, Index row, Index axis = 0) const {
    return storage_.tables.of(sequence).positions.rows()(row, axis);
  }
  /// The position that mods see for row 0 of a sequence; see PagedKvCache::offset().
  Index offset(Index sequence) const { return storage_.tables.of(sequence).offset; }
  /// The page numbers of a sequence, in the order of its tokens.
  std::span<const Index> table(Index sequence) const { return storage_.tables.of(sequence).pages; }
  /// Returns how many free pages a step of `tokens` tokens would take, including the copy of a shared page.
  /// @throws std::invalid_argument if a step is open.
  Index pages_needed(Index sequence, Index tokens) const {
    if (open_) refuse_while_open("pages_needed");
    return storage_.tables.pages_needed(sequence, tokens);
  }

  /// Begins a step that appends `tokens` tokens to each of the sequences, in all layers. It takes the pages of all
  /// layers at once. Positions in `options` apply to all layers with a rope. If `options` has none, the step uses the
  /// positions passed to the first append() of a layer with a rope.
  /// @throws OutOfPages if there are too few free pages; std::invalid_argument if a step is open, a sequence does not
  /// exist or appears twice, or positions do not fit.
  template <std::integral N>
  [[nodiscard]] KvStep<T> step(Indices sequences, N tokens, const AppendOptions& options = {}) {
    Indices lens = {};
    lens.values = detail::ShortList<Index>(sequences.values.size(), static_cast<Index>(tokens));
    return step(std::move(sequences), std::move(lens), options, false);
  }
  /// Begins a step that appends lens[i] tokens to sequences[i].
  [[nodiscard]] KvStep<T> step(Indices sequences, Indices lens, const AppendOptions& options = {}) {
    return step(std::move(sequences), std::move(lens), options, true);
  }

  /// Returns a view of these sequences in one layer, in this order, for attention(). Valid until the caches change.
  KvView<Computed> view(Index layer, const Indices& sequences) const {
    return storage_.view(checked(layer), sequences.values);
  }
  /// Not to be called: fails to compile, with a message that says to name a layer. Calls that are passed the caches
  /// themselves end up here.
  template <class X = T>
  KvView<Computed> view() const {
    static_assert(sizeof(X) == 0,
                  "attn: KvCaches hold the keys of several layers: pass step.layer(l) of caches.step({a, b}, tokens), "
                  "or, to only read them, caches.view(l, {a, b})");
    return storage_.view(0, {});
  }

  /// All pages of a layer's keys, (pages, kv_heads, page_size, dim). Elements after the last token of a page are
  /// indeterminate.
  TensorView<const T, 4> key_pages(Index layer) const { return of(layer).keys().numbers; }
  /// All pages of a layer's values; see key_pages().
  TensorView<const T, 4> value_pages(Index layer) const { return of(layer).values().numbers; }
  /// The scales of a layer's keys in std::int8_t caches, (pages, kv_heads, page_size).
  TensorView<const float, 3> key_scales(Index layer) const { return of(layer).keys().scales; }
  /// The scales of a layer's values; see key_scales().
  TensorView<const float, 3> value_scales(Index layer) const { return of(layer).values().scales; }

  /// Rotates the keys of all layers that have a rope by the angles of another one instead; see KvCache::change_rope().
  /// @throws std::invalid_argument if no layer has a rope, if the new one rotates other pairs of features, or if a step
  /// is open.
  void change_rope(const Rope& rope) {
    std::vector<std::optional<Rope>> changed = ropes(config_);
    for (std::optional<Rope>& of_layer : changed)
      if (of_layer) of_layer = rope;
    change_ropes(std::move(changed));
  }
  /// The same with a rope for each layer; layers without one have none in the list either.
  void change_ropes(std::vector<std::optional<Rope>> changed) {
    detail::PagedLayers<T>& storage = unopened("change_rope");
    const Index given = static_cast<Index>(changed.size());
    detail::require(given == layers() || (given == 1 && config_.ropes.empty()), "change_rope: got ", given,
                    " ropes for ", layers(), " layers");
    bool has_rope = false;
    for (Index layer = 0; layer < given; ++layer) {
      const std::optional<Rope>& to = changed[static_cast<std::size_t>(layer)];
      detail::require(to.has_value() == (storage.rope(layer) != nullptr), "change_rope: layer ", layer, " has ",
                      to ? "no rope, so its keys are not rotated" : "a rope, and needs another one");
      if (to) detail::check_rope_change(storage.rope(layer), *to);
      has_rope |= to.has_value();
    }
    detail::require(has_rope,
                    "change_rope: no layer has a rope, so no keys are rotated; construct the caches with .rope");
    KvCachesConfig config = config_;
    if (config.ropes.empty() && given == 1)
      config.rope = changed.front();
    else
      config.rope.reset(), config.ropes = changed;
    storage.change_ropes(std::move(changed));
    config_ = std::move(config);
  }

 private:
  friend class KvStep<T>;
  friend class KvLayer<T>;

  static KvCachesConfig checked(KvCachesConfig c) {
    if (c.latent.rank != 0 || c.latent.rope_dim != 0) {
      const auto& [rank, rope_dim] = c.latent;
      detail::require(rank > 0 && rope_dim >= 0 && rank <= detail::kLargestIndex && rope_dim <= detail::kLargestIndex,
                      "KvCaches: latent.rank ", rank, " must be positive, and latent.rope_dim ", rope_dim,
                      " at least 0");
      detail::require(
          c.kv_heads == 1 && (c.head_dim == 0 || c.head_dim == rank + rope_dim) && (c.v_dim == 0 || c.v_dim == rank),
          "KvCaches: with latent rows of ", rank, " + ", rope_dim, " features, kv_heads must be 1, head_dim ",
          rank + rope_dim, " and v_dim ", rank, " (or left out), but they are ", c.kv_heads, ", ", c.head_dim, " and ",
          c.v_dim);
      detail::require(!c.rope && c.ropes.empty(),
                      "KvCaches: latent rows are rotated before they are appended, in their "
                      "last rope_dim features; leave out the rope");
      c.head_dim = rank + rope_dim;
      c.v_dim = rank;
    }
    if (c.v_dim == 0) c.v_dim = c.head_dim;
    detail::require(
        c.layers > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.v_dim > 0 && c.pages > 0 && c.page_size > 0,
        "KvCaches: layers ", c.layers, ", kv_heads ", c.kv_heads, ", head_dim ", c.head_dim, ", v_dim ", c.v_dim,
        ", pages ", c.pages, ", page_size ", c.page_size, " must all be positive",
        c.layers == 0 || c.head_dim == 0 || c.pages == 0 ? "; layers, head_dim and pages have no default" : "");
    const Index given = static_cast<Index>(c.ropes.size());
    detail::require(given == 0 || (given == c.layers && !c.rope), "KvCaches: got ", given, " ropes for ", c.layers,
                    " layers", c.rope ? ", and a rope for all layers" : "",
                    "; pass one rope for all layers, or ropes, with one for each layer");
    Index axes = 0;
    const std::vector<std::optional<Rope>> of_layers = ropes(c);
    for (std::size_t layer = 0; layer < of_layers.size(); ++layer) {
      if (!of_layers[layer]) continue;
      const Index dim = of_layers[layer]->config().head_dim, of_layer = of_layers[layer]->axes();
      detail::require(dim == c.head_dim, "KvCaches: head_dim is ", c.head_dim,
                      ", but the head_dim of the rope of layer ", layer, " is ", dim);
      detail::require(axes == 0 || of_layer == axes, "KvCaches: the rope of layer ", layer, " has ", of_layer,
                      " axes, but those of earlier layers have ", axes,
                      "; a token has the same positions in all layers");
      axes = of_layer;
    }
    detail::check_window("KvCaches", c, axes > 0);
    return c;
  }
  static std::vector<std::optional<Rope>> ropes(const KvCachesConfig& c) {
    if (c.ropes.empty()) return {c.rope};
    return c.ropes;
  }

  Index checked(Index layer) const {
    detail::require(layer >= 0 && layer < layers(), "KvCaches: layer ", layer, " is out of range; there are ", layers(),
                    " layers");
    return layer;
  }
  const detail::KvPages<T>& of(Index layer) const { return storage_.pages(checked(layer)); }

  KvStep<T> step(Indices sequences, Indices lens, const AppendOptions& options, bool packed);

  /// Returns the pages and their tables, to change them; throws if a step is open.
  detail::PagedLayers<T>& unopened(const char* what) {
    if (open_) refuse_while_open(what);
    return storage_;
  }
  [[noreturn]] void refuse_while_open(const char* what) const {
    Index appended = 0;
    for (const char done : appended_) appended += done;
    detail::refuse({what, ": a step of ", open_->sequences.size(), " sequences is open, to which ", appended, " of ",
                    layers(), " layers have appended; commit() or destroy it first"});
  }
  /// Returns the open step; throws unless it has this number.
  const detail::OpenStep& opened(std::uint64_t step) const {
    detail::require(open_ && step == steps_, "this step of KvCaches was committed or destroyed; begin another one");
    return *open_;
  }
  void abandon() noexcept {
    storage_.tables.restore(open_->sequences, open_->marks);
    open_.reset();
  }

  KvCachesConfig config_;
  detail::PagedLayers<T> storage_;
  std::optional<detail::OpenStep> open_;
  std::vector<char> appended_;  // for each layer, whether it has appended the tokens of the open step
  std::uint64_t steps_ = 0;     // steps begun so far; the open step has this number
};

/// One layer of a step of KvCaches, to be passed to attention() and to layers:
///
///     mha(x, step.layer(l), attn::causal());     // appends the keys and values of x, and attends to them
///     attn::attention(q, step.layer(l)).out;     // reads
///
/// A KvLayer shows the tokens of the step once the layer has appended them. It refers to the KvCaches and is valid
/// until the step is committed or destroyed; later calls throw.
template <class T>
class KvLayer {
 public:
  using Computed = detail::cached_t<T>;  ///< the type that attention is computed in

  /// Appends the step's tokens to the layer; each sequence must have the same number of tokens. k (sequences, kv_heads,
  /// tokens, head_dim), v (sequences, kv_heads, tokens, v_dim); see KvCache::append().
  /// @throws std::invalid_argument if the shapes disagree with each other or with the step, or the layer has appended
  /// its tokens already.
  template <class K, class V>
  void append(const K& k, const V& v, const AppendOptions& options = {}) {
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) {
      append_tokens(tokens, detail::ShortList<Index>(caches_->opened(step_).lens.size(), tokens.count()), false,
                    options);
    });
  }
  /// Appends latent rows (sequences, 1, tokens, rank + rope_dim) to caches that have them; see LatentConfig.
  template <class X>
  void append_latent(const X& rows, const AppendOptions& options = {}) {
    const auto& held = detail::evaluated(rows);
    const auto keys = latent_view(held);
    append(keys, keys.slice(3, 0, caches_->config().v_dim), options);
  }
  /// Appends latent rows (1, 1, sum of lens, rank + rope_dim) with the sequences packed back to back.
  template <class X, std::convertible_to<Indices> Lens = Indices>
  void append_latent(const X& rows, Lens lens, const AppendOptions& options = {}) {
    const auto& held = detail::evaluated(rows);
    const auto keys = latent_view(held);
    append(keys, keys.slice(3, 0, caches_->config().v_dim), std::move(lens), options);
  }

  /// Appends the step's tokens with the sequences packed back to back, lens[i] tokens of the i-th: k (1, kv_heads, sum
  /// of lens, head_dim), v (1, kv_heads, sum of lens, v_dim).
  template <class K, class V, std::convertible_to<Indices> Lens = Indices>
  void append(const K& k, const V& v, Lens lens, const AppendOptions& options = {}) {
    const Indices given(std::move(lens));
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) { append_tokens(tokens, given.values, true, options); });
  }

  /// Returns a view of the step's sequences in this layer, as attention() takes them. Valid until the layer appends, or
  /// the step is committed or destroyed.
  KvView<Computed> view() const {
    const detail::OpenStep& step = caches_->opened(step_);
    const std::span<const Index> appended = marks() ? std::span<const Index>(step.lens) : std::span<const Index>();
    return caches_->storage_.view(layer_, step.sequences, appended);
  }

 private:
  friend class KvStep<T>;
  friend class detail::AppendUndo<KvLayer>;
  using Tokens = detail::NewTokens<T>;

  KvLayer(KvCaches<T>& caches, std::uint64_t step, Index layer) : caches_(&caches), step_(step), layer_(layer) {}

  bool marks() const {
    caches_->opened(step_);
    return caches_->appended_[static_cast<std::size_t>(layer_)] != 0;
  }
  template <class X>
  auto latent_view(const X& rows) const {
    const KvCachesConfig& c = caches_->config();
    const auto keys = detail::as_rank4(attn::view(rows));
    detail::require(c.latent.rank > 0, "append_latent: the caches store keys and values; construct them with .latent");
    detail::require(keys.dim(3) == c.head_dim, "append_latent: rows have shape ", keys.shape(), ", expected ",
                    c.head_dim, " features, latent.rank + latent.rope_dim");
    return keys;
  }
  void restore(bool appended) noexcept { caches_->appended_[static_cast<std::size_t>(layer_)] = appended; }

  void append_tokens(const Tokens& tokens, std::span<const Index> lens, bool packed, const AppendOptions& options) {
    const detail::OpenStep& step = caches_->opened(step_);
    detail::require(caches_->config().latent.rank == 0 || tokens.k.data() == tokens.v.data(),
                    "append: the caches store one latent row per token; use append_latent(rows)");
    detail::check_appended(tokens, caches_->config(), step.sequences.size(), lens, packed,
                           [&](std::size_t i) { return step.sequences[i]; });
    for (std::size_t i = 0; i < lens.size(); ++i)
      detail::require(lens[i] == step.lens[i], "append: the step has ", step.lens[i], " tokens for sequence ",
                      step.sequences[i], ", but layer ", layer_, " got ", lens[i]);
    detail::require(!marks(), "append: layer ", layer_, " has appended the tokens of this step already");
    const Rope* const rope = caches_->storage_.rope(layer_);
    const std::vector<Index> positions = detail::checked_positions(
        options.positions.values, tokens.count(), static_cast<Index>(lens.size()), packed, rope ? rope->axes() : 0);
    if (rope) decide_positions(positions);
    typename detail::PagedLayers<T>::Writer writer(tokens, rope);
    caches_->storage_.write(layer_, writer, step.sequences, lens, packed);
    restore(true);
  }

  /// The positions of a step's tokens are those that step() was given, or else those passed to the first append() of a
  /// layer with a rope. All other layers with a rope must give the same positions, or none.
  void decide_positions(const std::vector<Index>& given) {
    const detail::OpenStep& step = caches_->opened(step_);
    bool are_decided = step.has_positions;
    for (Index l = 0; l < caches_->layers(); ++l)
      are_decided |= caches_->appended_[static_cast<std::size_t>(l)] && caches_->storage_.rope(l) != nullptr;
    if (!are_decided) return caches_->storage_.tables.reposition(step.sequences, step.lens, given);
    auto next = given.begin();
    for (std::size_t i = 0; i < step.sequences.size() && !given.empty(); ++i) {
      const auto& s = caches_->storage_.tables.of(step.sequences[i]);
      const RowPositions at = s.positions.rows();
      for (Index row = s.length; row < s.length + step.lens[i]; ++row)
        for (Index axis = 0; axis < at.axes; ++axis, ++next)
          detail::require(*next == at(row, axis), "append: layer ", layer_, " got position ", *next, " for token ",
                          row - s.length, " of sequence ", step.sequences[i], ", which has position ", at(row, axis),
                          " in this step; positions are the same in all layers");
    }
  }

  KvCaches<T>* caches_;
  std::uint64_t step_;
  Index layer_;
};

/// Tokens that are being appended to KvCaches; returned by KvCaches::step(). Each layer appends its keys and values
/// through layer(); commit() then adds the tokens to the sequences. A step that is destroyed without commit(), for
/// example by an exception, leaves the sequences as they were and gives its pages back.
///
/// A step refers to the KvCaches, which must not be moved or destroyed while the step exists. A moved-from step may
/// only be destroyed.
template <class T>
class [[nodiscard]] KvStep {
 public:
  /// Moves; the moved-from step may then only be destroyed.
  KvStep(KvStep&& other) noexcept : caches_(std::exchange(other.caches_, nullptr)), step_(other.step_) {}
  /// Removes the step's tokens unless they were committed.
  ~KvStep() {
    if (caches_) caches_->abandon();
  }

  /// Returns a layer, to append to it and to read it. Layers may append in any order, and any layer may be read at any
  /// time.
  /// @throws std::invalid_argument if there is no such layer, or the step was committed.
  KvLayer<T> layer(Index layer) const { return {unfinished(), step_, unfinished().checked(layer)}; }

  /// Adds the step's tokens to the sequences. @throws std::invalid_argument if a layer has not appended them yet, or
  /// the step was committed already.
  void commit() {
    const detail::OpenStep& step = *unfinished().open_;
    for (std::size_t layer = 0; layer < caches_->appended_.size(); ++layer)
      detail::require(caches_->appended_[layer], "commit: layer ", layer, " of ", caches_->appended_.size(),
                      " has not appended the tokens of this step");
    caches_->storage_.tables.lengthen(step.sequences, step.lens);
    std::exchange(caches_, nullptr)->open_.reset();
  }

 private:
  friend class KvCaches<T>;
  KvStep(KvCaches<T>& caches, std::uint64_t step) : caches_(&caches), step_(step) {}

  KvCaches<T>& unfinished() const {
    detail::require(caches_ != nullptr, "this step of KvCaches was committed or moved; begin another one");
    return *caches_;
  }

  KvCaches<T>* caches_;  // null if the step was committed or moved
  std::uint64_t step_;
};

template <class T>
KvStep<T> KvCaches<T>::step(Indices given_sequences, Indices given_lens, const AppendOptions& options, bool packed) {
  detail::OpenStep step{std::move(given_sequences.values), std::move(given_lens.values), {}, false};
  const Index count = static_cast<Index>(step.sequences.size()), given = static_cast<Index>(step.lens.size());
  unopened("step");
  detail::require(given == count, "step: got ", given, " lengths for ", count, " sequences");
  Index all = 0;
  for (std::size_t i = 0; i < step.lens.size(); ++i) {
    detail::require(step.lens[i] >= 0 && step.lens[i] <= detail::kLargestIndex - all, "step: the length for sequence ",
                    step.sequences[i], " must be in 0..2^", detail::kIndexBits, " minus the lengths before it, but is ",
                    step.lens[i]);
    all += step.lens[i];
  }
  const std::vector<Index> positions = detail::checked_positions(
      options.positions.values, packed || count == 0 ? all : step.lens[0], packed ? 1 : count, packed, storage_.axes());
  storage_.tables.check_append(step.sequences, step.lens);
  storage_.slide_windows(step.sequences);
  step.marks = storage_.tables.marks(step.sequences);
  step.has_positions = !positions.empty();
  appended_.assign(static_cast<std::size_t>(layers()), false);
  storage_.take(step.sequences, step.lens, positions);
  open_ = std::move(step);
  return {*this, ++steps_};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
