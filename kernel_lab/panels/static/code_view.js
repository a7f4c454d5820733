// A kernel's source beside what a compiler made of it, line by line: a line shows its instructions, an instruction its line. The texts of all stages come
// from Python at once; choosing a line or a stage asks nobody. `mount` itself needs no notebook. (See syntax.js for the colours.)
const ROW = 19, words = (n, one) => `${n.toLocaleString('en')} ${one}${n === 1 ? '' : 's'}`
let views = 0

// A list of rows that keys walk through: one row is chosen, `lit` rows are marked.
function lines(label, choose) {
  const box = node('div', 'kl-cx-list'), id = `kl-cx-${++views}`
  box.tabIndex = 0; box.setAttribute('role', 'listbox'); box.setAttribute('aria-label', label)
  let rows = [], at = -1
  const show = k => {
    const top = rows[k]?.offsetTop
    if (top === undefined) return
    if (top < box.scrollTop + ROW || top + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = Math.max(0, top - box.clientHeight / 3)
  }
  const point = (k, scroll = true) => {
    rows[at]?.setAttribute('aria-selected', 'false')
    at = k
    rows[k]?.setAttribute('aria-selected', 'true')
    if (rows[k]) { box.setAttribute('aria-activedescendant', rows[k].id); if (scroll) show(k) } else box.removeAttribute('aria-activedescendant')
  }
  const fill = made => {
    rows = made; at = -1
    rows.forEach((r, k) => { r.id = `${id}-${k}`; r.setAttribute('role', 'option'); r.setAttribute('aria-selected', 'false'); r.dataset.k = k })
    box.replaceChildren(...rows); box.removeAttribute('aria-activedescendant'); box.scrollTop = 0
  }
  const light = (some, cls) => { box.querySelectorAll('.' + cls).forEach(r => r.classList.remove(cls)); for (const k of some) rows[k]?.classList.add(cls) }
  const under = e => { const r = e.target.closest('[role=option]'); return r && box.contains(r) ? Number(r.dataset.k) : -1 }
  box.addEventListener('click', e => { const k = under(e); if (k >= 0) choose(k) })
  const page = () => Math.max(1, Math.floor(box.clientHeight / ROW) - 2)
  const walk = { ArrowDown: () => at + 1, ArrowUp: () => at - 1, Home: () => 0, End: () => rows.length - 1, PageDown: () => at + page(), PageUp: () => at - page() }
  const seen = k => { for (const way of [1, -1]) for (let j = k; rows[j]; j += way) if (!rows[j].hidden) return j; return -1 }
  box.addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return
    const to = walk[e.key]
    if (!to) return
    e.preventDefault(); e.stopPropagation()
    let k = Math.min(Math.max(to(), 0), rows.length - 1)
    if (rows[k]?.hidden) { const step = k < at ? -1 : 1; while (rows[k]?.hidden) k += step; if (!rows[k]) k = seen(at) }
    if (k >= 0) choose(k)
  })
  return { box, point, fill, light, show, under, get at() { return at }, get rows() { return rows } }
}

export function mount(el, { select = () => {} } = {}) {
  const root = node('div', 'kl-cx'), bar = node('div', 'kl-cx-bar'), title = node('span', 'kl-title'), quiet = node('span', 'kl-quiet')
  const tabs = node('div', 'kl-cx-tabs'), only = node('label', 'kl-cx-only'), tick = node('input'), both = node('div', 'kl-cx-both'), says = node('div', 'kl-cx-says'), note = node('div', 'kl-quiet kl-cx-note')
  tabs.setAttribute('role', 'tablist'); tabs.setAttribute('aria-label', 'Stage of the compiler')
  tick.type = 'checkbox'; only.append(tick, ' only the chosen line'); says.setAttribute('aria-live', 'polite')
  let d = { source: '', marks: {}, errors: {}, listings: [] }, stage = 0, line = 0
  const left = lines('Source: choose a line to see what became of it', k => pick(k + 1))
  const right = lines('What the compiler made', k => { const l = listing()?.rows[k][1] ?? 0; right.point(k); if (l) pick(l, k); else say(`${listing().title}, row ${k + 1}: of no line of the source`) })
  left.box.classList.add('kl-cx-source'); right.box.classList.add('kl-cx-made')
  bar.append(title, quiet); both.append(left.box, right.box)
  const over = node('div', 'kl-cx-over'); over.append(tabs, only)
  root.append(bar, over, both, says, note); el.append(root)
  const listing = () => d.listings[stage]
  const rowsOf = l => listing() ? listing().rows.flatMap(([, at], k) => at === l ? [k] : []) : []
  const say = text => { says.textContent = text }

  function sentence(l) {
    const mark = d.marks[l], wrong = d.errors[l], n = rowsOf(l).length, parts = []
    if (wrong) parts.push(wrong)
    parts.push(listing() ? (n ? `${words(n, 'row')} of ${listing().title}` : `nothing in ${listing().title}`) : 'nothing was compiled')
    if (mark?.tags.length) parts.push(mark.tags.map(([, t]) => t).join(', '))
    return `Line ${l}: ${parts.join('; ')}${(mark?.signs ?? []).map(s => `; ${s}`).join('')}`
  }
  // Choose a line of the source; `from`: the row of the listing that was chosen, none where it was the line.
  function pick(l, from) {
    line = l
    left.point(l - 1, true); left.light([], 'kl-cx-near')
    const of = rowsOf(l)
    right.light(of, 'kl-cx-lit')
    if (tick.checked) filter()
    if (from === undefined) { if (of.length) right.point(of[0]); else right.point(-1) }
    else right.show(from)
    say(sentence(l))
    root.dataset.line = l
    select(l)
  }
  function filter() { right.rows.forEach((r, k) => { r.hidden = tick.checked && line > 0 && listing().rows[k][1] !== line }); if (right.at >= 0) right.show(right.at) }

  function drawSource() {
    const pre = node('div')
    paint(pre, d.source)
    const parts = [[]]                                                  // the coloured text, cut at the ends of lines
    for (const child of [...pre.childNodes]) child.textContent.split('\n').forEach((t, i) => {
      if (i) parts.push([])
      if (t) parts.at(-1).push(child.nodeType === 3 ? document.createTextNode(t) : node('span', child.className, t))
    })
    const n = d.source.split('\n').length - (d.source.endsWith('\n') ? 1 : 0)
    left.fill(Array.from({ length: Math.max(n, 1) }, (_, i) => {
      const l = i + 1, mark = d.marks[l], row = node('div', 'kl-cx-row'), heat = node('i', 'kl-cx-heat'), fill = node('i'), text = node('span', 'kl-cx-text')
      if (mark?.count) { fill.style.width = `${Math.max(6, 100 * mark.share)}%`; heat.title = words(mark.count, 'instruction') }
      heat.append(fill); text.append(...parts[i] ?? [])
      row.append(node('span', 'kl-cx-n', String(l)), heat, text)
      if (d.errors[l]) row.classList.add('kl-cx-bad')
      const tags = node('span', 'kl-cx-tags')
      for (const [kind, t] of mark?.tags ?? []) tags.append(node('span', `kl-cx-tag kl-cx-${kind}`, t))
      if (mark?.signs.length) { const s = node('span', 'kl-cx-tag kl-cx-sign', 'advice'); s.title = mark.signs.join('\n'); tags.append(s) }
      if (tags.childNodes.length) row.append(tags)
      return row
    }))
  }
  function drawListing() {
    const l = listing()
    right.box.setAttribute('aria-label', l ? `${l.title}: choose a row to see its line` : 'Nothing was compiled')
    right.fill((l?.rows ?? []).map(([text, at]) => {
      const row = node('div', 'kl-cx-row'), t = node('span', 'kl-cx-text', text)
      row.append(node('span', 'kl-cx-n', at ? String(at) : ''), t)
      if (!at) row.classList.add('kl-cx-none')
      if (/\b(LDL|STL)\b/.test(text) && l.stage === 'sass') row.classList.add('kl-cx-spill')
      if (/\b\w*G?MMA\b|wgmma|mma\.sync/.test(text) && /sass|ptx/.test(l.stage)) row.classList.add('kl-cx-fast')
      return row
    }))
    if (!l) right.box.append(node('div', 'kl-quiet kl-cx-empty', d.note || 'Nothing was compiled.'))
    note.textContent = [l?.says, l?.left ? `${words(l.left, 'more row')} are left out` : '', l ? d.note : ''].filter(Boolean).join(' · ')
    tabs.replaceChildren(...d.listings.map((x, k) => {
      const b = node('button', '', x.title); b.type = 'button'; b.title = x.says
      b.setAttribute('role', 'tab'); b.setAttribute('aria-selected', String(k === stage)); b.tabIndex = k === stage ? 0 : -1
      b.addEventListener('click', () => turn(k))
      return b
    }))
    root.dataset.stage = l?.stage ?? ''
    only.hidden = !l
    tabs.hidden = d.listings.length === 0
  }
  function turn(k) { stage = k; drawListing(); if (line) pick(line) }
  tabs.addEventListener('keydown', e => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[e.key], n = d.listings.length
    if (!way || !n) return
    e.preventDefault(); e.stopPropagation(); turn((stage + way + n) % n); tabs.children[stage].focus()
  })
  tick.addEventListener('change', () => { filter(); if (line) say(tick.checked ? `Only line ${line}` : sentence(line)) })

  for (const [from, to] of [[left, right], [right, left]]) {
    from.box.addEventListener('keydown', e => {
      if (e.ctrlKey || e.metaKey || e.altKey) return
      const marked = Object.entries(d.marks).filter(([, m]) => m.signs.length || m.tags.some(([kind]) => kind === 'bad')).map(([l]) => Number(l))
      const near = { n: 1, p: -1 }[e.key]
      if (e.key === (from === left ? 'ArrowRight' : 'ArrowLeft')) to.box.focus()
      else if (near && line) { const of = rowsOf(line), k = of.indexOf(right.at); if (of.length) right.point(of[(k + near + of.length) % of.length]) }
      else if (e.key === 'm' && marked.length) pick(marked.find(l => l > line) ?? marked[0])
      else if (e.key.length !== 1) return
      e.preventDefault(); e.stopPropagation()                                               // in JupyterLab M would make a cell of text, X cut one
    })
    from.box.addEventListener('mousemove', e => {
      const k = from.under(e), l = from === left ? k + 1 : listing()?.rows[k]?.[1]
      left.light(from === right && l ? [l - 1] : [], 'kl-cx-near')
      right.light(from === left && k >= 0 ? rowsOf(l) : [], 'kl-cx-near')
    })
    from.box.addEventListener('mouseleave', () => { left.light([], 'kl-cx-near'); right.light([], 'kl-cx-near') })
  }
  return {
    show(data, of = '') {
      const kept = d.listings[stage]?.stage, was = d.source === data.source ? line : 0
      d = data
      title.textContent = d.title ?? ''; quiet.textContent = [d.about, of].filter(Boolean).join(' · ')
      stage = Math.max(0, d.listings.findIndex(l => l.stage === (kept ?? 'sass')))
      line = 0; say(d.listings.length ? 'Choose a line: ↑ ↓ walk, → ← change sides, n and p go through its rows, m to the next mark.' : '')
      delete root.dataset.line
      drawSource(); drawListing()
      const wrong = Number(Object.keys(d.errors)[0] ?? 0)
      if (wrong || was) pick(wrong || was)
    },
    look(l) { if (l > 0 && l <= left.rows.length) pick(l) },
    height(px) { both.style.height = `${px}px` },
  }
}

function render({ model, el }) {
  const view = mount(el, { select: line => model.send({ type: 'select', line }) })
  const draw = () => view.show(model.get('shown'), model.get('of')), look = () => view.look(model.get('line')), sized = () => view.height(model.get('height'))
  model.on('change:shown', draw); model.on('change:line', look); model.on('change:height', sized)
  draw(); sized(); if (model.get('line')) look()
  return () => { model.off('change:shown', draw); model.off('change:line', look); model.off('change:height', sized) }
}
export default { render }
