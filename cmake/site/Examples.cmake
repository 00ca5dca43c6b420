# examples_page(<file.md>): writes the page of examples: the source of programs in examples/, their output and their
# drawings, as far as PICTURES has them.

# example(<name> <what it does>): a program with a single file.
function(example name what)
  set(source ${SOURCE_DIR}/examples/${name}.cpp)
  file(READ ${source} code)
  string(APPEND page "\n## ${name}\n\n${what}\n\n``` cpp\n${code}```\n")
  if(EXISTS ${PICTURES}/${name}.txt)
    file(READ ${PICTURES}/${name}.txt printed)
    string(APPEND page "\nOutput:\n\n```\n${printed}```\n")
  endif()
  set(page "${page}" PARENT_SCOPE)
endfunction()

# trained(<name> <title> <what it does> <picture>...): a program with several files; a picture is "name, caption".
function(trained name title what)
  if(NOT EXISTS ${PICTURES}/${name}.txt)
    return()
  endif()
  file(READ ${PICTURES}/${name}.txt printed)
  string(APPEND page "\n## ${title}\n\n${what}\n")
  foreach(picture IN LISTS ARGN)
    string(APPEND page "\n<!-- picture: ${picture} -->\n")
  endforeach()
  string(APPEND page "\nOutput:\n\n```\n${printed}```\n")
  if(EXISTS ${PICTURES}/${name}.html)
    string(APPEND page "\n[The report of the run](runs/${name}.html), written by `--report`: losses, samples, and what"
                       " each head attends to.\n")
  endif()
  set(page "${page}" PARENT_SCOPE)
endfunction()

function(examples_page file)
  set(page "# Examples\n\nThe programs of the repository, with their output and drawings from the machine that built this page."
           " [The guide](examples/README.md#programs) describes how to build and run them.\n")
  string(CONCAT page ${page})
  example(hello "The shortest program.")
  example(worked_example "Follows three tokens through every step and shows why scores are divided by √d.")
  example(custom_mod "Defines a mask and a score change as lambdas.")
  example(gradients "Computes gradients through a lambda, checks them against finite differences and learns with them.")
  example(shared_prefix "Stores the common prompt of many continuations once.")
  trained(train_gpt "train_gpt" "[Learns to write](examples/train_gpt/README.md) from the project's own text, from scratch."
          "train_gpt, the loss over the steps of the run")
  trained(train_translation "train_translation"
          "[Learns to translate](examples/train_translation/README.md) a phrase book of 90 pairs, from scratch."
          "train_translation, the attention of each decoder layer during a translation")
  trained(transliterate "transliterate"
          "Transliterates Arabic names with a [trained model](examples/README.md#models-and-data)."
          "transliterate, the attention of each letter of the result")
  file(WRITE ${file} "${page}")
endfunction()
