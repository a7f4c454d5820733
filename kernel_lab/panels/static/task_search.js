// A field that finds a task: what is typed is looked for in names, families, tags and descriptions, the names first.
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }
const times = x => x == null ? '–' : `${x >= 10 ? x.toFixed(0) : x.toFixed(1)}×`

// How well a task fits words, the best first; null where one of them is nowhere.
function rank(row, words) {
  let sum = 0
  for (const w of words) {
    const name = row.name.toLowerCase(), at = name.startsWith(w) ? 0 : name.split('_').some(p => p.startsWith(w)) ? 1 : name.includes(w) ? 2
      : [row.family, ...row.tags, `level ${row.level}`].some(t => t.toLowerCase().includes(w)) ? 3 : row.doc.toLowerCase().includes(w) ? 4 : null
    if (at === null) return null
    sum += at
  }
  return sum
}

// The best of a person's runs of a task, run after run, as a line from 1× up; a dot where there is one.
function spark(gains) {
  const wide = 46, high = 16, box = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), draw = (tag, of) => { const n = document.createElementNS(box.namespaceURI, tag); for (const [k, v] of Object.entries(of)) n.setAttribute(k, v); box.append(n); return n }
  const top = Math.max(...gains, 1.01), x = i => gains.length > 1 ? 3 + i / (gains.length - 1) * (wide - 6) : wide - 3, y = g => high - 3 - (g - 1) / (top - 1) * (high - 6)
  for (const [k, v] of Object.entries({ viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: 'img' })) box.setAttribute(k, v)
  const said = `your runs: the best is ${times(gains.at(-1))} the first kernel after ${gains.length} run${gains.length === 1 ? '' : 's'}, simulated`
  box.setAttribute('aria-label', said); draw('title', {}).textContent = said
  draw('polyline', { points: gains.map((g, i) => `${x(i)},${y(g)}`).join(' ') })
  draw('circle', { cx: x(gains.length - 1), cy: y(gains.at(-1)), r: 2.2 })
  return box
}

function render({ model, el }) {
  const id = `kl-tasks-${Math.random().toString(36).slice(2)}`
  const root = node('div', 'kl-ts'), label = node('label', '', 'task'), input = node('input'), panel = node('div', 'kl-ts-panel'), head = node('div', 'kl-ts-head'), list = node('div', 'kl-ts-list')
  const sort = node('button', 'kl-ts-sort'), count = node('span', 'kl-quiet')
  Object.assign(input, { type: 'text', spellcheck: false, autocomplete: 'off', id: id + '-in' })
  label.htmlFor = id + '-in'
  for (const [k, v] of Object.entries({ role: 'combobox', 'aria-expanded': 'false', 'aria-controls': id, 'aria-autocomplete': 'list' })) input.setAttribute(k, v)
  list.id = id; list.setAttribute('role', 'listbox'); list.setAttribute('aria-label', 'Tasks'); sort.type = 'button'
  const columns = node('div', 'kl-ts-columns')
  columns.append(...['task', '', 'yours', 'best', 'room'].map(word => node('span', '', word))); columns.setAttribute('aria-hidden', 'true')
  columns.title = 'your runs · the best kernel that is kept, over the first · the first kernel over the bound; simulated'
  head.append(count, sort); panel.append(head, columns, list); root.append(label, input, panel); el.append(root)
  let open = false, found = [], at = 0, byRoom = false
  const current = () => model.get('value')
  const close = () => { open = false; root.classList.remove('kl-open'); input.setAttribute('aria-expanded', 'false'); input.removeAttribute('aria-activedescendant'); input.value = current() }
  const choose = row => { if (!row) return; model.set('value', row.name); model.save_changes(); close() }

  function point(n, seen = true) {
    at = Math.max(0, Math.min(n, found.length - 1))
    list.querySelectorAll('[role=option]').forEach((o, i) => { o.setAttribute('aria-selected', String(i === at)); if (i === at && seen) o.scrollIntoView({ block: 'nearest' }) })
    found.length ? input.setAttribute('aria-activedescendant', `${id}-${at}`) : input.removeAttribute('aria-activedescendant')
  }
  function fill(text) {
    const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean), rows = model.get('rows')
    const ranked = rows.map(row => [rank(row, words), row]).filter(([r]) => r !== null)
    ranked.sort(([r, a], [s, b]) => (words.length && !byRoom ? r - s : 0) || (byRoom ? (b.room ?? 0) - (a.room ?? 0) : a.level - b.level || a.order - b.order))
    found = ranked.map(([, row]) => row)
    count.textContent = `${found.length} of ${rows.length} tasks`
    sort.textContent = byRoom ? 'sorted by room to gain' : words.length ? 'sorted by fit' : 'sorted by level'
    let before = ''
    list.replaceChildren(...found.flatMap((row, i) => {
      const o = node('div', 'kl-ts-row'), group = `level ${row.level} · ${row.family}`, out = []
      o.id = `${id}-${i}`; o.setAttribute('role', 'option'); o.title = row.doc
      const numbers = node('span', 'kl-ts-room', row.room == null ? '' : times(row.room)), best = node('span', 'kl-ts-best', row.best == null ? '' : times(row.best))
      numbers.title = 'the first kernel over the bound: room to gain, simulated'; best.title = 'the best kernel that is kept over the first, simulated'
      const trend = node('span', 'kl-ts-trend'), gains = model.get('trends')[row.name]
      if (gains?.length) trend.append(spark(gains))
      o.append(node('span', 'kl-ts-name', row.name), node('span', 'kl-ts-doc', row.doc), trend, best, numbers)
      o.addEventListener('pointerdown', e => { e.preventDefault(); choose(row) })
      if (!byRoom && !words.length && group !== before) { const g = node('div', 'kl-ts-group', group); g.setAttribute('role', 'presentation'); out.push(g); before = group }
      return [...out, o]
    }))
    const named = found.findIndex(r => r.name === (words.length || byRoom ? words.join('_') : current()))    // a whole name is meant, however they are sorted
    point(Math.max(0, named))
  }
  function show() {
    if (open) return
    open = true; root.classList.add('kl-open'); input.setAttribute('aria-expanded', 'true'); input.select(); fill('')
  }
  input.addEventListener('focus', show)
  input.addEventListener('pointerdown', () => { if (document.activeElement === input) show() })
  input.addEventListener('input', () => { if (!open) show(); fill(input.value) })
  input.addEventListener('blur', e => { if (!root.contains(e.relatedTarget)) close() })
  input.addEventListener('keydown', e => {
    e.stopPropagation()
    const keys = { ArrowDown: () => open ? point(at + 1) : show(), ArrowUp: () => point(at - 1), PageDown: () => point(at + 10), PageUp: () => point(at - 10),
      Enter: () => open ? choose(found[at]) : show(), Escape: close }
    if (keys[e.key]) { keys[e.key](); e.preventDefault() }
  })
  sort.addEventListener('pointerdown', e => { e.preventDefault(); byRoom = !byRoom; fill(typed()) })
  sort.addEventListener('blur', e => { if (!root.contains(e.relatedTarget)) close() })
  const slash = e => {                                                // `/` finds a task from anywhere on the page of this lab
    const lab = root.closest('.kl-lab')
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || !lab?.contains(document.activeElement) || /INPUT|TEXTAREA|SELECT|CANVAS/.test(document.activeElement.tagName)) return
    e.preventDefault(); e.stopPropagation(); input.focus()
  }
  document.addEventListener('keydown', slash, true)
  const changed = () => { if (!open) input.value = current() }
  const typed = () => input.value === current() ? '' : input.value
  const renewed = () => { if (open) { const n = at; fill(typed()); point(n, false) } }
  model.on('change:value', changed); model.on('change:rows change:trends', renewed); changed()
  model.send({ ask: 'times' })                                        // of all tasks, which the page does not wait for
  return () => { document.removeEventListener('keydown', slash, true); model.off('change:value', changed); model.off('change:rows change:trends', renewed) }
}
export default { render }
