// Which lines of `after` are not in `before`, and which of `before` are gone: {number of a line: those gone before it}.
function differences(before, after) {
  const a = before.split('\n'), b = after.split('\n'), fresh = new Set(), gone = new Map()
  let from = 0, x = a.length, y = b.length
  while (from < x && from < y && a[from] === b[from]) from++
  while (x > from && y > from && a[x - 1] === b[y - 1]) { x--; y-- }
  const n = x - from, m = y - from, long = n * m > 4e6, at = (i, j) => i * (m + 1) + j, common = new Uint16Array(long ? 0 : (n + 1) * (m + 1))
  if (!long) for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--)
    common[at(i, j)] = a[from + i] === b[from + j] ? common[at(i + 1, j + 1)] + 1 : Math.max(common[at(i + 1, j)], common[at(i, j + 1)])
  for (let i = 0, j = 0; i < n || j < m;) {
    if (!long && i < n && j < m && a[from + i] === b[from + j]) { i++; j++ }
    else if (j < m && (i === n || (!long && common[at(i, j + 1)] >= common[at(i + 1, j)]))) fresh.add(from + j++)
    else { const k = from + j; gone.set(k, [...gone.get(k) ?? [], a[from + i++]]) }
  }
  return { fresh, gone }
}

// Where each line of a text stands, in pixels from its top, and where the last one ends: what is longer than the text is wide goes on below.
const ROW = 19, PAD = 8
function lineTops(pre, text, columns) {
  const lines = text.split('\n'), tops = [0]
  if (lines.every(l => l.length <= columns && /^[ -~]*$/.test(l))) return lines.map((_, i) => ROW * i).concat(ROW * lines.length)
  const top = pre.getBoundingClientRect().top + PAD, range = document.createRange(), words = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT)
  for (let n; (n = words.nextNode());) for (let at = n.data.indexOf('\n'); at >= 0; at = n.data.indexOf('\n', at + 1)) {
    range.setStart(n, at); range.setEnd(n, at + 1)
    const end = range.getClientRects()[0]                           // of the line's end, which stands in its last row
    tops.push(end ? ROW * (Math.floor((end.top + end.height / 2 - top) / ROW) + 1) : tops.at(-1) + ROW)
  }
  return tops.slice(0, lines.length + 1)
}

const counted = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`
function gutter(box, model, diff, tops) {
  const costs = model.get('costs'), marks = model.get('marks'), colours = model.get('colours'), lines = model.get('value').split('\n')
  const rows = lines.map((_, i) => {
    const row = node('div', 'kl-line'), high = tops[i + 1] - tops[i], bar = node('span', 'kl-cost'), cost = costs[i + 1]
    const change = row.appendChild(node('span', 'kl-change'))
    if (diff) {
      const gone = [...diff.gone.get(i) ?? [], ...i === lines.length - 1 ? diff.gone.get(i + 1) ?? [] : []]
      change.classList.toggle('kl-fresh', diff.fresh.has(i)); change.classList.toggle('kl-gone', gone.length > 0)
      if (gone.length) row.title = `gone here: ${gone.join('\n')}`
    }
    for (const [engine, share] of cost ? cost.shares : []) {
      const piece = node('i'); piece.style.width = `${100 * share}%`; piece.style.background = colours[engine] ?? '#888'; bar.append(piece)
    }
    if (cost) bar.title = cost.text
    if (marks[i + 1] !== undefined) { row.classList.add('kl-marked'); row.title = marks[i + 1] }
    if (high !== ROW) row.style.height = high + 'px'
    row.append(bar, node('span', 'kl-lineno', String(i + 1)))
    row.addEventListener('click', () => model.send({ type: 'line', line: i + 1 }))
    return row
  })
  box.replaceChildren(...rows)
}

// The names of a module that fit what stands before the caret, in a list under it. The names come from Python, once, when they are first needed.
function completion(model, wrap, area, body, pre) {
  const id = `kl-names-${Math.random().toString(36).slice(2)}`, box = node('div', 'kl-names'), list = node('div'), doc = node('div', 'kl-names-doc')
  list.id = id; list.setAttribute('role', 'listbox'); list.setAttribute('aria-label', 'Names'); doc.setAttribute('aria-live', 'polite')
  for (const [k, v] of Object.entries({ 'aria-autocomplete': 'list', 'aria-controls': id })) area.setAttribute(k, v)
  box.append(list, doc); wrap.append(box)
  let names = null, asked = false, found = [], at = 0, typed = ''
  const open = () => box.classList.contains('kl-open')
  const close = () => { box.classList.remove('kl-open'); area.removeAttribute('aria-activedescendant') }
  const ask = () => { if (!asked) { asked = true; model.send({ type: 'names' }) } }
  const heard = said => { if (said.type === 'names') { names = said.names; if (document.activeElement === area) look() } }
  model.on('msg:custom', heard)
  function point(n) {
    at = Math.max(0, Math.min(n, found.length - 1));
    [...list.children].forEach((o, i) => { o.setAttribute('aria-selected', String(i === at)); if (i === at) o.scrollIntoView({ block: 'nearest' }) })
    area.setAttribute('aria-activedescendant', `${id}-${at}`)
    const [name, signature, text] = found[at]
    doc.replaceChildren(node('b', '', name + signature), node('p', '', text))
  }
  function look() {
    const before = area.value.slice(0, area.selectionStart), m = /\b(nl|nisa)\.(\w*)$/.exec(before)
    if (!m || area.readOnly || area.selectionStart !== area.selectionEnd) return close()
    if (!names) return ask()
    typed = m[2]
    const fits = n => n.startsWith(typed) ? 0 : n.toLowerCase().includes(typed.toLowerCase()) ? 1 : 2
    found = names[m[1]].map(n => [fits(n[0]), n]).filter(([f]) => f < 2).sort((a, b) => a[0] - b[0]).map(([, n]) => n)
    if (!found.length || (found.length === 1 && found[0][0] === typed)) return close()
    list.replaceChildren(...found.map(([name], i) => {
      const o = node('div', '', name); o.id = `${id}-${i}`; o.setAttribute('role', 'option')
      o.addEventListener('pointerdown', e => { e.preventDefault(); take(i) })
      return o
    }))
    box.classList.add('kl-open')
    place(before.length - m[2].length)
    point(0)
  }
  function place(begin) {                                             // under the first letter of the name
    const frame = wrap.getBoundingClientRect(), words = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT), range = document.createRange()
    let n = words.nextNode(), at = begin - 1                          // the dot before it
    while (at >= n.data.length) { at -= n.data.length; n = words.nextNode() }
    range.setStart(n, at); range.setEnd(n, at + 1)
    const dot = range.getBoundingClientRect(), left = dot.right - frame.left, top = dot.top + (dot.height + ROW) / 2 - frame.top
    box.style.left = Math.max(0, Math.min(left, frame.width - box.offsetWidth - 4)) + 'px'
    box.style.top = (top + box.offsetHeight > frame.height && top - 19 > box.offsetHeight ? top - 21 - box.offsetHeight : top + 2) + 'px'
  }
  function take(n) {
    const end = area.selectionStart
    area.setSelectionRange(end - typed.length, end)
    insert(area, found[n][0]); close()
  }
  area.addEventListener('click', close); area.addEventListener('blur', close); area.addEventListener('focus', ask)
  return { close, look, stop() { model.off('msg:custom', heard) }, key(e) {                     // whether the list took the key
    if (e.key === ' ' && e.ctrlKey) { look(); return true }
    if (!open()) return false
    const act = { ArrowDown: () => point(at + 1), ArrowUp: () => point(at - 1), Enter: () => take(at), Tab: () => take(at), Escape: close }[e.ctrlKey || e.metaKey ? '' : e.key]
    if (act) act()
    else if (e.key.startsWith('Arrow') || e.key === 'Home' || e.key === 'End') close()
    return Boolean(act)
  } }
}

// Type text at the caret, so that Ctrl+Z takes it back.
function insert(area, text) {
  area.focus()
  if (document.execCommand('insertText', false, text)) return
  area.setRangeText(text, area.selectionStart, area.selectionEnd, 'end'); area.dispatchEvent(new Event('input'))
}

function render({ model, el }) {
  const wrap = node('div', 'kl-editor-wrap'), root = node('div', 'kl-editor'), side = node('div', 'kl-gutter'), body = node('div', 'kl-body'), pre = node('pre'), area = node('textarea'), note = node('div', 'kl-quiet kl-diff-note'), wrong = node('div', 'kl-wrong')
  Object.assign(area, { spellcheck: false, autocomplete: 'off' })
  area.setAttribute('aria-label', 'Kernel source')
  area.title = 'Ctrl+Enter evaluates an edit. Ctrl+Space shows names of nl. and nisa. Tab indents; Escape, then Tab, leaves the text.'
  note.setAttribute('role', 'status'); wrong.setAttribute('role', 'status')
  const ruler = node('span', 'kl-ruler', 'x'.repeat(20))
  body.append(pre, area, ruler); root.append(side, body); wrap.append(root, wrong, note); el.append(wrap)
  const names = completion(model, wrap, area, body, pre)
  let tops = [0], columns = Infinity                                   // how many letters a row has room for
  const bands = diff => {
    body.querySelectorAll('.kl-band').forEach(b => b.remove())
    const band = (line, kind) => { const b = node('div', `kl-band ${kind}`); const top = tops[line - 1] ?? tops.at(-1); b.style.top = `${PAD + top}px`; b.style.height = `${(tops[line] ?? top + ROW) - top}px`; body.prepend(b) }
    for (const i of diff?.fresh ?? []) band(i + 1, 'kl-fresh')
    if (model.get('at')) band(model.get('at'), 'kl-at')
    for (const line of Object.keys(model.get('marks'))) band(Number(line), '')
  }
  const compared = () => {
    const name = model.get('base_name')
    if (!name) { note.textContent = ''; return null }
    const diff = differences(model.get('base'), model.get('value')), gone = [...diff.gone.values()].reduce((n, some) => n + some.length, 0)
    note.textContent = diff.fresh.size || gone ? `against ${name}: ${counted(diff.fresh.size, 'line')} new, ${gone} gone` : `the same as ${name}`
    return diff
  }
  const lay = diff => { tops = lineTops(pre, model.get('value'), columns); gutter(side, model, diff, tops); bands(diff) }
  const draw = () => {
    const diff = compared()
    root.classList.toggle('kl-timed', Object.keys(model.get('costs')).length > 0)
    paint(pre, model.get('value')); lay(diff)
    root.style.maxHeight = model.get('height') + 'px'
    wrong.textContent = Object.entries(model.get('marks')).map(([line, said]) => `Line ${line}: ${said}`).join('\n')
    area.readOnly = !model.get('editable')
  }
  const look = line => { if (line) root.scrollTop = PAD + (tops[line - 1] ?? 0) - root.clientHeight / 2 }
  const looked = () => { bands(compared()); look(model.get('at')) }
  const marked = () => look(Number(Object.keys(model.get('marks'))[0] ?? 0))
  let timer = 0, leaving = false                                    // timer: what is typed is not with Python yet
  const take = () => {
    if (timer && area.value !== model.get('value')) model.set('value', area.value)     // an echo of an older text: what was typed since stays
    if (area.value !== model.get('value')) { area.value = model.get('value'); names.close() }
    draw()
  }
  const send = () => { clearTimeout(timer); timer = 0; model.save_changes() }
  area.addEventListener('input', () => { model.set('value', area.value); draw(); names.look(); clearTimeout(timer); timer = setTimeout(send, 200) })
  const undoes = e => { if (e.target === area && (e.ctrlKey || e.metaKey) && /^[zy]$/i.test(e.key)) e.stopImmediatePropagation() }
  area.addEventListener('focus', () => addEventListener('keydown', undoes, true))     // Notebook 7 would take Ctrl+Z for its cells
  const left = () => removeEventListener('keydown', undoes, true)
  area.addEventListener('blur', () => { left(); send() })
  const indented = () => {                                          // a new line is as deep as this one, deeper after a colon
    const line = area.value.slice(0, area.selectionStart).split('\n').at(-1)
    return /^ */.exec(line)[0] + (/:\s*(#.*)?$/.test(line) ? '    ' : '')
  }
  area.addEventListener('keydown', e => {
    e.stopPropagation()
    if (names.key(e)) { e.preventDefault(); return }
    if (e.key === 'Escape') { leaving = true; return }
    if (e.key === 'Tab' && leaving) return                         // Escape, then Tab, goes on to what comes after the editor
    if (e.key !== 'Shift') leaving = false
    if (area.readOnly) return
    if (e.key === 'Tab' && !e.shiftKey) { e.preventDefault(); insert(area, '    ') }
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); send(); model.send({ type: 'evaluate' }) }
    else if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && indented()) { e.preventDefault(); insert(area, '\n' + indented()) }
  })
  const watched = ['value', 'costs', 'marks', 'height', 'editable', 'base', 'base_name']
  let frame = 0, then = new Set()                                      // what comes together is drawn once
  const soon = what => { then.add(what); frame ||= requestAnimationFrame(() => { const all = [take, looked, marked].filter(f => then.has(f)); frame = 0; then = new Set(); all.forEach(f => f()) }) }
  const heard = { at: [looked], marks: [take, marked] }, asked = Object.fromEntries([...watched, 'at'].map(n => [n, () => (heard[n] ?? [take]).forEach(soon)]))
  for (const n in asked) model.on('change:' + n, asked[n])
  const resized = new ResizeObserver(([{ contentRect: { width } }]) => {     // its width comes with it: nothing is laid out to know it
    const letter = ruler.getBoundingClientRect().width / 20, before = columns
    columns = width && letter ? Math.floor((width - 16) / letter + 1e-6) : Infinity
    if (columns !== before) lay(compared())
  })
  resized.observe(body)
  take()
  requestAnimationFrame(() => { marked(); looked() })
  return () => { left(); cancelAnimationFrame(frame); resized.disconnect(); names.stop(); for (const n in asked) model.off('change:' + n, asked[n]) }
}
export default { render }
