# awk -v include=<folder that holds attn/> [-v to=<folder>] -f apply.awk <file of records>...
#
# Reads records of faults (README.md has their format) and checks each against its header. With `to`, writes there the
# headers with all faults, each of which is off unless its number is in the environment variable ATTN_FAULT. Prints a
# line per fault: number, name, header, tests, environment, why it survives; separated by tabs.
function stop(message) {
  print "faults: " message > "/dev/stderr"
  failed = 1
  exit 1
}
function at() { return FILENAME ":" FNR }
# The text of the header, or of as many lines as could be read.
function text_of(header,   path, line, text) {
  path = include "/attn/" header
  while ((getline line < path) > 0) text = text line "\n"
  close(path)
  return text
}
function finish_record() {
  if (count == 0) return
  if (header[count] == "") stop(name[count] " has no line `in`")
  if (tests[count] == "") stop(name[count] " has no line `seen by`")
  if (old[count] == "") stop(name[count] " has no line `- `")
  if (fault[count] !~ /FAULT/) stop(name[count] " has no FAULT in its lines `+ `")
}
BEGIN { if (include == "") stop("apply.awk needs -v include=<folder that holds attn/>") }
/^#/ || /^$/ { next }
/^fault [a-z0-9_]+$/ {
  finish_record()
  if ($2 in number) stop(at() ": a second record " $2)
  name[++count] = $2
  number[$2] = count
  next
}
count == 0 { stop(at() ": no line `fault NAME` before this line") }
/^in [^ ]+$/ { header[count] = $2; next }
/^seen by / { tests[count] = substr($0, 9); next }
/^with [A-Z_]+=/ { environment[count] = substr($0, 6); next }
/^survives: / { reason[count] = substr($0, 11); next }
/^-( |$)/ { old[count] = old[count] (old[count] == "" ? "" : "\n") substr($0, 3); next }
/^[+]( |$)/ { fault[count] = fault[count] (fault[count] == "" ? "" : "\n") substr($0, 3); next }
{ stop(at() ": neither `fault NAME` nor `in`, `seen by`, `with`, `survives:`, `- ` or `+ `: " $0) }
END {
  if (failed) exit 1
  finish_record()
  if (count == 0) stop("no records")
  for (i = 1; i <= count; ++i) {
    h = header[i]
    if (!(h in text)) {
      text[h] = text_of(h)
      if (text[h] == "") stop(name[i] ": no header attn/" h)
      headers[++header_count] = h
    }
    begin[i] = index(text[h], old[i])
    if (begin[i] == 0) stop(name[i] ": attn/" h " has changed; it no longer has: " old[i])
    if (index(substr(text[h], begin[i] + 1), old[i]) > 0) stop(name[i] ": attn/" h " has more than one: " old[i])
    end[i] = begin[i] + length(old[i])
    survivors += reason[i] != ""
    if (reason[i] == "") reason[i] = "-"
    if (environment[i] == "") environment[i] = "-"
    print i "\t" name[i] "\t" h "\t" tests[i] "\t" environment[i] "\t" reason[i]
  }
  if (survivors * 20 > count) stop(survivors " of " count " faults are listed as survivors, more than one in 20")
  for (n = 1; n <= header_count; ++n) {
    # The faults of a header, in the order of their text.
    h = headers[n]
    made = ""
    last = 1
    while (1) {
      next_one = 0
      for (i = 1; i <= count; ++i)
        if (header[i] == h && !done[i] && (!next_one || begin[i] < begin[next_one])) next_one = i
      if (!next_one) break
      i = next_one
      done[i] = 1
      if (begin[i] < last) stop(name[i] " overlaps another fault in attn/" h)
      changed = fault[i]
      gsub(/FAULT/, "(attn_fault == " i ")", changed)
      made = made substr(text[h], last, begin[i] - last) changed
      last = end[i]
    }
    if (to != "") printf "%s", "#include <attn/fault.h>\n" made substr(text[h], last) > (to "/attn/" h)
    if (to != "") close(to "/attn/" h)
  }
}
