-- Pandoc filter for a page of the site: links between Markdown files become links between pages, masks drawn in text
-- become SVG, `<!-- picture: name, caption -->` becomes a picture, and public names become links into the reference. A
-- broken link stops the build.

local site, page  -- settings from Build.cmake; the path of this page in the repository
local names = {}  -- public names, with their locations in the reference

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
    if name and (kind == "class" or kind == "struct") then names[name] = names[name] or file end
    if kind == "group" then
      for member in body:gmatch("<member.->(.-)</member>") do
        local what, where, anchor =
          member:match("<name>(.-)</name>%s*<anchorfile>(.-)</anchorfile>%s*<anchor>(.-)</anchor>")
        if what then names[what] = names[what] or where .. "#" .. anchor end
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

local function code(text)
  return "<code>" .. escaped(text) .. "</code>"
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
  return l.content  -- a file or folder of the repository
end

-- Converts a public name in the text to a link to its reference.
local function name(c)
  local word = c.text:gsub("^attn::", ""):match("^([%a_][%w_]*)$") or
                   c.text:gsub("^attn::", ""):match("^([%a_][%w_]*)[%(<].*[%)>]$")
  if page:find("^bench/") and not c.text:find("%(") then return nil end  -- a program
  if word and names[word] then return pandoc.Link({c}, "reference/" .. names[word], "", {class = "name"}), false end
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
    Table = function(t) return pandoc.Div({t}, {class = "scroll"}) end,
  })
  doc.blocks = blocks.content
  return doc
end
