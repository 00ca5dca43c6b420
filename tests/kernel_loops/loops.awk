# objdump -dC -M intel --no-show-raw-insn <object> | awk -f loops.awk
#
# Prints a line for each kernel: its name, its instructions, and, for its innermost loops with products of vectors (most
# are fused multiply-adds): the number of loops, their instructions, loads and products.

function shortened(name) {
  if (name !~ /Compiled</) return ""
  sub(/^.*VectorSet\)/, "", name)
  sub(/>::call\(.*$/, "", name)
  gsub(/attn::detail::(built_for_[a-z0-9_]*::)?/, "", name)
  gsub(/\(DType\)/, "", name)
  gsub(/[ &]/, "", name)
  set = substr(name, 1, 1)
  return (set == 0 ? "generic" : set == 1 ? "avx2" : "avx512") " " substr(name, 3)
}

function finish(   i, j, k, l, inner, loops, in_loops, loads, products, code, has) {
  if (kernel == "") return
  loops = in_loops = loads = products = 0
  for (i = 1; i <= jumps; ++i) {
    inner = 1
    for (j = 1; j <= jumps; ++j)
      if (j != i && at[target[j]] >= at[target[i]] && at[from[j]] <= at[from[i]]) inner = 0
    if (!inner) continue
    has = k = l = 0
    for (j = at[target[i]]; j <= at[from[i]]; ++j) {
      ++k
      code = text[j]
      if (code ~ /^v?(fn?m(add|sub)[0-9]*|mul)ps/) ++has
      # A memory operand that is not the destination.
      if (code ~ /,.*\[/ && code !~ /^(lea|nop|prefetch)/ || code ~ /^(cmp|test|vu?comis)[a-z]* +[A-Z]* *(PTR)? *\[/) ++l
    }
    if (has == 0) continue
    ++loops
    in_loops += k
    loads += l
    products += has
  }
  print kernel, count, loops, in_loops, loads, products
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
  sub(/^(bnd|notrack|cs|ds|data16) +/, "", code)
  if (code ~ /^(nop|xchg +ax,ax)/ || code == "") next   # padding
  at[address] = ++count
  text[count] = code
  if (code ~ /^j[a-z]+ +[0-9a-f]+ /) {
    split(code, word, / +/)
    if (word[2] in at) {
      ++jumps
      target[jumps] = word[2]
      from[jumps] = address
    }
  }
}

END { finish() }
