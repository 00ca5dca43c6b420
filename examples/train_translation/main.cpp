// train_translation: trains an encoder–decoder Transformer to translate Chinese into English.
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "learn.h"
#include "program.h"
#include "threads.h"
#include "use.h"

int main(int argc, char** argv) {
  return training::run_program("train_translation", [&] {
    const auto options = translation::options_of(argc, argv);
    if (!options) return EXIT_SUCCESS;
    nn::keep_memory();
    if (options->threads > 0) nn::set_threads(options->threads);
    const int code = options->model.empty() ? translation::learn(*options)
                                            : translation::use(translation::Translator::load(options->model), *options);
    if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
    return code;
  });
}
