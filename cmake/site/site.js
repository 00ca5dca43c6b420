// The search and the menu above each page. The search reads search.js, the list of all sections, at its first use.
(() => {
  const root = document.currentScript.src.replace(/[^/]*$/, "");
  const menu = document.querySelector(".menu"), search = document.querySelector(".search");
  const field = search.querySelector("input"), list = search.querySelector("ul");
  search.hidden = false;

  let loading;
  const load = () => loading ??= new Promise(resolve => {
    const script = document.createElement("script");
    script.src = root + "search.js";
    script.onload = resolve;
    document.head.append(script);
  });

  // Sections must contain all words; a word in the heading counts most, above all if it begins it.
  function score([page, heading, where, text], words) {
    const title = heading.toLowerCase(), body = text.toLowerCase();
    let sum = title === words.join(" ") ? 200 : 0;
    for (const word of words) {
      const at = title.indexOf(word);
      if (at >= 0) sum += at === 0 || !/\w/.test(title[at - 1]) ? 60 : 20;
      const count = body.split(word).length - 1;
      if (at < 0 && count === 0 && !page.toLowerCase().includes(word)) return 0;
      sum += Math.min(count, 8) + (page.toLowerCase().includes(word) ? 10 : 0);
    }
    return sum - title.length / 100;
  }

  // Returns the words around the first match, which are marked.
  function excerpt(text, words) {
    const lower = text.toLowerCase(), line = document.createElement("span");
    const found = words.map(word => lower.indexOf(word)).filter(at => at >= 0);
    if (!found.length) return line;
    const begin = Math.max(0, text.lastIndexOf(" ", Math.min(...found) - 50));
    const part = text.slice(begin, begin + 180);
    const any = new RegExp("(" + words.map(word => word.replace(/[^\w]/g, "\\$&")).join("|") + ")", "i");
    part.split(any).forEach((piece, i) => {
      const node = i % 2 ? document.createElement("mark") : document.createTextNode(piece);
      if (i % 2) node.textContent = piece;
      line.append(node);
    });
    return line;
  }

  async function show() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    await load();
    const best = sections.map(section => [words.length ? score(section, words) : 0, section]).filter(([s]) => s > 0);
    best.sort((a, b) => b[0] - a[0]);
    list.replaceChildren(...best.slice(0, 12).map(([, [page, heading, where, text]]) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = root + where;
      link.textContent = heading;
      item.append(link, page === heading ? "" : " · " + page, excerpt(text, words));
      return item;
    }));
    if (words.length && !best.length) {
      const item = document.createElement("li");
      item.textContent = "No section has all of these words.";
      list.append(item);
    }
  }

  field.addEventListener("focus", load);
  field.addEventListener("input", show);
  search.addEventListener("keydown", event => {
    const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    if (event.key === "Enter" && document.activeElement === field) links[0]?.click();
    if (event.key === "ArrowDown") links[Math.min(at + 1, links.length - 1)]?.focus();
    if (event.key === "ArrowUp") (links[at - 1] ?? field).focus();
    if (event.key === "Escape") list.replaceChildren();
    if (/^Arrow(Up|Down)$/.test(event.key)) event.preventDefault();
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape") menu.open = false;
    if (event.key !== "/" || document.activeElement.matches("input, textarea")) return;
    event.preventDefault();
    field.focus();
  });
  document.addEventListener("click", event => {
    if (!menu.contains(event.target)) menu.open = false;
    if (!search.contains(event.target) || event.target.closest("a")) list.replaceChildren();
  });
})();
