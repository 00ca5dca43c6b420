// Which features a rotary position embedding turns together.
#pragma once

namespace attn {

/// Which features of a head are a pair.
enum class RopePairs {
  /// i and rotary_dim / 2 + i, as in GPT-NeoX and in most of Hugging Face's checkpoints, Llama's among them.
  halves,
  /// 2i and 2i + 1, as in the paper, in GPT-J, in Meta's own checkpoints, and in llama.cpp's files of Llama.
  interleaved,
};

}  // namespace attn
