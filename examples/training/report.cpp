#include "report.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <nlohmann/json.hpp>

#include "markup.h"

namespace training {

extern const std::string_view kReportStyle, kReportScript;  // report.css and report.js

namespace {

using display::escaped;
using nlohmann::json;

/// Returns JSON that is safe inside a <script> element, which ends at the first "</script" and has no entities. Bytes
/// that are not UTF-8 become U+FFFD.
std::string embedded(const json& data) {
  std::string result;
  for (const char c : data.dump(-1, ' ', false, json::error_handler_t::replace)) {
    if (c == '<')
      result += "\\u003c";
    else if (c == '>')
      result += "\\u003e";
    else if (c == '&')
      result += "\\u0026";
    else
      result += c;
  }
  return result;
}

/// Returns the weights of each head in thousandths, row by row: the page shows three digits.
json json_of(const AttentionMaps& maps) {
  json layers = json::array();
  const auto rows = static_cast<attn::Index>(maps.rows.size()), columns = static_cast<attn::Index>(maps.columns.size());
  for (const attn::Tensor<float, 4>& layer : maps.layers) {
    if (layer.dim(0) != 1 || layer.dim(1) < 1 || layer.dim(2) != rows || layer.dim(3) != columns || layer.size() == 0)
      throw std::invalid_argument("report: weights must be (1, heads, " + std::to_string(rows) + ", " +
                                  std::to_string(columns) + ") for their labels, and not empty");
    json heads = json::array();
    for (attn::Index h = 0; h < layer.dim(1); ++h) {
      json head = json::array();
      for (const float* w = layer.data() + h * rows * columns; w != layer.data() + (h + 1) * rows * columns; ++w)
        head.push_back(std::isfinite(*w) ? std::lround(1000 * std::clamp(*w, 0.0f, 1.0f)) : 0);
      heads.push_back(std::move(head));
    }
    layers.push_back(std::move(heads));
  }
  if (layers.empty()) throw std::invalid_argument("report: attention maps without layers");
  return {{"title", maps.title}, {"rows", maps.rows}, {"columns", maps.columns}, {"layers", std::move(layers)}};
}

json data_of(const Report& report) {
  json samples = json::array(), maps = json::array();
  for (const Sample& sample : report.samples) samples.push_back({{"step", sample.step}, {"text", sample.text}});
  for (const AttentionMaps& map : report.maps) maps.push_back(json_of(map));
  return {{"samples", std::move(samples)}, {"maps", std::move(maps)}};
}

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
)";

constexpr std::string_view kSamples = R"(<section>
<h2>Samples during training</h2>
<div class="row"><label for="sample">After step <output id="sample-step"></output></label>
<input type="range" id="sample" min="0" step="1"></div>
<pre id="sample-text"></pre>
</section>
)";

constexpr std::string_view kMaps = R"(<section>
<h2>Attention maps</h2>
<div class="row"><label for="map-choice">Text</label><select id="map-choice"></select></div>
<p class="faint">One small picture per layer (down) and head (across): choose one. In the large one, each row is a query
and each column a key. The stronger the colour, the larger the weight; the weights of a row sum to 1. Arrow keys move
in both.</p>
<div class="scroll"><div id="heads"></div></div>
<p id="readout" class="faint" aria-live="polite"></p>
<div class="scroll">
<svg id="map" tabindex="0" role="img" aria-describedby="readout" aria-label="attention weights"></svg>
</div>
</section>
)";

}  // namespace

std::string report_html(const Report& report) {
  const std::string data = embedded(data_of(report));
  std::ostringstream out;
  out << kHead << "<title>" << escaped(report.title) << "</title>\n<style>\n"
      << kReportStyle << "</style>\n</head>\n<body>\n<main>\n<h1>" << escaped(report.title) << "</h1>\n";
  if (!report.introduction.empty()) out << "<p>" << escaped(report.introduction) << "</p>\n";
  if (!report.samples.empty() || !report.maps.empty())
    out << "<noscript><p>Samples and attention maps need JavaScript.</p></noscript>\n";
  if (!report.summary.empty()) {
    out << "<section>\n<h2>Summary</h2>\n<dl>\n";
    for (const auto& [name, value] : report.summary)
      out << "<div><dt>" << escaped(name) << "</dt><dd>" << escaped(value) << "</dd></div>\n";
    out << "</dl>\n</section>\n";
  }
  if (!report.losses.training.empty() || !report.losses.validation.empty())
    out << "<section>\n<figure class=\"scroll\">\n"
        << loss_curve_svg(report.losses, "Loss over steps") << "</figure>\n</section>\n";
  if (!report.samples.empty()) out << kSamples;
  if (!report.maps.empty()) out << kMaps;
  out << "</main>\n<script type=\"application/json\" id=\"data\">" << data << "</script>\n<script>\n"
      << kReportScript << "</script>\n</body>\n</html>\n";
  return out.str();
}

}  // namespace training
