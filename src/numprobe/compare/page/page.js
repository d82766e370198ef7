// The table of records.
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
