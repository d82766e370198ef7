// The mapping, where it is too long to stand in the page itself.
const table = one('table[data-records]'), rows = data.rows;
if (table) {
  const names = list => {
    const fragment = document.createDocumentFragment();
    fragment.append(...(list.length ? list.map(opName) : ['\u2014']));
    return fragment;
  };
  const drawn = rows ? rows.place.map((place, n) => {
    const row = element('tr', {}, cell(opName(place)), cell(names(rows.train[n]), { class: 'rec' }), cell(names(rows.rollout[n]), { class: 'rec' }),
      cell(verdictBadge(rows.verdict[n])), figure(rows.error[n]), figure(rows.ratio[n]));
    row.verdict = rows.verdict[n];
    return row;
  }) : [...table.tBodies[0].rows];
  for (const row of drawn) row.verdict ??= row.dataset.verdict;
  keptTable(table, drawn, [['verdict', 'verdict.row.', 'head.verdict']]);
}
