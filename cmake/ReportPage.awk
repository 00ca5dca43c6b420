# awk -F '\t' [-v text=FILE] -f ReportPage.awk ROWS > PAGE
#
# Writes the page of tests/report, and its table as text in FILE. Lines of ROWS: `fact`, a name, its value; or `row`,
# the part, its state (passed, failed or not run), what ran, the worst error over naive's, failures, seconds, a note.

function escaped(s) {
  gsub(/&/, "\\&amp;", s)
  gsub(/</, "\\&lt;", s)
  return s
}
function cell(name, value) {
  return value == "" ? "<td></td>" : "<td data-name=\"" name "\">" escaped(value) "</td>"
}
$1 == "fact" { facts = facts "<dt>" $2 "</dt><dd>" escaped($3) "</dd>\n" }
$1 == "row" && $3 == "not run" {
  missing = missing "<li><b>" escaped($2) "</b>: " escaped($8) "</li>\n"
  unrun = unrun sprintf("  %s: %s\n", $2, $8)
}
$1 == "row" && $3 != "not run" {
  ++parts
  failed += $3 == "failed"
  body = body "<tr class=\"" $3 "\"><th>" escaped($2) "</th>" cell("result", $3) cell("ran", $4) cell("error", $5) \
    cell("failures", $6) cell("seconds", $7) cell("note", $8) "</tr>\n"
  if (match($8, /no time for .*/)) {  # a part of it
    missing = missing "<li><b>" escaped($2) "</b>: " escaped(substr($8, RSTART)) "</li>\n"
    unrun = unrun sprintf("  %s: %s\n", $2, substr($8, RSTART))
  }
  note = $4 == "" || $8 == "" ? $4 $8 : $4 "; " $8
  table = table sprintf("%-34s %-7s %8d %8s %7d  %s\n", $2, $3, $6, $5, $7, note)
}
END {
  verdict = parts == 0 ? "nothing ran" : failed == 0 ? "no failures in " parts " parts" : \
    failed " of " parts " parts failed"
  if (text != "") {
    printf "%-34s %-7s %8s %8s %7s  %s\n%s", "part", "result", "failures", "error", "seconds", "ran", table > text
    printf "error: the largest, over naive's\nNot run:\n%s%s\n", unrun, verdict > text
  }
  print "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"
  print "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
  print "<title>attn: report of the tests</title>\n<style>"
  print ":root {\n  color-scheme: light dark; --good: #0b7d3e; --bad: #b3261e;"
  print "  --paper: #fff; --ink: #1f2933; --faint: #5b6773; --line: #dde2e7;\n}"
  print "@media (prefers-color-scheme: dark) {\n  :root {\n    --good: #7fd29b; --bad: #ff8a80;"
  print "    --paper: #15191e; --ink: #e6eaee; --faint: #9aa7b4; --line: #333c45;\n  }\n}"
  print "body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, Arial, sans-serif }"
  print "main { max-width: 64rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }\nh1 { font-size: 1.6rem }"
  print "dt { color: var(--faint) }\ndd { margin: 0 0 .5rem }\ntable { border-collapse: collapse; width: 100% }"
  print "th, td { padding: .4rem .5rem; border-bottom: 1px solid var(--line); text-align: left }"
  print ".passed [data-name=result], .good { color: var(--good) }"
  print ".failed [data-name=result], .bad { color: var(--bad) }"
  print "@media (max-width: 45rem) {\n  thead, td:empty { display: none }"
  print "  tr, tbody th, td { display: block; border: 0 }"
  print "  tr { border-bottom: 1px solid var(--line); padding: .4rem 0 }\n  tbody th, td { padding: 0 }"
  print "  td::before { content: attr(data-name) ': '; color: var(--faint) }\n}\n</style>\n</head>\n<body>\n<main>"
  print "<h1>Report of the tests</h1>\n<p class=\"" (failed > 0 ? "bad" : "good") "\"><b>" verdict "</b></p>"
  print "<dl>\n" facts "</dl>\n<h2>What ran</h2>"
  print "<p>Random calls to all parts of the library have random sizes, strides, mods and options, and each tensor is"
  print "next to a guard page. They are compared with an oracle in a wider type. In a twentieth of the cases, the naive"
  print "path makes the same call; the error is the largest of a fused path over naive's, or over a few units in the"
  print "last place, whichever is larger.</p>\n<table>"
  print "<thead><tr><th>part</th><th>result</th><th>ran</th><th>error</th>"
  print "<th>failures</th><th>seconds</th><th>note</th></tr></thead>\n<tbody>\n" body "</tbody>\n</table>"
  print "<h2>What was not run</h2>\n<ul>\n" missing "</ul>\n</main>\n</body>\n</html>"
}
