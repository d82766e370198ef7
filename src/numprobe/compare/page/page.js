// The heat maps with their phases, and the table of records.
root.classList.add('js');
const maps = all('.map'), readout = one('#readout'), switcher = one('#phases');

// What a cell of a map is: its place, verdict, ratio and finding.
function described(map, cells, n) {
  const known = data.maps[map.dataset.phase], across = known.layers.length + 1, classes = cells[n].classList;
  const names = { p: 'pass', w: 'warning', e: 'error', i: 'incomparable', u: 'unmatched' };
  const letter = [...classes].find(name => names[name]);
  const values = language => ({
    layer: String(known.layers[n % across - 1]), part: known.parts[Math.floor(n / across)],
    verdict: letter ? worded(language, 'verdict.row.' + names[letter], {}) : worded(language, 'page.cell.none', {}),
  });
  return language => [
    worded(language, n % across ? 'page.cell' : 'page.cell.outside', values(language)),
    ...(classes.contains('h') ? [worded(language, 'status.propagated', {})] : []),
    ...(known.ratio[n] ? [worded(language, 'page.cell.ratio', { ratio: known.ratio[n] })] : []),
    ...(known.marks[n] ? [worded(language, 'page.cell.finding', { number: String(known.marks[n]) })] : []),
  ].join(' \u00b7 ');
}
const now = () => (root.dataset.lang === 'zh' ? 1 : 0);

for (const map of maps) {
  const grid = one('.heat', map), cells = all('b', grid), across = data.maps[map.dataset.phase].layers.length + 1;
  let current = Math.max(cells.findIndex(cell => cell.classList.contains('first')), 0);
  const found = cells.some(cell => cell.classList.contains('first'));
  const tell = (n, chosen = true) => {
    readout.textContent = chosen || found ? described(map, cells, n)(now()) : '';
    cells.forEach((cell, other) => cell.classList.toggle('cur', chosen && other === n));
  };
  const label = () => {
    cells.forEach((cell, n) => cell.setAttribute('aria-label', described(map, cells, n)(now())));
    if (map.hasAttribute('data-shown')) tell(current, false);
  };
  // Where the map is wider than its box: bring the first finding into view.
  const reveal = () => { one('.heatbox', map).scrollLeft = cells[current].offsetLeft - one('.heatbox', map).clientWidth / 2; };
  grid.setAttribute('role', 'grid');
  cells.forEach((cell, n) => {
    cell.setAttribute('role', 'gridcell');
    cell.tabIndex = n === current ? 0 : -1;
    cell.onmouseenter = () => tell(n);
    cell.onclick = cell.onfocus = () => {
      cells[current].tabIndex = -1;
      current = n;
      cell.tabIndex = 0;
      tell(n);
    };
  });
  grid.onmouseleave = () => tell(current, grid.contains(document.activeElement));
  grid.onkeydown = event => {
    const row = current - current % across;
    const targets = { ArrowLeft: Math.max(current - 1, row), ArrowRight: Math.min(current + 1, row + across - 1), ArrowUp: current - across, ArrowDown: current + across, Home: row, End: row + across - 1 };
    if (!(event.key in targets)) return;
    event.preventDefault();
    cells[targets[event.key]]?.focus();
  };
  if (maps.length > 1) {
    const button = element('button', { type: 'button', 'aria-pressed': map.hasAttribute('data-shown') }, both('phase.' + map.dataset.phase));
    button.onclick = () => {
      for (const other of maps) other.toggleAttribute('data-shown', other === map);
      for (const other of all('button', switcher)) other.setAttribute('aria-pressed', other === button);
      tell(current, false);
      reveal();
    };
    switcher.append(button);
    switcher.hidden = false;
  }
  changed.push(label);
  label();
  reveal();
}

const table = one('table[data-records]');
if (table) {
  const rows = data.rows, text = rows.texts, symbols = { error: '\u2717', warning: '!', incomparable: '?' };
  const kinds = { error: 'error', warning: 'warning', incomparable: 'undecided' };
  const cell = (content, attributes = {}) => element('td', attributes, content);
  const badge = verdict => element('span', { class: 'badge ' + (kinds[verdict] ?? 'missing') },
    element('span', { 'aria-hidden': 'true' }, symbols[verdict] ?? '\u00d7'), ' ', both('verdict.row.' + verdict));
  const figure = shown => cell(shown || '\u2014', { class: 'n', 'data-v': shown === 'inf' ? 'Infinity' : shown.replace(/[,\s%]/g, '') });
  const slot = path => (path.length > 24 ? opName(path) : element('code', { class: 'nb' }, path));
  const why = n => {
    const fragment = document.createDocumentFragment(), status = text[rows.status[n]], reason = text[rows.reason[n]];
    if (status) fragment.append(both('status.' + status));
    if (status && reason) fragment.append(' \u00b7 ');
    if (reason) fragment.append(both('reason.' + reason));
    return fragment;
  };
  const named = n => {
    const fragment = document.createDocumentFragment();
    fragment.append(opName(text[rows.op[n]]));
    if (rows.golden[n]) fragment.append(element('small', {}, both('page.golden_op', { op: text[rows.golden[n]] })));
    return fragment;
  };
  const drawn = rows.op.map((_, n) => {
    const row = element('tr', {}, cell(String(rows.index[n]), { class: 'n', 'data-v': n }),
      ...(rows.step ? [cell(String(rows.step[n] ?? '\u2014'))] : []), ...(rows.rank ? [cell(String(rows.rank[n] ?? '\u2014'))] : []),
      cell(named(n), { class: 'rec' }), cell(both('phase.' + text[rows.phase[n]])), cell(slot(text[rows.path[n]])), cell(badge(text[rows.verdict[n]])),
      cell(why(n)), figure(rows.error[n]), figure(rows.expected[n]), figure(rows.ratio[n]));
    row.verdict = text[rows.verdict[n]];
    row.phase = text[rows.phase[n]];
    return row;
  });
  // Buttons that keep only the rows of one verdict, or of one phase.
  const kept = { verdict: '', phase: '' };
  const redraw = liveTable(table, drawn, row => Object.keys(kept).every(what => !kept[what] || row[what] === kept[what]));
  for (const [what, prefix, head] of [['verdict', 'verdict.row.', 'head.verdict'], ['phase', 'phase.', 'page.head.phase']]) {
    const values = [...new Set(drawn.map(row => row[what]))];
    if (values.length < 2) continue;
    one('#record-keys').append(element('span', {}, both(head)));
    for (const value of values) {
      const count = element('span', { class: 'dim' }, drawn.filter(row => row[what] === value).length.toLocaleString('en-US'));
      const button = element('button', { type: 'button', class: 'key', 'aria-pressed': 'false', 'data-keep': value }, both(prefix + value), ' ', count);
      button.onclick = () => {
        kept[what] = kept[what] === value ? '' : value;
        for (const other of all('button', one('#record-keys'))) if (other.what === what) other.setAttribute('aria-pressed', other.dataset.keep === kept[what]);
        redraw();
      };
      button.what = what;
      one('#record-keys').append(button);
    }
  }
}
