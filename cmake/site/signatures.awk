# awk -f signatures.awk <header>...
#
# Prints the public declarations of headers as Markdown: for each header the first sentence of its docstring, then a C++
# block with the declarations of namespace attn, without `template`, `requires`, bodies, and values that lambdas
# compute. Omits namespace detail and functions that name its types, names that are deprecated or not to be called,
# names without a docstring, and overloads that differ from the one above only in taking no mods or another type of
# options.

FNR == 1 {
  if (NR > 1) print_header()
  path = FILENAME
  sub(/.*\/include\//, "", path)
  about = text = ""
  is_about = 1
}
# Converts a header to one text: code without strings and comments; docstrings between \001 and \002, those after a
# declaration between \003 and \002; and \004 for a blank line.
is_about && /^\/\/ / { about = about (about == "" ? "" : " ") substr($0, 4); next }
{ is_about = 0 }
continues { continues = /\\$/; next }
/^#define ATTN_[A-Z_]+ [0-9]+$/ { text = text "#define " $2 " " $3 ";"; next }
/^ *#/ { continues = /\\$/; next }
/^ *\/\/\/ @[{}]/ { text = text (/\{/ ? "\005" : "\006"); next }
/^ *\/\/\/( |$)/ {
  said = $0
  sub(/^ *\/\/\/ ?/, "", said)
  text = text "\001" said "\002"
  next
}
/^ *$/ { text = text "\004"; next }
{
  line = $0
  behind = ""
  if (match(line, /\/\/\/< /)) {
    behind = "\003" substr(line, RSTART + 5) "\002"
    line = substr(line, 1, RSTART - 1)
  }
  gsub(/\\./, "", line)
  gsub(/"[^"]*"/, "\"\"", line)
  gsub(/'[^']'/, "' '", line)
  sub(/\/\/.*/, "", line)
  text = text line " " behind
}
END { print_header() }

function print_header() {
  block = ""
  read_declarations()
  sub(/^\n/, "", block)
  if (block == "") return
  declarations = block
  block = ""
  add_lines("", about)
  printf "\n### %s\n\n%s\n```cpp\n%s```\n", path, block, declarations
}

# Walks over a header's text, from declaration to declaration. scope[0 .. scopes] are the enclosing namespaces and
# classes: their kinds, and whether their members are public.
function read_declarations(    i, c, end, depth, head) {
  scopes = 0
  scope[0] = "namespace"
  visible[0] = 1
  head = doc = ""
  depth = is_group = ends_doc = 0
  for (i = 1; i <= length(text); ++i) {
    c = substr(text, i, 1)
    if (c == "\001") {
      end = i + index(substr(text, i), "\002") - 1
      if (head !~ /[^ ]/) add_to_doc(substr(text, i + 1, end - i - 1))
      i = end
    } else if (c == "\003") {
      i += index(substr(text, i), "\002") - 1
    } else if (c == "\004") {
      if (head !~ /[^ ]/) forget_doc()
    } else if (c == "\005" || c == "\006") {
      is_group = c == "\005"
    } else if (depth == 0 && c == "{") {
      end = closing(i)
      if (head ~ /^ *(inline )?namespace /) {
        enter_namespace(plain(head))
      } else if (is_class(head)) {
        enter_class(head)
      } else if (head ~ /^ *enum /) {
        declare_enum(plain(head), i + 1, end - 1)
        i = end
      } else if (is_initialiser(head)) {
        head = head substr(text, i, end - i + 1)
        i = end
        continue
      } else {
        i = end
        end = match(substr(text, i + 1), /^ *(\003[^\002]*\002 *)+/) ? RLENGTH : 0
        declare(head, substr(text, i + 1, end))
        i += end
      }
      head = ""
    } else if (depth == 0 && c == "}") {
      leave()
      head = ""
    } else if (depth == 0 && c == ";") {
      end = match(substr(text, i + 1), /^ *(\003[^\002]*\002 *)+/) ? RLENGTH : 0
      declare(head, substr(text, i + 1, end))
      i += end
      head = ""
    } else if (depth == 0 && c == ":" && head ~ /^ *(public|private|protected)$/) {
      visible[scopes] = visible_class[scopes] && head ~ /public/
      forget_doc()
      head = ""
    } else {
      if (c ~ /[([{]/) ++depth
      if (c ~ /[])}]/) --depth
      head = head c
    }
  }
}

# Returns the position of the bracket that closes the one at `from`.
function closing(from,    i, c, depth) {
  depth = 0
  for (i = from; i <= length(text); ++i) {
    c = substr(text, i, 1)
    if (c == "\001" || c == "\003") i += index(substr(text, i), "\002") - 1
    else if (c == "{") ++depth
    else if (c == "}" && --depth == 0) return i
  }
  print FILENAME ": a bracket is not closed" > "/dev/stderr"
  exit 1
}

# Adds a line to the docstring, up to its first blank line, example or tag.
function add_to_doc(said) {
  if (said ~ /^@deprecated/) doc = "@deprecated"
  is_documented = 1
  if (said == "" || said ~ /^(    |@)/) ends_doc = 1
  if (!ends_doc) doc = doc (doc == "" ? "" : " ") said
}
function forget_doc() {
  doc = ""
  ends_doc = is_documented = 0
}

function is_class(head) {
  head = plain(head)
  return head ~ /^(class|struct) / && without_brackets(head) !~ /[#=]/
}
# Whether the braces after `head` contain a value, or the terms of a requirement, and not a body.
function is_initialiser(head) {
  if (head ~ /requires ?\([^()]*\) *$/ && head ~ /(requires|=|&&|\|\||\() *requires ?\([^()]*\) *$/) return 1
  head = plain_but_for_initialisers(head)
  if (without_brackets(head) ~ / = |[^=!<>]=$/) return 1
  if (without_brackets(head) ~ /#.* : /) return head ~ /[A-Za-z0-9_>]$/  # of a constructor
  return head !~ /\(/ && head ~ /[A-Za-z0-9_>]$/
}
# Returns `text` with each pair of round brackets and its contents replaced by #.
function without_brackets(text) {
  while (gsub(/\([^()]*\)/, "#", text)) {
  }
  return text
}

function enter_namespace(name) {
  sub(/::inline ATTN_BUILT_FOR/, "", name)
  ++scopes
  scope[scopes] = "namespace"
  visible[scopes] = visible[scopes - 1] && name !~ /detail|^namespace (std)?$/
  prints[scopes] = visible[scopes] && name !~ /^namespace (attn|ATTN_BUILT_FOR)$/
  if (prints[scopes]) add("\n" name " {")
  forget_doc()
}
function enter_class(head,    was_visible) {
  was_visible = visible[scopes] && doc != "" && doc !~ /^(Not to be called|@deprecated)/
  if (was_visible) declare_text(name_of_class(head) " {", doc, "")
  ++scopes
  scope[scopes] = "class"
  visible_class[scopes] = prints[scopes] = was_visible
  visible[scopes] = was_visible && plain(head) ~ /^struct/
  is_first = 1
  forget_doc()
}
function leave() {
  if (prints[scopes] && !(scope[scopes] == "class" && sub(/ [{]\n$/, " {};\n", block)))
    add(scope[scopes] == "class" ? indent(scopes - 1) "};" : "\n}")
  --scopes
  is_first = 0
  forget_doc()
}
# Returns two spaces per enclosing class.
function indent(count,    i, spaces) {
  spaces = ""
  for (i = 1; i <= count; ++i)
    if (scope[i] == "class") spaces = spaces "  "
  return spaces
}

# Returns `class Name<T, Rank>` for `template <class T, int Rank> class Name : Base`.
function name_of_class(head,    name, parameters, count, i, all, parameter) {
  name = plain(head)
  sub(/ (final )?: .*/, "", name)
  sub(/ final$/, "", name)
  if (!match(head, /template ?<[^>]*>/)) return name
  parameters = substr(head, RSTART, RLENGTH)
  sub(/^template ?</, "", parameters)
  sub(/>$/, "", parameters)
  count = split(parameters, all, /, */)
  parameters = ""
  for (i = 1; i <= count; ++i) {
    parameter = all[i]
    sub(/ = .*/, "", parameter)
    if (parameter ~ /\.\.\./) parameter = parameter "..."
    sub(/.* /, "", parameter)
    parameters = parameters (i > 1 ? ", " : "") parameter
  }
  return name ~ /</ ? name : name "<" parameters ">"
}

# Prints the declaration that ends here, with the docstrings above and after it.
function declare(head, behind,    said, was_documented) {
  gsub(/\002 *\003/, " ", behind)
  gsub(/^ *\003?|\002 *$/, "", behind)
  said = doc
  was_documented = is_documented || is_group || behind != ""
  forget_doc()
  head = plain(head)
  if (!visible[scopes] || !was_documented) return
  if (said ~ /^(Not to be called|@deprecated)/ || head ~ /deprecated\(/) return
  if (said ~ /^As above/ && said ~ /without mods|Options of the heads/) return
  if (head == "" || head ~ /^(static_assert|extern|friend class|namespace) ?/) return
  if (head ~ /^(const )?detail::[^;]*\(|\(const detail::|^detail::NamesOnly/) return  # an internal type
  declare_text(head (head ~ /^#/ ? "" : ";"), said, behind)
}
function declare_text(head, said, behind) {
  said = sentence(said)
  if (said == "" && behind != "" && length(indent(scopes) head "  // " behind) <= 104) {
    add(indent(scopes) head "  // " behind)
    is_first = 0
    return
  }
  if (said == "") said = behind
  if (said != "" && !is_first) add("")
  if (said != "") add_lines(indent(scopes) "// ", said)
  add_declaration(head)
  is_first = 0
}
function declare_enum(head, from, to,    said, body) {
  said = doc
  forget_doc()
  if (!visible[scopes] || said == "") return
  body = substr(text, from, to - from + 1)
  gsub(/,/, "\007", body)
  gsub(/[\004]/, "", body)
  if (body !~ /[\001\003]/) {  # names without docstrings
    gsub(/ *\007 */, ", ", body)
    gsub(/^ +|[ ,]+$/, "", body)
    declare_text(head " { " body " };", said, "")
    return
  }
  declare_text(head " {", said, "")
  add_enumerators(body)
  add(indent(scopes) "};")
}
# Prints enumerators. They end with \007; their docstrings, whose commas are \007 too, are above or after them.
function add_enumerators(body,    name, said, from, end) {
  while (body ~ /[^ \007]/) {
    said = ""
    while (match(body, /^[ \007]*\001/)) {
      from = RLENGTH + 1
      end = index(body, "\002")
      said = said (said == "" ? "" : " ") substr(body, from, end - from)
      body = substr(body, end + 1)
    }
    match(body, /^[ \007]*[^\007\003\001]*/)
    name = substr(body, 1, RLENGTH)
    body = substr(body, RLENGTH + 1)
    sub(/^\007/, "", body)
    while (match(body, /^ *\003/)) {
      from = RLENGTH + 1
      end = index(body, "\002")
      said = said (said == "" ? "" : " ") substr(body, from, end - from)
      body = substr(body, end + 1)
    }
    gsub(/[ \007]+/, " ", name)
    gsub(/^ | $/, "", name)
    gsub(/\007/, ",", said)
    if (name == "") continue
    name = name ","
    if (said != "" && length(indent(scopes) name "    // " said) <= 104) name = name "  // " said
    else if (said != "") add_lines(indent(scopes) "  // ", said)
    add(indent(scopes) "  " name)
  }
}

# Returns a declaration on one line, without `template <…>`, `requires …`, constructor initialisers and attributes.
function plain(head) {
  head = plain_but_for_initialisers(head)
  if (match(head, /\)( const)?( noexcept)? requires[ (]/))
    head = substr(head, 1, RSTART) (substr(head, RSTART) ~ /^\) const/ ? " const" : "")
  if (match(without_brackets(head), /#( noexcept)? : /)) sub(/\)( noexcept)? : .*/, ")", head)
  sub(/ = (default|\[\].*)$/, "", head)  # values computed by lambdas are not shown
  return head
}
function plain_but_for_initialisers(head,    before) {
  gsub(/\003[^\002]*\002/, "", head)
  gsub(/ +/, " ", head)
  gsub(/^ | $/, "", head)
  gsub(/\( /, "(", head)
  do {
    before = head
    if (head ~ /^template ?</) head = behind_pair(head, "<", ">")
    if (head ~ /^requires/) head = behind_requirement(head)
    sub(/^(inline|\[\[[^]]*\]\]) /, "", head)
  } while (head != before)
  return head
}
# Returns the text after the first pair of brackets.
function behind_pair(head, opens, closes,    i, depth, c) {
  depth = 0
  for (i = index(head, opens); i <= length(head); ++i) {
    c = substr(head, i, 1)
    if (c == opens) ++depth
    if (c == closes && --depth == 0) break
  }
  head = substr(head, i + 1)
  sub(/^ /, "", head)
  return head
}
# Returns the text after `requires` and its terms: brackets, names with template arguments, or requires (…) {…}, joined
# by && and ||.
function behind_requirement(head) {
  do {
    sub(/^(requires|&&|\|\|) ?/, "", head)
    if (head ~ /^requires ?\(/) head = behind_pair(behind_pair(head, "(", ")"), "{", "}")
    else if (head ~ /^!?\(/) head = behind_pair(head, "(", ")")
    else if (head ~ /^!?[A-Za-z_:0-9]+ ?</) head = behind_pair(head, "<", ">")
    else sub(/^!?[A-Za-z_:0-9]+ ?/, "", head)
  } while (head ~ /^(&&|\|\|)/)
  return head
}

# Returns the first sentence of a docstring. Neither an abbreviation nor a full stop within brackets ends it.
function sentence(said,    done, rest, opened, closed) {
  sub(/ @[a-z]+ .*/, "", said)
  done = ""
  rest = said
  while (match(rest, /\.( |$)/)) {
    done = done substr(rest, 1, RSTART)
    rest = substr(rest, RSTART + 1)
    opened = done
    closed = done
    if (done !~ /(^|[ (])(al|eq|cf|vs|e\.g|i\.e)\.$|\.\.$/ && gsub(/[({]/, "", opened) <= gsub(/[)}]/, "", closed)) return done
  }
  done = done rest
  sub(/:$/, ".", done)
  return done
}

# Adds text in lines of at most 104 columns that begin with `before`.
function add_lines(before, said,    words, count, i, line) {
  count = split(said, words, " ")
  line = before words[1]
  for (i = 2; i <= count; ++i) {
    if (length(line " " words[i]) > 104) {
      add(line)
      line = before words[i]
    } else {
      line = line " " words[i]
    }
  }
  add(line)
}
# Adds a declaration in lines of at most 104 columns, broken after parameters.
function add_declaration(head,    i, c, depth, line, word, later) {
  line = indent(scopes)
  later = index(head, "(") + (index(head, "operator()(") > 0 ? 2 : 0)
  if (later == 0 || later > 36) later = 4
  later = sprintf("%" (later + length(line)) "s", "")
  word = ""
  depth = 0
  for (i = 1; i <= length(head); ++i) {
    c = substr(head, i, 1)
    word = word c
    if (c ~ /[(<{]/) ++depth
    if (c ~ /[)>}]/) --depth
    if (i < length(head) && !(c == "," && depth == 1)) continue
    if (length(line word) > 104 && line ~ /[^ ]/) {
      sub(/ $/, "", line)
      add(line)
      line = later
      sub(/^ /, "", word)
    }
    line = line word
    word = ""
  }
  add(line)
}
function add(line) { block = block line "\n" }
