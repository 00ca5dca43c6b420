// transliterate: writes Arabic names in Latin letters with a trained encoder–decoder Transformer.
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "../display/bar.h"
#include "../training/command_line.h"
#include "decode.h"
#include "heat_map.h"
#include "utf8.h"

namespace {

using namespace transliterate;

/// The parsed command line.
struct Request {
  std::vector<std::string> names;
  std::string model_folder = TRANSLITERATE_MODEL_DIR;
  std::string path = "flash";
  std::optional<std::string> prefix;
  std::optional<std::string> target;  // to be scored
  std::string map_file;
  std::string heads = "mean";
  bool verbose = false;

  attn::Path attention_path() const { return path == "naive" ? attn::Path::naive : attn::Path::flash; }
};

/// One line of input and its results. A name of several words is transliterated word by word.
struct Name {
  std::vector<Word> words;
  std::vector<Scored> results;
};

/// Prefixes errors in the input with their location.
template <class F>
auto located(const std::string& where, F f) {
  try {
    return f();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(where + ": " + error.what());
  }
}

std::vector<Name> read_names(const Request& request) {
  std::vector<Name> names;
  const auto add = [&](const std::string& where, const std::string& text) {
    names.push_back({located(where, [&] { return words_of(text); }), {}});
  };
  for (std::size_t i = 0; i < request.names.size(); ++i) add("name " + std::to_string(i + 1), request.names[i]);
  if (request.names.empty()) {
    std::size_t number = 0;
    for (std::string line; std::getline(std::cin, line);)
      if (++number; line.find_first_not_of(" \t\r") != std::string::npos) add("line " + std::to_string(number), line);
    if (names.empty())
      throw std::invalid_argument("no names: give them as arguments, or one per line on standard input");
  }
  return names;
}

/// Returns the ids of a word's letters, and warns of every letter that is not in the vocabulary.
Tokens ids_with_warnings(const Word& word, const Vocabulary& vocabulary) {
  std::vector<std::string> unknown;
  Tokens ids = ids_of(word, vocabulary, unknown);
  for (const std::string& letter : unknown)
    std::cerr << "transliterate: warning: " << letter << " (" << code_point_name(code_point(letter)) << ") is not in "
              << vocabulary.file() << ", treated as <unk>\n";
  return ids;
}

/// Returns the tokens of an option whose value is one word.
Tokens option_tokens(const std::string& option, const std::string& text, const Vocabulary& vocabulary) {
  const std::vector<Word> words = located(option, [&] { return words_of(text); });
  if (words.size() != 1) throw std::invalid_argument(option + " takes one word, not " + std::to_string(words.size()));
  return ids_with_warnings(words.front(), vocabulary);
}

/// Fills in the results of all names, in batches of words: large enough to share the work of a step, and small enough
/// that a long list needs no more memory than a short one.
void transliterate_names(std::vector<Name>& names, const Request& request, const Model& model) {
  constexpr std::size_t kBatch = 64;
  Tokens prefix, target;
  if (request.prefix) prefix = option_tokens("--prefix", *request.prefix, model.target);
  if (request.target) target = option_tokens("--score", *request.target, model.target);

  std::vector<Tokens> sources;
  std::vector<Name*> owners;
  for (Name& name : names) {
    if (request.target && name.words.size() != 1)
      throw std::invalid_argument("--score takes names of one word, not " + std::to_string(name.words.size()));
    for (const Word& word : name.words) {
      sources.push_back(ids_with_warnings(word, model.source));
      owners.push_back(&name);
    }
  }
  display::Bar bar("transliterating");
  for (std::size_t begin = 0; begin < sources.size(); begin += kBatch) {
    const std::size_t end = std::min(begin + kBatch, sources.size());
    const std::vector<Tokens> batch(&sources[begin], &sources[begin] + (end - begin)), targets(batch.size(), target);
    const auto results = request.target ? score(model.network, batch, targets, request.attention_path())
                                        : greedy(model.network, batch, prefix, request.attention_path());
    for (std::size_t i = 0; i < results.size(); ++i) owners[begin + i]->results.push_back(results[i]);
    bar.update(end, sources.size());
  }
}

void print(const Name& name, const Request& request, const Vocabulary& vocabulary) {
  for (std::size_t w = 0; w < name.results.size(); ++w)
    std::cout << (w > 0 ? " " : "") << text_of(name.results[w].tokens, vocabulary);
  std::cout << std::fixed << std::setprecision(4);
  if (request.target) std::cout << '\t' << name.results.front().total();
  std::cout << '\n';
  if (!request.verbose) return;
  for (const Scored& result : name.results) {
    std::cout << "  ";
    for (std::size_t t = 0; t < result.log_probs.size(); ++t)
      std::cout << vocabulary.token(t < result.tokens.size() ? result.tokens[t] : Vocabulary::kEnd) << ' '
                << result.log_probs[t] << "   ";
    std::cout << "total " << result.total() << '\n';
  }
}

/// Returns the panels of one word: one per head, or their mean.
std::vector<Panel> panels_of(const Word& source, const Scored& result, const Request& request, const Model& model,
                             const std::string& title) {
  std::vector<std::string> unknown;
  const auto map =
      attention_map(model.network, ids_of(source, model.source, unknown), result.tokens, request.attention_path());
  const attn::Index heads = map.dim(0), rows = map.dim(1), columns = map.dim(2);
  Word target;
  for (const attn::Index id : result.tokens) target.push_back(model.target.token(id));
  target.push_back("</s>");

  std::vector<Panel> panels;
  const auto add = [&](const std::string& which) -> Panel& {
    panels.push_back({title + which, source, target, attn::Tensor<float, 2>({rows, columns})});
    return panels.back();
  };
  if (request.heads == "all") {
    for (attn::Index h = 0; h < heads; ++h) add("head " + std::to_string(h + 1)).weights.matrix() = map.matrix(h);
  } else {
    Panel& mean = add("mean of " + std::to_string(heads) + " heads");
    for (attn::Index h = 0; h < heads; ++h) mean.weights.matrix() += map.matrix(h) / static_cast<float>(heads);
  }
  return panels;
}

void write_map(const std::vector<Name>& names, const Request& request, const Model& model) {
  std::size_t words = 0;
  for (const Name& name : names) words += name.words.size();
  std::vector<Panel> panels;
  std::string title = "Arabic \u2192 Latin";
  for (const Name& name : names)
    for (std::size_t w = 0; w < name.words.size(); ++w) {
      std::string pair;
      for (const std::string& letter : name.words[w]) pair += letter;
      pair += " \u2192 " + text_of(name.results[w].tokens, model.target);
      if (words == 1) title = pair;
      for (Panel& panel : panels_of(name.words[w], name.results[w], request, model, words == 1 ? "" : pair + ", "))
        panels.push_back(std::move(panel));
    }
  std::ofstream out(request.map_file, std::ios::binary);
  out << heat_map_svg(
      title,
      "Cross-attention of the last decoder layer: each column is a letter that was written, each row a letter that it "
      "could attend to. The weights of a column sum to 1; \u201cend\u201d is the decision to stop.",
      panels);
  if (!out.flush()) throw std::runtime_error(request.map_file + ": cannot be written");
}

void run(const Request& request) {
  if (!std::filesystem::is_directory(request.model_folder))
    throw FileError(request.model_folder,
                    "there is no such folder; pass its path with --model (examples/README.md says where to get it)");
  const Model model = Model::load(request.model_folder);
  std::vector<Name> names = read_names(request);
  transliterate_names(names, request, model);
  for (const Name& name : names) print(name, request, model.target);
  if (!request.map_file.empty()) write_map(names, request, model);
  if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
}

void add_options(CLI::App& app, Request& request) {
  app.add_option(
      "name", request.names,
      "Arabic names, as words or as letters separated by spaces; if none are given, lines of standard input");
  app.add_option("--model", request.model_folder,
                 "Folder with model.bin, source_vocabulary.txt and target_vocabulary.txt")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--path", request.path, "How attention is computed: flash (default) or naive; the result is the same")
      ->check(CLI::IsMember({"flash", "naive"}))
      ->option_text("flash|naive");
  auto* prefix =
      app.add_option("--prefix", request.prefix, "Letters that every result must begin with")->option_text("LETTERS");
  app.add_option("--score", request.target,
                 "Do not search: print the log-probability of this Latin word for each name; not with --prefix")
      ->option_text("WORD")
      ->excludes(prefix);
  auto* map = app.add_option("--map", request.map_file,
                             "Draw the last decoder layer's attention to the source letters as an SVG heat map")
                  ->option_text("FILE.svg");
  app.add_option("--heads", request.heads, "Heads in the map: their mean (default), or all of them; needs --map")
      ->check(CLI::IsMember({"mean", "all"}))
      ->option_text("mean|all")
      ->needs(map);
  app.add_flag("-v,--verbose", request.verbose, "Print the log-probability of every letter too");
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  CLI::App app{"Writes Arabic names in Latin letters with a trained encoder-decoder Transformer.", "transliterate"};
  add_options(app, request);
  return training::parse_and_run(app, argc, argv, [&] { run(request); });
}
