// A table of records that the script draws: its cells, and buttons that keep only the rows of one verdict or phase.
const cell = (content, attributes = {}) => element('td', attributes, content);
const figure = shown => cell(shown || '\u2014', { class: 'n', 'data-v': shown === 'inf' ? 'Infinity' : shown.replace(/[,\s%]/g, '') });
function verdictBadge(verdict) {
  const symbols = { pass: '\u2713', error: '\u2717', warning: '!', incomparable: '?' };
  const kinds = { pass: 'pass', error: 'error', warning: 'warning', incomparable: 'undecided' };
  return element('span', { class: 'badge ' + (kinds[verdict] ?? 'missing') },
    element('span', { 'aria-hidden': 'true' }, symbols[verdict] ?? '\u00d7'), ' ', both(data.verdict + verdict));
}
// `choices`: property of the drawn rows, prefix of the key of its words, key of its name.
function keptTable(table, drawn, choices) {
  const kept = {}, keys = one('#record-keys');
  const redraw = liveTable(table, drawn, row => Object.keys(kept).every(what => !kept[what] || row[what] === kept[what]));
  for (const [what, prefix, head] of choices) {
    const values = [...new Set(drawn.map(row => row[what]))];
    if (values.length < 2) continue;
    keys.append(element('span', {}, both(head)));
    for (const value of values) {
      const count = element('span', { class: 'dim' }, drawn.filter(row => row[what] === value).length.toLocaleString('en-US'));
      const button = element('button', { type: 'button', class: 'key', 'aria-pressed': 'false', 'data-keep': value }, both(prefix + value), ' ', count);
      button.onclick = () => {
        kept[what] = kept[what] === value ? '' : value;
        for (const other of all('button', keys)) if (other.what === what) other.setAttribute('aria-pressed', other.dataset.keep === kept[what]);
        redraw();
      };
      button.what = what;
      keys.append(button);
    }
  }
}
