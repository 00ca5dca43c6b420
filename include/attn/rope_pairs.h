// Which features a rotary position embedding rotates together.
#pragma once

namespace attn {

/// Which features of a head form a pair.
enum class RopePairs {
  /// i and rotary_dim / 2 + i, as in GPT-NeoX and in most of Hugging Face's checkpoints, including Llama's.
  halves,
  /// 2i and 2i + 1, as in the paper, in GPT-J, in Meta's own checkpoints, and in llama.cpp's Llama files.
  interleaved,
};

}  // namespace attn
