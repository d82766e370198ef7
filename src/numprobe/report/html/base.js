// Language, theme, copy buttons and tables. What these add is not drawn by the writer: a page without script has no dead control.
const root = document.documentElement, query = new URLSearchParams(location.search);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector, inside = document) => inside.querySelector(selector);
const data = JSON.parse(one('#data').textContent);
const changed = [];

// Texts: data.words has [en, zh] for each key. Numbers get comma groups; names of ranks are passed as strings.
function worded(language, key, values) {
  return data.words[key][language].replace(/\{(\w+)(?::\w+)?\}/g, (_, name) =>
    typeof values[name] === 'number' ? values[name].toLocaleString('en-US') : values[name]);
}
const say = (key, values = {}) => worded(root.dataset.lang === 'zh' ? 1 : 0, key, values);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
// A text in both languages, of which the style shows one.
function both(key, values = {}) {
  const [en, zh] = [0, 1].map(language => worded(language, key, values));
  const fragment = document.createDocumentFragment();
  if (en === zh) fragment.append(en);
  else fragment.append(element('span', { lang: 'en' }, en), element('span', { lang: 'zh-CN' }, zh));
  return fragment;
}
// A name that may wrap after dots; textContent stays the exact name.
function opName(name) {
  const code = element('code', { class: 'op' });
  name.split(/(?<=\.)/).forEach((part, n) => code.append(...(n ? [element('wbr')] : []), part));
  return code;
}
function announce(text) { one('#live').textContent = text; }

function choose(what, value) {
  root.dataset[what] = value;
  if (what === 'lang') root.lang = value === 'zh' ? 'zh-CN' : 'en';
  for (const button of all(`[data-${what}-is]`)) button.setAttribute('aria-pressed', button.getAttribute(`data-${what}-is`) === value);
  for (const tell of changed) tell();
}
for (const [what, values] of [['lang', ['en', 'zh']], ['theme', ['auto', 'light', 'dark']]]) {
  for (const button of all(`[data-${what}-is]`)) button.onclick = () => choose(what, button.getAttribute(`data-${what}-is`));
  choose(what, values.includes(query.get(what)) ? query.get(what) : root.dataset[what]);
}
for (const group of all('.seg')) group.hidden = false;

for (const box of all('.cmd')) {
  const button = element('button', { type: 'button', class: 'btn' }, both('page.copy'));
  button.onclick = async () => {
    const code = one('code', box);
    try { await navigator.clipboard.writeText(code.textContent); announce(say('page.copied')); button.replaceChildren(both('page.copied')); }
    catch { getSelection().selectAllChildren(code); }
  };
  box.append(button);
}

// A table whose rows can be sorted and filtered, and are paged from 200 on. `keep` is a further filter, the answer draws anew.
function liveTable(table, rows, keep = () => true) {
  const body = table.tBodies[0], page = rows.length > 200 ? 50 : rows.length;
  let shown = rows, start = 0;
  const count = element('span', { 'aria-live': 'polite' }), where = element('span');
  const back = element('button', { type: 'button', class: 'btn' }, both('page.previous'));
  const on = element('button', { type: 'button', class: 'btn' }, both('page.next'));
  const filter = element('input', { type: 'search', size: 18 });
  const draw = () => {
    body.replaceChildren(...shown.slice(start, start + page));
    count.replaceChildren(both('page.shown', { shown: shown.length, all: rows.length }));
    where.replaceChildren(both('page.pages', { first: shown.length ? start + 1 : 0, last: Math.min(start + page, shown.length), all: shown.length }));
    back.disabled = start === 0;
    on.disabled = start + page >= shown.length;
  };
  filter.oninput = () => {
    const wanted = filter.value.trim().toLowerCase();
    shown = rows.filter(row => keep(row) && row.textContent.toLowerCase().includes(wanted));
    start = 0;
    draw();
  };
  back.onclick = () => { start -= page; draw(); };
  on.onclick = () => { start += page; draw(); };
  if (rows.length > 5) {
    const tools = element('div', { class: 'tools' }, element('label', {}, both('page.filter'), ' ', filter), count);
    if (rows.length > page) tools.append(back, on, where);
    table.closest('.scroll').before(tools);
    all('thead th', table).forEach((head, column) => {
      if (head.hasAttribute('data-plain')) return;
      const button = element('button', { type: 'button' }, ...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const first = head.classList.contains('n') ? 'descending' : 'ascending', other = { ascending: 'descending', descending: 'ascending' };
        const order = other[head.getAttribute('aria-sort')] ?? first, sign = order === 'ascending' ? 1 : -1;
        all('th', table).forEach(cell => cell.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', order);
        const value = row => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
        const compare = (a, b) => (isNaN(a - b) || a === '' || b === '' ? a.localeCompare(b, 'en', { numeric: true }) : a - b);
        rows.sort((a, b) => sign * compare(value(a), value(b)));
        filter.oninput();
      };
    });
  }
  draw();
  return filter.oninput;
}
for (const table of all('table[data-live]')) liveTable(table, [...table.tBodies[0].rows]);
