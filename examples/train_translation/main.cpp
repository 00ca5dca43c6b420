// train_translation: an encoder-decoder Transformer learns to translate Chinese into English.
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "learn.h"
#include "threads.h"
#include "use.h"

int main(int argc, char** argv) {
  int exit_code = EXIT_SUCCESS;
  const auto options = translation::options_of(argc, argv, exit_code);
  if (!options) return exit_code;
  try {
    nn::keep_memory();
    if (options->threads > 0) nn::set_threads(options->threads);
    if (options->model.empty())
      exit_code = translation::learn(*options);
    else
      translation::print_translations(translation::Translator::load(options->model), *options);
    if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
  } catch (const std::exception& error) {
    std::cerr << "train_translation: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return exit_code;
}
