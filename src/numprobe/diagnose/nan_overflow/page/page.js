// The rank grid, its panel, the spread over the grid, and the table of all ranks.
// data.ranks holds one entry a rank in every list; data.cells holds for each cell the indices of its ranks.
const unpacked = list => (list.runs ? list.runs.flatMap(([value, times]) => Array(times).fill(value)) :
  list.cycle ? Array.from({ length: list.of }, (_, n) => list.cycle[n % list.cycle.length]) : list);
const ranks = data.ranks;
for (const list of ['wave', 'op', 'index', 'via', 'from', 'records']) ranks[list] = unpacked(ranks[list]);
if (typeof ranks.name === 'number') ranks.name = Array.from({ length: ranks.name }, (_, n) => String(n));
// Pairs of how many characters to take from the text before, and what follows them.
const via = [];
for (let n = 0, before = ''; n < data.via.length; n += 2) {
  before = [...before].slice(0, data.via[n]).join('') + data.via[n + 1];
  via.push(before);
}
for (const coordinate of data.coordinates) coordinate.values = unpacked(coordinate.values);
ranks.partial = ranks.name.map((_, n) => ranks.status[n] === 'partial');
ranks.number = ranks.name.map(text => (/^\d+$/.test(text) ? +text : null));
const cells = all('#grid .cells b'), blocksOfCells = data.blocks;
const worst = ['source', 'missing', 'partial', 'relay', 'victim', 'clean'];
const letters = { s: 'source', r: 'relay', v: 'victim', c: 'clean', p: 'partial', m: 'missing' };
const lastWave = Math.max(all('[data-wave]').length - 1, 0);
let wave = lastWave, filtered = '', current = Math.max(data.start, 0);

const roleOf = index => letters[ranks.role[index]];
const name = index => ranks.name[index];
// The role of a rank as it was after the chosen line of the spread.
const roleAt = index => {
  const role = roleOf(index);
  if (role === 'missing' || ranks.wave[index] <= wave) return role;
  return ranks.partial[index] ? 'partial' : 'clean';
};
const members = cell => data.cells ? data.cells[cell] : [cell];
const cellRole = cell => members(cell).map(roleAt).sort((a, b) => worst.indexOf(a) - worst.indexOf(b))[0];
const cellOf = index => data.cells ? data.cells.findIndex(list => list.includes(index)) : index;
function ranges(list) {
  const parts = [], numbers = [...list].sort((a, b) => a - b);
  for (let at = 0; at < numbers.length;) {
    let end = at;
    while (numbers[end + 1] === numbers[end] + 1) end++;
    if (end - at < 2) for (; at <= end; at++) parts.push(numbers[at]);
    else parts.push(numbers[at] + '-' + numbers[end]);
    at = end + 1;
  }
  return parts.join(', ');
}
const symbols = { source: '\u25c6', relay: '\u25aa', victim: '\u25ab', clean: '\u00b7', partial: '\u25d4', missing: '\u00d7' };
const badge = role => element('span', { class: 'badge ' + role }, element('span', { 'aria-hidden': 'true' }, symbols[role]), ' ', both('role.' + role));
const place = index => data.coordinates.filter(c => c.values[index] != null).map(c => c.name + ' ' + c.values[index]).join(' ');
const firstDirt = index => {
  const at = ranks.op[index];
  if (at < 0) return '';
  const text = document.createDocumentFragment();
  text.append(opName(data.ops[at]), ranks.index[index] >= 0 ? ' #' + ranks.index[index] : '');
  return text;
};

function describe(cell) {
  const panel = one('#detail'), list = members(cell);
  panel.replaceChildren();
  const line = (key, value) => { if (value !== '' && value != null) rows.append(element('dt', {}, say(key)), element('dd', {}, value)); };
  const rows = element('dl'), index = list[0];
  if (list.length === 1) {
    panel.append(element('h3', {}, say('ranks.rank', { rank: name(index) }), ' ', badge(roleAt(index))), element('div', { class: 'dim' }, place(index)), element('div', {}, say('role.' + roleAt(index) + '.text')));
    if (ranks.partial[index] || roleOf(index) === 'missing') line('head.read', say('status.' + ranks.status[index]));
    line('head.first_dirty', firstDirt(index));
    line('head.via', via[ranks.via[index]] ?? '');
    line('head.from', data.from[ranks.from[index]]?.length ? ranges(data.from[ranks.from[index]]) : '');
    line('head.records', ranks.records[index] ? ranks.records[index].toLocaleString('en-US') : '');
  } else {
    panel.append(element('h3', {}, say('ranks.rank', { rank: name(index) + '-' + name(list[list.length - 1]) })));
    for (const role of worst) {
      const mine = list.filter(member => roleAt(member) === role);
      if (mine.length) rows.append(element('dt', {}, say('role.' + role)), element('dd', {}, mine.map(name).join(', ')));
    }
  }
  if (rows.children.length) panel.append(rows);
  const sources = new Set(list.length === 1 ? data.from[ranks.from[index]] ?? [] : []);
  cells.forEach((other, n) => {
    other.classList.toggle('sel', n === cell);
    other.classList.toggle('peer', sources.size > 0 && members(n).some(member => sources.has(ranks.number[member])));
  });
}

function draw() {
  const letterOf = role => Object.keys(letters).find(letter => letters[letter] === role);
  cells.forEach((cell, n) => {
    const role = cellRole(n), hatched = members(n).length === 1 && ranks.partial[n] && role !== 'partial';
    const dimmed = filtered && !members(n).some(member => roleAt(member) === filtered || (filtered === 'partial' && ranks.partial[member]));
    cell.className = letterOf(role) + (hatched ? ' h' : '') + (dimmed ? ' off' : '');
    const list = members(n), spoken = list.length === 1 ? name(list[0]) : name(list[0]) + '-' + name(list[list.length - 1]);
    cell.setAttribute('aria-label', `${spoken} ${say('role.' + role)}`);
  });
  for (const key of all('[data-role]')) {
    const role = key.dataset.role;
    one('.dim', key).textContent = ranks.name.filter((_, n) => (role === 'partial' ? ranks.partial[n] : roleAt(n) === role)).length.toLocaleString('en-US');
  }
  const shown = one('#asof');
  if (shown) shown.textContent = wave >= lastWave ? say('ranks.as_of') : say('ranks.as_of_line', { line: wave + 1 });
  for (const line of all('[data-wave]')) line.setAttribute('aria-pressed', +line.dataset.wave === wave);
  if (cells.length) describe(current);
}

function move(cell) {
  cells[current].tabIndex = -1;
  current = cell;
  cells[cell].tabIndex = 0;
  describe(cell);
}

root.classList.add('js');
const grid = one('#grid');
if (grid) {
  grid.setAttribute('role', 'grid');
  cells.forEach((cell, n) => {
    cell.setAttribute('role', 'gridcell');
    cell.tabIndex = n === current ? 0 : -1;
    cell.onmouseenter = () => describe(n);
    cell.onclick = cell.onfocus = () => move(n);
  });
  grid.onmouseleave = () => describe(current);
  grid.onkeydown = event => {
    const across = getComputedStyle(cells[current].parentNode).gridTemplateColumns.split(' ').length;
    const block = blocksOfCells.findIndex(([first, last]) => current >= first && current <= last);
    const jump = step => (blocksOfCells[block + step] ? Math.min(blocksOfCells[block + step][0] + current - blocksOfCells[block][0], blocksOfCells[block + step][1]) : current);
    const targets = { ArrowLeft: current - 1, ArrowRight: current + 1, ArrowUp: current - across, ArrowDown: current + across, Home: 0, End: cells.length - 1, PageUp: jump(-1), PageDown: jump(1) };
    if (!(event.key in targets)) return;
    event.preventDefault();
    const target = targets[event.key];
    if (target >= 0 && target < cells.length) cells[target].focus();
  };
  for (const key of all('[data-role]')) key.onclick = () => {
    filtered = filtered === key.dataset.role ? '' : key.dataset.role;
    for (const other of all('[data-role]')) other.setAttribute('aria-pressed', other.dataset.role === filtered);
    draw();
  };
  const go = element('input', { inputmode: 'numeric', size: 5, id: 'go' });
  go.onchange = () => {
    const found = ranks.name.indexOf(go.value.trim());
    if (found >= 0) cells[cellOf(found)].focus();
  };
  if (ranks.name.length > 32) one('.keys').append(element('label', {}, both('ranks.go'), ' ', go));
}
for (const line of all('[data-wave]')) line.onclick = () => { wave = +line.dataset.wave; draw(); };
if (/^\d+$/.test(query.get('wave') ?? '') && +query.get('wave') <= lastWave) wave = +query.get('wave');
const asked = ranks.name.indexOf(query.get('rank') ?? '');
if (asked >= 0) { current = cellOf(asked); cells.forEach((cell, n) => { cell.tabIndex = n === current ? 0 : -1; }); }
changed.push(draw);
draw();

const table = one('table[data-ranks]');
if (table) {
  const cell = (content, attributes = {}) => element('td', attributes, content);
  liveTable(table, ranks.name.map((_, n) => {
    const role = roleOf(n), from = data.from[ranks.from[n]] ?? [];
    return element('tr', role === 'source' ? { class: 'hot' } : {},
      cell(name(n), { 'data-v': ranks.number[n] ?? name(n) }), cell(badge(role)), cell(place(n), { class: 'nb' }), cell(firstDirt(n)),
      cell(via[ranks.via[n]] ?? ''), cell(ranges(from)), cell(ranks.records[n].toLocaleString('en-US'), { class: 'n', 'data-v': ranks.records[n] }));
  }));
  table.closest('.scroll').hidden = false;
}
