const WORDS = 'False|None|True|and|as|assert|break|class|continue|def|elif|else|for|from|if|import|in|is|lambda|not|or|pass|raise|return|while|with|yield'
const STRINGS = /"""[\s\S]*?"""|'{3}[\s\S]*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/.source
const KINDS = new RegExp(`(#[^\\n]*)|(${STRINGS})|(@[\\w.]+)|\\b(${WORDS})\\b|\\b(\\d[\\w.]*)\\b|\\b(nki|nisa|nl)\\b`, 'g')
const NAMES = ['', 'comment', 'string', 'decorator', 'keyword', 'number', 'module']
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }

function paint(pre, text) {
  pre.replaceChildren()
  let at = 0
  for (const m of text.matchAll(KINDS)) {
    if (m.index > at) pre.append(text.slice(at, m.index))
    pre.append(node('span', 'kl-' + NAMES[m.findIndex((g, i) => i > 0 && g !== undefined)], m[0]))
    at = m.index + m[0].length
  }
  pre.append(text.slice(at) + '\n ')
}

function gutter(box, model) {
  const costs = model.get('costs'), marks = model.get('marks'), colours = model.get('colours')
  const rows = model.get('value').split('\n').map((_, i) => {
    const row = node('div', 'kl-line'), bar = node('span', 'kl-cost'), cost = costs[i + 1]
    for (const [engine, share] of cost ? cost.shares : []) {
      const piece = node('i'); piece.style.width = `${100 * share}%`; piece.style.background = colours[engine] ?? '#888'; bar.append(piece)
    }
    if (cost) bar.title = cost.text
    if (marks[i + 1] !== undefined) { row.classList.add('kl-marked'); row.title = marks[i + 1] }
    row.append(bar, node('span', 'kl-lineno', String(i + 1)))
    row.addEventListener('click', () => model.send({ type: 'line', line: i + 1 }))
    return row
  })
  box.replaceChildren(...rows)
}

function render({ model, el }) {
  const root = node('div', 'kl-editor'), side = node('div', 'kl-gutter'), body = node('div', 'kl-body'), pre = node('pre'), area = node('textarea')
  Object.assign(area, { spellcheck: false, wrap: 'off', autocomplete: 'off' })
  area.setAttribute('aria-label', 'Kernel source')
  area.title = 'Ctrl+Enter evaluates an edit. Tab indents; Escape, then Tab, leaves the text.'
  body.append(pre, area); root.append(side, body); el.append(root)
  const bands = () => {
    body.querySelectorAll('.kl-band').forEach(b => b.remove())
    if (model.get('at')) { const b = node('div', 'kl-band kl-at'); b.style.top = `${8 + 19 * (model.get('at') - 1)}px`; body.prepend(b) }
    for (const line of Object.keys(model.get('marks'))) { const b = node('div', 'kl-band'); b.style.top = `${8 + 19 * (line - 1)}px`; body.prepend(b) }
  }
  const draw = () => {
    paint(pre, model.get('value')); gutter(side, model); bands()
    root.style.maxHeight = model.get('height') + 'px'
    root.classList.toggle('kl-timed', Object.keys(model.get('costs')).length > 0)
    area.readOnly = !model.get('editable')
  }
  const look = line => { if (line) root.scrollTop = 8 + 19 * (line - 1) - root.clientHeight / 2 }
  const looked = () => { bands(); look(model.get('at')) }
  const marked = () => look(Number(Object.keys(model.get('marks'))[0] ?? 0))
  const take = () => { if (area.value !== model.get('value')) area.value = model.get('value'); draw() }
  let timer, leaving = false
  const send = () => { clearTimeout(timer); model.save_changes() }
  area.addEventListener('input', () => { model.set('value', area.value); draw(); clearTimeout(timer); timer = setTimeout(send, 200) })
  area.addEventListener('blur', send)
  area.addEventListener('keydown', e => {
    e.stopPropagation()
    if (e.key === 'Escape') { leaving = true; return }
    if (e.key === 'Tab' && leaving) return                         // Escape, then Tab, goes on to what comes after the editor
    if (e.key !== 'Shift') leaving = false
    if (e.key === 'Tab' && !e.shiftKey && !area.readOnly) {
      e.preventDefault(); area.setRangeText('    ', area.selectionStart, area.selectionEnd, 'end'); area.dispatchEvent(new Event('input'))
    }
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); send(); model.send({ type: 'evaluate' }) }
  })
  const names = ['value', 'costs', 'marks', 'height', 'editable']
  for (const n of names) model.on('change:' + n, take)
  model.on('change:at', looked); model.on('change:marks', marked)
  take()
  requestAnimationFrame(() => { marked(); looked() })
  return () => { for (const n of names) model.off('change:' + n, take); model.off('change:at', looked); model.off('change:marks', marked) }
}
export default { render }
