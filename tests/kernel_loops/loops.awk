# objdump -dC -M intel --no-show-raw-insn <object> | awk -f loops.awk
#
# Prints a line for each kernel: its name, its instructions, and, for each of its innermost loops that computes with
# vectors, the loop's instructions, loads and products (most are fused multiply-adds), separated by slashes. Larger
# loops come first, because their order in the machine code may change without a reason.

function shortened(name,   set) {
  if (name ~ /Compiled</) {
    sub(/^.*VectorSet\)/, "", name)
    sub(/>::call\(.*$/, "", name)
  } else {
    sub(/\(.*$/, "", name)
  }
  gsub(/attn::detail::(built_for_[a-z0-9_]*::)?/, "", name)
  sub(/^(void|bool) /, "", name)
  gsub(/\(DType\)/, "", name)
  gsub(/[ &]/, "", name)
  if (name ~ /^(Bf16|Amx)[A-Za-z]*(<.*>)?::/) return (name ~ /Amx/ ? "amx " : "avx512_bf16 ") name
  if (name !~ /^[0-2],/) return ""
  set = substr(name, 1, 1)
  set = set == 0 ? "generic" : set == 1 ? "avx2" : "avx512"
  return set (name ~ /Vnni/ ? "_vnni " : " ") substr(name, 3)
}

# Stores the instructions, loads and products of the loop from instruction `first` to `last` in size, loads and products
# of the next loop, if it computes with vectors.
function add_loop(first, last,   j, code, computes, l, p) {
  computes = l = p = 0
  for (j = first; j <= last; ++j) {
    code = text[j]
    # Moves of vectors, and scalars in their registers, also occur in loops that only copy or are the rest of others.
    if (code ~ /[xyzt]mm/ && code !~ /^v?(mov|pxor|xorp)/ && code !~ /^[a-z0-9]*s[sd] /) computes = 1
    if (code ~ /^(v?(fn?m(add|sub)[0-9]*|mul)p[sd]|[vt]dpbf16ps|vpdpbusd) /) ++p
    # A memory operand that is not the destination.
    if (code ~ /,.*\[/ && code !~ /^(lea|nop|prefetch)/ || code ~ /^(cmp|test|vu?comis)[a-z]* +[A-Z]* *(PTR)? *\[/) ++l
  }
  if (!computes) return
  for (j = loops++; j > 0 && (size[j] < last - first + 1 || size[j] == last - first + 1 && loads[j] < l); --j) {
    size[j + 1] = size[j]
    loads[j + 1] = loads[j]
    products[j + 1] = products[j]
  }
  size[j + 1] = last - first + 1
  loads[j + 1] = l
  products[j + 1] = p
}

function finish(   i, j, inner, line) {
  if (kernel == "") return
  loops = 0
  for (i = 1; i <= jumps; ++i) {
    inner = 1
    for (j = 1; j <= jumps; ++j)
      if (j != i && target[j] >= target[i] && from[j] <= from[i]) inner = 0
    if (inner) add_loop(target[i], from[i])
  }
  line = kernel " " count
  for (i = 1; i <= loops; ++i) line = line " " size[i] "/" loads[i] "/" products[i]
  print line
}

/^[0-9a-f]+ <.*>:$/ {
  finish()
  name = $0
  sub(/^[0-9a-f]+ </, "", name)
  sub(/>:$/, "", name)
  kernel = shortened(name)
  count = jumps = 0
  delete at
  delete text
  next
}

kernel != "" && /^ +[0-9a-f]+:\t/ {
  split($0, part, "\t")
  address = part[1]
  gsub(/[ :]/, "", address)
  code = part[2]
  sub(/^(bnd|notrack|cs|ds|data16|\{vex\}) +/, "", code)
  if (code ~ /^(nop|xchg +ax,ax)/ || code == "") next   # padding
  at[address] = ++count
  text[count] = code
  if (code ~ /^j[a-z]+ +[0-9a-f]+ /) {
    split(code, word, / +/)
    if (word[2] in at) {
      ++jumps
      target[jumps] = at[word[2]]
      from[jumps] = count
    }
  }
}

END { finish() }
