# examples_page(<file.md>): writes the page of examples: programs as they are in examples/, what they printed, and what
# they drew, as far as PICTURES has it.

# example(<name> <what it does>): a program of one file.
function(example name what)
  set(source ${SOURCE_DIR}/examples/${name}.cpp)
  file(READ ${source} code)
  string(APPEND page "\n## ${name}\n\n${what}\n\n``` cpp\n${code}```\n")
  if(EXISTS ${PICTURES}/${name}.txt)
    file(READ ${PICTURES}/${name}.txt printed)
    string(APPEND page "\nIt printed:\n\n```\n${printed}```\n")
  endif()
  set(page "${page}" PARENT_SCOPE)
endfunction()

# trained(<name> <title> <what it did> <picture>...): a program of many files; pictures are "name, what it shows".
function(trained name title what)
  if(NOT EXISTS ${PICTURES}/${name}.txt)
    return()
  endif()
  file(READ ${PICTURES}/${name}.txt printed)
  string(APPEND page "\n## ${title}\n\n${what}\n")
  foreach(picture IN LISTS ARGN)
    string(APPEND page "\n<!-- picture: ${picture} -->\n")
  endforeach()
  string(APPEND page "\nIt printed:\n\n```\n${printed}```\n")
  if(EXISTS ${PICTURES}/${name}.html)
    string(APPEND page "\n[The page of the run](runs/${name}.html), as `--report` wrote it: losses, samples, and where each"
                       " head looks.\n")
  endif()
  set(page "${page}" PARENT_SCOPE)
endfunction()

function(examples_page file)
  set(page "# Examples\n\nPrograms of the repository, and what they printed and drew on the machine that made this page. "
           "[The guide](examples/README.md#programs) says how to build and run them.\n")
  string(CONCAT page ${page})
  example(hello "The shortest program.")
  example(worked_example "Three tokens through every step, and why scores are divided by √d.")
  example(custom_mod "A mask and a score change of lambdas.")
  example(gradients "Gradients through a lambda, checked against differences, and learning with them.")
  example(shared_prefix "The prompt of many continuations, held once.")
  trained(train_gpt "train_gpt" "[Learns to write](examples/train_gpt/README.md) from the project's own text, from nothing."
          "train_gpt, the losses of the run over its steps")
  trained(train_translation "train_translation"
          "[Learns to translate](examples/train_translation/README.md) a phrase book of 90 pairs, from nothing."
          "train_translation, where each layer of the decoder looked while it translated")
  trained(transliterate "transliterate"
          "Writes Arabic names in Latin letters with a [trained model](examples/README.md#programs)."
          "transliterate, where each letter of the result looked")
  file(WRITE ${file} "${page}")
endfunction()
