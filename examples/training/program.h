// The main function shared by the training programs.
#pragma once

#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include "printable.h"

namespace training {

/// Runs a program and returns its exit code. An exception becomes one line on standard error, after the program's name,
/// and exit code 1.
template <class F>
int run_program(const char* name, const F& program) {
  try {
    return program();
  } catch (const std::bad_alloc&) {
    std::cerr << name << ": there is not enough memory for a model of these sizes\n";
  } catch (const std::exception& error) {
    std::cerr << name << ": " << nn::as_line(error.what()) << '\n';
  }
  return EXIT_FAILURE;
}

}  // namespace training
