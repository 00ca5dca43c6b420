// Steps through the samples and the attention maps that the page holds as JSON.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const byId = (id) => document.getElementById(id);
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

  /// Returns a label with visible symbols for characters that cannot be seen alone.
  const visible = (label) => {
    if (/^ +$/u.test(label)) return '\u2423'.repeat(label.length);
    if (label === '\n') return '\u21b5';
    return label.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
                         (c) => 'U+' + c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0'));
  };

  const showSamples = () => {
    const slider = byId('sample');
    slider.max = data.samples.length - 1;
    slider.value = slider.max;
    const show = () => {
      const sample = data.samples[Number(slider.value)];
      byId('sample-step').textContent = sample.step;
      byId('sample-text').textContent = sample.text;
      slider.setAttribute('aria-valuetext', 'step ' + sample.step);
    };
    slider.addEventListener('input', show);
    show();
  };

  const COLOR = [38, 120, 200];
  /// Weights are thousandths. The square root keeps small ones visible.
  const shade = (weight) => Math.sqrt(weight / 1000);

  const state = {map: 0, layer: 0, head: 0, row: 0, column: 0};
  const map = () => data.maps[state.map];
  const weights = () => map().layers[state.layer][state.head];
  const weight = (row, column) => weights()[row * map().columns.length + column];

  const element = (name, attributes, text) => {
    const e = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    if (text !== undefined) e.textContent = text;
    return e;
  };

  const FONT = 13;
  /// Approximate width of a label: Chinese characters and similar ones are square.
  const widthOf = (label) => [...label].reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e7f ? 1 : 0.62), 0) * FONT;
  const widest = (labels) => Math.max(FONT, ...labels.map((label) => widthOf(visible(label))));
  let layout = null;

  const drawMap = () => {
    const svg = byId('map'), {rows, columns} = map();
    const left = widest(rows) + 10;
    const room = svg.parentElement.clientWidth - left - 4;
    const cell = Math.floor(clamp(room / columns.length, 13, 30));
    const upright = widest(columns) > cell;
    const top = (upright ? widest(columns) : FONT) + 10;
    layout = {left, top, cell};
    const width = left + columns.length * cell + 4, height = top + rows.length * cell + 4;
    svg.setAttribute('width', width);
    svg.setAttribute('height', height);
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(element('rect', {class: 'field', x: left, y: top, width: columns.length * cell,
                                         height: rows.length * cell}));
    columns.forEach((label, i) => {
      const x = left + (i + 0.5) * cell, y = top - 6;
      svg.append(upright ? element('text', {x: x + 4, y, 'font-size': FONT, transform: `rotate(-90 ${x + 4} ${y})`},
                                   visible(label))
                         : element('text', {x, y, 'font-size': FONT, 'text-anchor': 'middle'}, visible(label)));
    });
    rows.forEach((label, i) => svg.append(element(
        'text', {x: left - 6, y: top + (i + 0.5) * cell + 4.5, 'font-size': FONT, 'text-anchor': 'end'},
        visible(label))));
    const fill = `rgb(${COLOR.join(' ')})`;
    for (let r = 0; r < rows.length; ++r)
      for (let c = 0; c < columns.length; ++c)
        if (weight(r, c) > 0)
          svg.append(element('rect', {class: 'cell', x: left + c * cell, y: top + r * cell, width: cell - 1,
                                      height: cell - 1, fill, 'fill-opacity': shade(weight(r, c)).toFixed(3)}));
    svg.append(element('rect', {class: 'cursor', width: cell, height: cell}));
    moveCursor(state.row, state.column);
  };

  const moveCursor = (row, column) => {
    const {rows, columns} = map();
    state.row = clamp(row, 0, rows.length - 1);
    state.column = clamp(column, 0, columns.length - 1);
    const cursor = byId('map').querySelector('.cursor');
    cursor.setAttribute('x', layout.left + state.column * layout.cell - 0.5);
    cursor.setAttribute('y', layout.top + state.row * layout.cell - 0.5);
    const place = (labels, i) => `\u201c${visible(labels[i])}\u201d (${i + 1})`;
    byId('readout').textContent =
        `Layer ${state.layer + 1}, head ${state.head + 1}: ${place(rows, state.row)} attends to ` +
        `${place(columns, state.column)} with weight ${(weight(state.row, state.column) / 1000).toFixed(3)}.`;
  };

  const choose = (layer, head) => {
    state.layer = clamp(layer, 0, map().layers.length - 1);
    state.head = clamp(head, 0, map().layers[state.layer].length - 1);
    for (const button of byId('heads').children)
      button.setAttribute('aria-pressed',
                          Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head);
    drawMap();
  };

  /// Draws a small picture for each head: a pixel per weight.
  const drawHeads = () => {
    const {rows, columns, layers} = map();
    const most = Math.max(...layers.map((heads) => heads.length));
    byId('heads').style.gridTemplateColumns = `repeat(${most}, auto)`;
    byId('heads').replaceChildren();
    layers.forEach((heads, layer) => heads.forEach((numbers, head) => {
      const canvas = document.createElement('canvas');
      canvas.width = columns.length;
      canvas.height = rows.length;
      const context = canvas.getContext('2d'), image = context.createImageData(columns.length, rows.length);
      numbers.forEach((w, i) => image.data.set([...COLOR, Math.round(255 * shade(w))], 4 * i));
      context.putImageData(image, 0, 0);
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'head';
      button.dataset.layer = layer;
      button.dataset.head = head;
      button.style.gridColumn = head + 1;
      button.setAttribute('aria-label', `layer ${layer + 1}, head ${head + 1}`);
      button.append(canvas, `${layer + 1}.${head + 1}`);
      button.addEventListener('click', () => choose(layer, head));
      byId('heads').append(button);
    }));
  };

  const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  const onArrows = (target, move) => target.addEventListener('keydown', (event) => {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    move(...step);
  });

  const chooseMap = (index) => {
    state.map = index;
    state.row = map().rows.length - 1;
    drawHeads();
    state.layer = clamp(state.layer, 0, map().layers.length - 1);
    state.head = clamp(state.head, 0, map().layers[state.layer].length - 1);
    const last = map().columns.map((_, column) => weight(state.row, column));
    state.column = last.indexOf(Math.max(...last));
    choose(state.layer, state.head);
  };

  const showMaps = () => {
    data.maps.forEach((m, i) => byId('map-choice').append(new Option(m.title, i)));
    byId('map-choice').addEventListener('change', (event) => chooseMap(Number(event.target.value)));
    onArrows(byId('heads'), (layers, heads) => {
      choose(state.layer + layers, state.head + heads);
      byId('heads').querySelector('[aria-pressed=true]').focus();
    });
    const svg = byId('map');
    onArrows(svg, (rows, columns) => moveCursor(state.row + rows, state.column + columns));
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
      const column = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
      if (row >= 0 && row < map().rows.length && column >= 0 && column < map().columns.length) moveCursor(row, column);
    });
    addEventListener('resize', drawMap);
    chooseMap(0);
  };

  if (data.samples.length > 0) showSamples();
  if (data.maps.length > 0) showMaps();
})();
