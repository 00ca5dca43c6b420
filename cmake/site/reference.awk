# awk -v topics=<topics.txt> -f reference.awk <header>
#
# Prints a header as Doxygen should read it: the first comment documents the file, and all of namespace attn belongs to
# the header's topic. Hides friends and private structs (Doxygen would link to a list of them that it does not write),
# inline namespaces named after instruction sets, and namespace std. Keeps line numbers, so that warnings refer to the
# header's lines.
BEGIN {
  while ((getline line < topics) > 0) {
    if (line ~ /^[a-z]/) {
      name = line
      sub(/:.*/, "", name)
    }
    count = split(line, words, " ")
    for (i = 1; i <= count; ++i)
      if (words[i] ~ /\.h$/) topic_of[words[i]] = name
  }
}
FNR == 1 {
  header = FILENAME
  sub(/.*\/include\/attn\//, "", header)
  folder = header
  sub(/[^\/]*$/, "*.h", folder)
  topic = header in topic_of ? topic_of[header] : topic_of[folder]
  is_first_comment = 1
  if (/^\/\/ /) print "/// @file"
}
is_first_comment && /^#pragma once$/ { is_first_comment = 0; next }
is_first_comment {
  sub(/^\/\/ /, "/// ")
  if (FNR == 1 && match($0, /^\/\/\/ [a-z_]+\(\)/))  # a name, which Doxygen would capitalise
    $0 = "/// `" substr($0, 5, RLENGTH - 4) "`" substr($0, RLENGTH + 1)
}
/^namespace std \{$/ { is_std = 1 }
/^}  \/\/ namespace std$/ { is_std = 0; print ""; next }
is_std || /^(inline namespace ATTN_BUILT_FOR \{|}  \/\/ namespace ATTN_BUILT_FOR)$/ { print ""; next }
/namespace (attn|detail)/ { sub(/::inline ATTN_BUILT_FOR/, "") }
/^ private:$/ { is_private = 1 }
/^};$/ { is_private = 0 }
is_private && /^  struct [A-Za-z]+ \{$/ { print "/** @cond */ " $0; next }
is_private && /^  friend class / { print ""; next }
is_private && /^  };$/ { print $0 " /** @endcond */"; next }
/^namespace attn \{$/ && topic { print $0 " /** @addtogroup " topic " */ /** @{ */"; next }
/^}  \/\/ namespace attn$/ && topic { print "/** @} */ " $0; next }
# A backslash before the space keeps an abbreviation from ending a brief description. (Indented text is code.)
/^ *\/\/\/ [^ ]/ || / \/\/\/< / {
  gsub(/ (al|eq|cf)\. /, "&\001")
  gsub(/ \001/, "\\ ")
  sub(/ (al|eq|cf)\.$/, "&\\ ")
}
{ print }
