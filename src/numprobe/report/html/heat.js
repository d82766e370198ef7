// The heat maps and their phases. data.maps: see heat.py; data.verdict: what goes before a verdict in the key of its text.
root.classList.add('js');
const maps = all('.map'), readout = one('#readout'), switcher = one('#phases');

// What a cell of a map is: its place, verdict, ratio and finding.
function described(map, cells, n) {
  const known = data.maps[map.dataset.phase], across = known.layers.length + 1, classes = cells[n].classList;
  const names = { p: 'pass', w: 'warning', e: 'error', i: 'incomparable', u: 'unmatched' };
  const letter = [...classes].find(name => names[name]);
  const values = language => ({
    layer: String(known.layers[n % across - 1]), part: known.parts[Math.floor(n / across)],
    verdict: letter ? worded(language, data.verdict + names[letter], {}) : worded(language, 'page.cell.none', {}),
  });
  return language => [
    worded(language, n % across ? 'page.cell' : 'page.cell.outside', values(language)),
    ...(classes.contains('h') ? [worded(language, 'page.cell.handed_on', {})] : []),
    ...(known.ratio[n] ? [worded(language, 'page.cell.ratio', { ratio: known.ratio[n] })] : []),
    ...(known.marks[n] < 0 ? [worded(language, 'page.cell.anchor', {})] : []),
    ...(known.marks[n] > 0 ? [worded(language, 'page.cell.finding', { number: String(known.marks[n]) })] : []),
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
