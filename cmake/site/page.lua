-- Pandoc filter for a page of the site: links between Markdown files become links between pages, masks drawn in text
-- become SVG, `<!-- picture: name, caption -->` becomes a picture, and public names become links into the reference. A
-- file that a page links to becomes a page in source/. The sections of the page are added to the index of the search. A
-- broken link stops the build.

local site, page  -- settings from Build.cmake; the path of this page in the repository
local names = {}  -- public names, with their locations in the reference
local members = {}  -- "class::member" or a public name, and its location, for the search

local function fail(...)
  io.stderr:write(page, ": ", string.format(...), "\n")
  os.exit(1)
end

local function is_there(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function read(path)
  local file = io.open(path) or fail("cannot read %s", path)
  local text = file:read("a")
  file:close()
  return text
end

local function escaped(text)
  return (text:gsub("[&<>\"]", {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["\""] = "&quot;"}))
end

-- Returns the path of a link on this page, relative to the repository's root.
local function from_root(link)
  local parts = {}
  for part in (page:gsub("[^/]*$", "") .. link):gmatch("[^/]+") do
    if part == ".." then
      if #parts == 0 then fail("the link %s leads out of the repository", link) end
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return table.concat(parts, "/")
end

-- Reads Doxygen's tags: classes, and members of the namespace, of which the first overload counts.
local function read_names()
  for kind, body in read(site.tags):gmatch('<compound kind="(%a+)".->(.-)</compound>') do
    local name, file = body:match("<name>attn::([%w_]+)</name>%s*<filename>(.-)</filename>")
    if name and (kind == "class" or kind == "struct") then
      names[name] = names[name] or file
      members[name] = file
      for member in body:gmatch("<member.->(.-)</member>") do
        local what, where, anchor =
          member:match("<name>(.-)</name>%s*<anchorfile>(.-)</anchorfile>%s*<anchor>(.-)</anchor>")
        if what and what:find("^[%w_]+$") then
          members[name .. "::" .. what] = members[name .. "::" .. what] or where .. "#" .. anchor
        end
      end
    end
    if kind == "group" then
      for member in body:gmatch("<member.->(.-)</member>") do
        local what, where, anchor =
          member:match("<name>(.-)</name>%s*<anchorfile>(.-)</anchorfile>%s*<anchor>(.-)</anchor>")
        if what then
          names[what] = names[what] or where .. "#" .. anchor
          members[what] = names[what]
        end
      end
    end
  end
  if not names.attention then fail("%s does not have attention()", site.tags) end
end

-- Returns the file name of a mask's picture from its expression, as cmake/site/pictures.cpp does.
local function slug(expression)
  return (expression:gsub("[^%w_]+", "-"):gsub("%-$", ""))
end

local function figure(name, caption, alt, class)
  return string.format('<figure class="%s"><img src="pictures/%s.svg" alt="%s"><figcaption>%s</figcaption></figure>',
                       class, name, escaped(alt), caption)
end

-- Returns code that breaks between its parts, not within a word, and not after the hyphen of an option.
local function code(text)
  local html = escaped(text):gsub("%f[^%s\0]%-[%-%w+=/]+", "\1%0\2")
  html = html:gsub("::", "%0\3"):gsub("&lt;", "%0\3"):gsub(",%f[%w]", "%0\3"):gsub("(%w/)%f[%w]", "%1\3")
  html = html:gsub("([%w_>;][%({])%f[%w{]", "%1\3"):gsub("([%w_])([.]%a)", "%1\3%2"):gsub("%)[.]", ")\3.")
  html = html:gsub("[\1\2\3]", {["\1"] = '<span class="option">', ["\2"] = "</span>", ["\3"] = "<wbr>"})
  return "<code>" .. html .. "</code>"
end

-- Returns a picture's caption as a sentence.
local function sentence(text)
  return (escaped(text):gsub("^.", string.upper):gsub("`(.-)`", "<code>%1</code>")) .. "."
end

-- Converts a block that has names in its first line, and rows of ■ and · below.
local function masks(block)
  local head, below = block.text:match("^([^\n]*)\n([^\n]*)")
  if not head or not (below:find("^■") or below:find("^·")) then return nil end
  local all = {}
  for expression in (head .. "  "):gmatch("(.-)%s%s+") do
    if not is_there(site.pictures .. "/" .. slug(expression) .. ".svg") then
      if page:find("mods/") then fail("%s is not drawn: add it to tests/support/mod_pictures.h", expression) end
      return nil
    end
    all[#all + 1] = figure(slug(expression), code(expression), "the pairs that " .. expression .. " keeps", "mask")
  end
  return pandoc.RawBlock("html", '<div class="masks">' .. table.concat(all, "\n") .. "</div>")
end

-- Returns all pictures of weights that pictures.cpp drew, below a sentence.
local function weights(caption)
  local all = {}
  for line in read(site.pictures .. "/index.txt"):gmatch("[^\n]+") do
    local kind, name, expression = line:match("^(%a+)\t([^\t]+)\t(.*)$")
    if kind == "weights" then all[#all + 1] = figure(name, code(expression), "weights with " .. expression, "mask") end
  end
  if #all == 0 then fail("index.txt has no weights") end
  local html = "<p>" .. sentence(caption) .. '</p>\n<div class="masks">' .. table.concat(all, "\n") .. "</div>"
  return pandoc.RawBlock("html", html)
end

local function comment(block)
  local said = block.text:match("^<!%-%- pictures: (weights .-) %-%->")
  if said then return weights(said) end
  local name, caption = block.text:match("^<!%-%- picture: ([%w_]+), (.-) %-%->")
  if name and is_there(site.pictures .. "/" .. name .. ".svg") then
    return pandoc.RawBlock("html", figure(name, sentence(caption), caption:gsub("`", ""), "chart"))
  end
  if block.text:find("^<!%-%-") then return {} end
end

-- Writes a file of the repository as a page in source/, and returns its link; `name` is a test case in it, or anything.
local written = {}
local function source_page(path, name)
  local text = written[path] or read(site.source .. "/" .. path)
  local file = "source/" .. path:gsub("/", "-") .. ".html"
  if not written[path] then
    local language = path:match("%.(%a+)$")
    local block = pandoc.CodeBlock(text, {"line", {language == "h" and "cpp" or language}})
    local html = pandoc.write(pandoc.Pandoc({block}), "html")
    local out = io.open(site.made .. "/" .. file, "w") or fail("cannot write %s", file)
    out:write('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
              '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>attn: ', path, '</title>\n',
              '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="../style.css">\n',
              '<script src="../site.js" defer></script>\n</head>\n<body>\n<header>\n', site.navigation,
              '\n</header>\n<div class="columns"><main>\n<h1 class="path">', path, '</h1>\n', html,
              '</main></div>\n</body>\n</html>\n')
    out:close()
    written[path] = text
  end
  local number = 0
  for line in text:gmatch("([^\n]*)\n") do
    number = number + 1
    if line:find("^TEST.*, " .. name:gsub("%W", "%%%0") .. "%)") then return file .. "#line-" .. number end
  end
  return file
end

local function link(l)
  local target = l.target
  local is_done = target:find("^https?://") or target:find("^#") or target:find("^runs/") or l.classes[1] == "name"
  if is_done then return nil end
  local path, anchor = target:match("^([^#]*)(.*)$")
  path = from_root(path)
  if site.pages[path] then
    l.target = site.pages[path] .. anchor
    return l
  end
  local program = path:match("^examples/([%w_]+)%.cpp$")
  if program then
    l.target = "examples.html#" .. program
    return l
  end
  if path:find("%.md$") then fail("%s is no page of the site: see cmake/site/Build.cmake", path) end
  if not is_there(site.source .. "/" .. path) then fail("%s leads nowhere", target) end
  if not read(site.source .. "/" .. path) then return l.content end  -- a folder
  l.target = source_page(path, pandoc.utils.stringify(l.content))
  return l
end

-- Converts a public name in the text to a link to its reference.
local function name(c)
  local word = c.text:gsub("^attn::", ""):match("^([%a_][%w_]*)$") or
                   c.text:gsub("^attn::", ""):match("^([%a_][%w_]*)[%(<].*[%)>]$")
  if page:find("^bench/") and not c.text:find("%(") then return nil end  -- a program
  if word and names[word] then return pandoc.Link({c}, "reference/" .. names[word], "", {class = "name"}), false end
end

-- Appends text to the index of the search: the title of its page, its heading, its location, and the words below.
local function add_section(out, title, heading, where, text)
  local quoted = {}
  for i, part in ipairs({title, heading, where, text}) do
    quoted[i] = '"' .. part:gsub('[\\"]', "\\%0"):gsub("%s+", " ") .. '"'
  end
  out:write("[", table.concat(quoted, ","), "],\n")
end

-- Adds the sections of this page, and with the first page all names of the reference.
local function index(blocks, title)
  local out = io.open(site.made .. "/search.js", "a") or fail("cannot write search.js")
  local this = site.pages[page]
  local heading, where, text = title, this, {}
  for _, block in ipairs(blocks) do
    if block.t == "Header" then
      if #text > 0 then add_section(out, title, heading, where, table.concat(text, " ")) end
      heading, text = pandoc.utils.stringify(block.content), {}
      where = block.level == 1 and this or this .. "#" .. block.identifier
    elseif block.t ~= "RawBlock" then
      local function spaced(b)
        b.content:insert(pandoc.Space())
        return b
      end
      local words = pandoc.Div({block}):walk({
        CodeBlock = function(c) return pandoc.Para({pandoc.Str(c.text), pandoc.Space()}) end,
        Para = spaced,
        Plain = spaced,
      })
      text[#text + 1] = pandoc.utils.stringify(words)
    end
  end
  if #text > 0 then add_section(out, title, heading, where, table.concat(text, " ")) end
  if page == "README.md" then
    local sorted = {}
    for name in pairs(members) do sorted[#sorted + 1] = name end
    table.sort(sorted)
    for _, name in ipairs(sorted) do add_section(out, "Reference", name, "reference/" .. members[name], "") end
  end
  out:close()
end

-- Returns what only the front page has: pictures of masks, and links to begin with.
local function front()
  local shown = {"causal", "sliding_window-3-1", "prefix_lm-5", "documents_at-0-4-9-12", "dilated-2-3",
                 "strided_sparse-3", "neighbourhood-3-4-2-3", "block_sparse-map-4-4"}
  local all = {}
  for line in read(site.pictures .. "/index.txt"):gmatch("[^\n]+") do
    local _, name, expression = line:match("^(%a+)\t([^\t]+)\t(.*)$")
    if pandoc.List.includes(shown, name) then
      all[#all + 1] = figure(name, code(expression), "the pairs that " .. expression .. " keeps", "mask")
    end
  end
  if #all < #shown then fail("a mask of the front page is not drawn") end
  local html = '<div class="masks front">' .. table.concat(all, "\n") .. '</div>\n<p class="links">' ..
                 '<a href="#install">Install</a> <a href="guide.html">Guide</a> <a href="mods.html">All masks</a> ' ..
                 '<a href="examples.html">Examples</a>'
  if site.has_demo then html = html .. ' <a href="demo.html">Models in your browser</a>' end
  if site.has_report then html = html .. ' <a href="runs/report.html">Report of the tests</a>' end
  return pandoc.RawBlock("html", html .. "</p>")
end

-- Keeps numbers and their units on one line.
local units = {}
for unit in ("ms s µs ns % × MiB KiB GiB Ki GFLOP/s GB/s threads tokens"):gmatch("%S+") do units[unit] = true end
local function glue(inlines)
  for i = 2, #inlines - 1 do
    local before, after = inlines[i - 1], inlines[i + 1]
    local is_measure = inlines[i].t == "Space" and before.t == "Str" and after.t == "Str" and
                         before.text:find("%d$") and units[after.text:match("^[^,;)]*")]
    if is_measure then inlines[i] = pandoc.Str("\u{a0}") end
  end
  return inlines
end

-- Returns the headings below the title as a list of links.
local function contents(blocks)
  local html, depth = {}, 1
  for _, block in ipairs(blocks) do
    if block.t == "Header" and (block.level == 2 or block.level == 3) then
      while depth < block.level do html[#html + 1], depth = "<ul>", depth + 1 end
      while depth > block.level do html[#html + 1], depth = "</ul>", depth - 1 end
      html[#html + 1] = string.format('<li><a href="#%s">%s</a></li>', block.identifier,
                                      escaped(pandoc.utils.stringify(block.content)))
    end
  end
  if #html < 4 then return nil end
  while depth > 1 do html[#html + 1], depth = "</ul>", depth - 1 end
  return table.concat(html, "\n")
end

function Pandoc(doc)
  page = pandoc.utils.stringify(doc.meta.page)
  site = dofile(pandoc.utils.stringify(doc.meta.site))
  read_names()
  local title
  for _, block in ipairs(doc.blocks) do
    if block.t == "Header" and block.level == 1 and not title then title = pandoc.utils.stringify(block.content) end
  end
  if not title then fail("there is no title") end
  doc.meta.title = title == "attn" and "attn: exact attention for C++ on CPUs" or "attn: " .. title
  index(doc.blocks, title)
  local list = contents(doc.blocks)
  if list then doc.meta.contents = pandoc.MetaBlocks({pandoc.RawBlock("html", list)}) end

  -- Names first, but not inside links, nor in headings, which are anchors themselves.
  local outside = {Code = name, Link = function(l) return l, false end, Header = function(h) return h, false end}
  outside.traverse = "topdown"
  local blocks = pandoc.Div(doc.blocks):walk(outside)
  blocks = blocks:walk({
    Link = link,
    CodeBlock = masks,
    RawBlock = comment,
    Inlines = glue,
    Code = function(c) return pandoc.RawInline("html", code(c.text)) end,
    Table = function(t) return pandoc.Div({t}, {class = "scroll"}) end,
  })
  doc.blocks = blocks.content
  if page == "README.md" then doc.blocks:insert(3, front()) end
  return doc
end
