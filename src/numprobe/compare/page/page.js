// The table of records.
const table = one('table[data-records]');
if (table) {
  const rows = data.rows, text = rows.texts;
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
      cell(named(n), { class: 'rec' }), cell(both('phase.' + text[rows.phase[n]])), cell(slot(text[rows.path[n]])), cell(verdictBadge(text[rows.verdict[n]])),
      cell(why(n)), figure(rows.error[n]), figure(rows.expected[n]), figure(rows.ratio[n]), ...(rows.custom ? rows.custom[n].map(figure) : []));
    row.verdict = text[rows.verdict[n]];
    row.phase = text[rows.phase[n]];
    return row;
  });
  keptTable(table, drawn, [['verdict', 'verdict.row.', 'head.verdict'], ['phase', 'phase.', 'page.head.phase']]);
}
