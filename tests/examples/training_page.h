// A report with known values.
#pragma once

#include <string>

#include "report.h"

namespace attn::test {

/// 2 layers of 3 heads, a word of 2 letters that attends to 3 Chinese characters; 3 samples; losses of 40 steps.
inline training::Report small_report() {
  training::Report report{.title = "A page",
                          .introduction = "About nothing.",
                          .summary = {{"parameters", "12,345"}, {"speed", "1,000 tokens/s"}},
                          .losses = {},
                          .samples = {{10, "ten"}, {20, "twenty"}, {40, "forty\nlines"}},
                          .maps = {{"a word", {"h", " "}, {"好", "久", "\n"}, {}}}};
  for (int i = 0; i < 40; ++i) report.losses.training.push_back(3.0 - 0.05 * i);
  report.losses.validation = {{20, 2.25}, {40, 1.5}};
  for (int layer = 0; layer < 2; ++layer) {
    attn::Tensor<float, 4> weights({1, 3, 2, 3});
    for (int head = 0; head < 3; ++head) {
      const float most = 0.5f + 0.1f * static_cast<float>(head) + 0.05f * static_cast<float>(layer);
      for (int row = 0; row < 2; ++row)
        for (int column = 0; column < 3; ++column)
          weights(0, head, row, column) = column == (head + row) % 3 ? most : (1 - most) / 2;
    }
    report.maps[0].layers.push_back(weights);
  }
  return report;
}

}  // namespace attn::test
