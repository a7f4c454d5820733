// Who is in SBUF and PSUM, and when: lives of tiles over time, and a plan of both memories at a moment. Python sends all lives once; zooming,
// the cursor and the plan ask nobody. `mount` itself needs no notebook.
const LEFT = 118, RIGHT = 10, TOP = 6, GAP = 12, AXIS = 26, BAND = { SBUF: 168, PSUM: 88 }, PLAN = 96, HEAD = 18, LIST = 10
const HUES = ['#4268CD', '#6BB28D', '#D8911E', '#9A4773', '#8286AD', '#9C744A', '#2A9DA8', '#7A9A3B', '#B96AC9', '#5A7FA8', '#C07F5C', '#5B8C5A']
const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi)
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }
const three = v => Math.abs(v) >= 99.95 ? (v - 1e-9).toFixed(0)     // a half goes down, as in Python's even ones
   : Math.abs(v) >= 9.995 ? v.toFixed(1) : v.toFixed(2)
const time = us => { const [v, u] = Math.abs(us) >= 1000 ? [us / 1000, 'ms'] : Math.abs(us) < 0.1 && us ? [us * 1000, 'ns'] : [us, 'µs']; return `${three(v)} ${u}` }
const bytes = n => n >= 1024 ? `${three(n / 1024)} KiB` : `${n.toFixed(0)} B`
const amount = (pool, n) => pool.name === 'SBUF' ? bytes(n) : `${n.toFixed(0)} bank${n === 1 ? '' : 's'}`

// The lives as typed arrays in the order of their starts, and all moments at which something changes.
function opened(part) {
  const n = part.count, all = part.rows.buffer.slice(part.rows.byteOffset, part.rows.byteOffset + part.rows.byteLength)
  let at = 0
  const take = (kind, size) => { const a = new kind(all, at, n); at += n * size; return a }
  const m = { ...part, from: take(Float64Array, 8), until: take(Float64Array, 8), at: take(Float32Array, 4), size: take(Float32Array, 4),
    tile: take(Uint32Array, 4), pool: take(Uint8Array, 1) }
  const moments = new Float64Array(2 * n)
  moments.set(m.from); moments.set(m.until, n); moments.sort()
  m.moments = moments
  return m
}

export function mount(el, { select = () => {} } = {}) {
  const root = node('div', 'kl-mv'), bar = node('div', 'kl-mv-bar'), lanes = node('canvas', 'kl-mv-time'), plan = node('canvas', 'kl-mv-plan')
  const info = node('div', 'kl-mv-info'), list = node('div', 'kl-mv-list'), tip = node('div', 'kl-mv-tip'), says = node('div', 'kl-mv-says')
  const title = node('span', 'kl-title'), quiet = node('span', 'kl-quiet'), whole = node('label'), tick = node('input'), peak = node('button', '', 'Go to the peak')
  tick.type = 'checkbox'; whole.append(tick, ' whole memory'); peak.type = 'button'
  bar.append(title, quiet, whole, peak); root.append(bar, lanes, info, plan, list, says, tip); el.append(root)
  lanes.tabIndex = 0; lanes.setAttribute('role', 'application'); plan.setAttribute('role', 'img')
  info.setAttribute('aria-live', 'polite')
  let m = null, end = 1, lo = 0, hi = 1, now = 0, chosen = -1, line = 0, frame = 0, tops = [], boxes = [], drawn = 0, hatch = null, said = ''
  const width = () => lanes.clientWidth - LEFT - RIGHT, x = us => LEFT + (us - lo) / (hi - lo) * width(), us = px => lo + (px - LEFT) / width() * (hi - lo)
  const soon = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw() }) }
  const range = p => tick.checked || p.name === 'PSUM' ? Math.max(p.room, p.top) : Math.min(Math.max(p.top, p.room / 512) * 1.06, Math.max(p.room, p.top))
  const hue = k => HUES[m.tile[k] % HUES.length], isOut = k => chosen >= 0 ? m.tile[k] !== chosen : line > 0 && !m.tiles[m.tile[k]].lines.includes(line)
  function living(when) { const found = []; for (let k = 0; k < m.count && m.from[k] <= when; k++) if (m.until[k] > when) found.push(k); return found }

  function sized(canvas, height) {
    const ratio = devicePixelRatio || 1, w = canvas.clientWidth, g = canvas.getContext('2d')
    canvas.style.height = height + 'px'
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio) }
    g.setTransform(ratio, 0, 0, ratio, 0, 0); g.clearRect(0, 0, w, height)
    return g
  }
  function stripes(g) {
    if (hatch) return hatch
    const c = document.createElement('canvas'); c.width = c.height = 6
    const h = c.getContext('2d'); h.strokeStyle = '#FFFFFF'; h.lineWidth = 1.6
    h.beginPath(); h.moveTo(-1, 7); h.lineTo(7, -1); h.moveTo(-1, 1); h.lineTo(1, -1); h.moveTo(5, 7); h.lineTo(7, 5); h.stroke()
    return hatch = g.createPattern(c, 'repeat')
  }
  function box(g, k, a, b, w, h) {
    g.globalAlpha = isOut(k) ? 0.14 : 1
    g.fillStyle = hue(k); g.fillRect(a, b, w, h)
    if (m.tiles[m.tile[k]].spilled && w > 2 && h > 2) { g.fillStyle = stripes(g); g.fillRect(a, b, w, h) }
    g.globalAlpha = 1
  }
  function named(g, k, a, b, w, h) {
    if (w < 34 || h < 12 || isOut(k)) return
    const text = m.tiles[m.tile[k]].name
    g.save(); g.beginPath(); g.rect(a, b, w, h); g.clip()
    g.font = '600 11px ' + getComputedStyle(root).fontFamily; g.textAlign = 'left'; g.textBaseline = 'middle'
    const wide = Math.min(g.measureText(text).width + 8, w)
    g.fillStyle = 'rgba(20,23,28,0.62)'; g.fillRect(a + 2, b + Math.min(h, 22) / 2 - 7, wide, 14)
    g.fillStyle = '#FFFFFF'; g.fillText(text, a + 6, b + Math.min(h, 22) / 2)
    g.restore()
  }
  function axis(g, ink, bottom) {
    const raw = (hi - lo) / Math.max(3, width() / 110), unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(f => f * unit).find(s => s >= raw)
    g.font = '11px ' + getComputedStyle(root).fontFamily; g.textAlign = 'center'; g.textBaseline = 'top'; g.fillStyle = ink
    for (let n = Math.ceil(lo / step); n * step <= hi; n++) g.fillText(step >= 1000 ? `${+(n * step / 1000).toPrecision(9)} ms` : `${+(n * step).toPrecision(9)}`, x(n * step), bottom + 6)
    if (step < 1000) { g.textAlign = 'right'; g.fillText('µs', LEFT - 12, bottom + 6) }
  }
  function drawBand(g, p, y, ink, soft) {
    const pool = m.pools[p], h = BAND[pool.name], top = range(pool), scale = h / top
    g.fillStyle = 'rgba(128,136,148,0.09)'; g.fillRect(LEFT, y, width(), h)
    g.textAlign = 'right'; g.textBaseline = 'middle'; g.fillStyle = ink; g.font = '12px ' + getComputedStyle(root).fontFamily
    g.fillText(pool.label, LEFT - 10, y + 8)
    g.fillStyle = soft; g.font = '11px ' + getComputedStyle(root).fontFamily
    g.fillText(amount(pool, top), LEFT - 10, y + 24)
    if (pool.name === 'SBUF') { g.fillText(top < pool.room ? `of ${bytes(pool.room)}` : '', LEFT - 10, y + 38); g.fillText('a partition', LEFT - 10, y + (top < pool.room ? 52 : 38)) }
    g.fillText('0', LEFT - 10, y + h - 6)
    g.save(); g.beginPath(); g.rect(LEFT, y, width(), h); g.clip()
    for (let k = 0; k < m.count; k++) {
      if (m.pool[k] !== p || m.until[k] < lo || m.from[k] > hi) continue
      const a = Math.max(x(m.from[k]), LEFT), b = Math.min(x(m.until[k]), LEFT + width()), w = Math.max(b - a - (b - a > 4 ? 0.6 : 0), 0.8)
      const tall = Math.max(m.size[k] * scale - (m.size[k] * scale > 4 ? 0.6 : 0), 0.8), up = y + h - (m.at[k] + m.size[k]) * scale
      box(g, k, a, up, w, tall); named(g, k, a, up, w, tall); drawn++
    }
    if (pool.peak > 0 && pool.peakUs >= lo && pool.peakUs <= hi) {
      const at = clamp(x(pool.peakUs), LEFT + 1, LEFT + width() - 1), up = y + h - pool.peak * scale
      g.strokeStyle = ink; g.setLineDash([4, 3]); g.lineWidth = 1
      g.beginPath(); g.moveTo(LEFT, Math.max(up, y + 0.5)); g.lineTo(LEFT + width(), Math.max(up, y + 0.5)); g.stroke(); g.setLineDash([])
      g.fillStyle = ink; g.textAlign = at > LEFT + width() - 90 ? 'right' : 'left'; g.textBaseline = 'alphabetic'; g.font = '11px ' + getComputedStyle(root).fontFamily
      const high = Math.max(up, y), say = `peak ${amount(pool, pool.peak)}`, side = at + (g.textAlign === 'left' ? 8 : -8)
      if (high - 4 > y + 8) g.fillText(say, side, high - 4)
      g.beginPath(); g.moveTo(at, Math.max(up, y) + 1); g.lineTo(at - 4, Math.max(up, y) - 6); g.lineTo(at + 4, Math.max(up, y) - 6); g.fill()
    }
    if (pool.room < top) { g.strokeStyle = '#C8453B'; g.lineWidth = 1.2; g.beginPath(); g.moveTo(LEFT, y + h - pool.room * scale + 0.6); g.lineTo(LEFT + width(), y + h - pool.room * scale + 0.6); g.stroke() }
    g.restore()
  }
  function drawPlan(found, ink, soft) {
    const cores = m.pools.length / 2, g = sized(plan, cores * (PLAN + HEAD + GAP)), w = plan.clientWidth
    boxes = []
    m.pools.forEach((pool, p) => {
      const isS = pool.name === 'SBUF', left = isS ? LEFT : LEFT + (w - LEFT - RIGHT) * 0.72 + 54, wide = isS ? (w - LEFT - RIGHT) * 0.72 - 20 : w - RIGHT - left
      const y = HEAD + Math.floor(p / 2) * (PLAN + HEAD + GAP), top = range(pool), scale = wide / top
      g.fillStyle = soft; g.font = '11px ' + getComputedStyle(root).fontFamily; g.textBaseline = 'middle'; g.textAlign = 'left'
      g.fillText(isS ? `${pool.label}: ${m.partitions} partitions × ${bytes(top)} of ${bytes(pool.room)}` : `${pool.label}: ${pool.room} banks`, left, y - 9)
      g.textAlign = 'right'
      if (isS) { g.fillText('partition 0', left - 10, y + 6); g.fillText(`${m.partitions - 1}`, left - 10, y + PLAN - 6) }
      g.fillStyle = 'rgba(128,136,148,0.09)'; g.fillRect(left, y, wide, PLAN)
      if (!isS) for (let b = 1; b < pool.room; b++) { g.fillStyle = 'rgba(128,136,148,0.25)'; g.fillRect(left + b * scale, y, 1, PLAN) }
      for (const k of found) {
        if (m.pool[k] !== p) continue
        const a = left + m.at[k] * scale, wk = Math.max(m.size[k] * scale - (m.size[k] * scale > 4 ? 1 : 0), 0.8), h = PLAN * m.tiles[m.tile[k]].partitions / m.partitions
        box(g, k, a, y, wk, h); named(g, k, a, y, wk, h)
        boxes.push([a, y, wk, h, k])
      }
    })
    plan.setAttribute('aria-label', `Both memories at ${time(now)}: ${info.textContent}`)
  }
  function draw() {
    if (!m || !lanes.clientWidth) return
    const style = getComputedStyle(root), ink = (style.getPropertyValue('--kl-ink') || '#22262d').trim(), soft = (style.getPropertyValue('--kl-soft') || '#69707b').trim()
    tops = []
    let y = TOP
    for (const p of m.pools) { tops.push(y); y += BAND[p.name] + GAP }
    const g = sized(lanes, y - GAP + AXIS)
    drawn = 0
    m.pools.forEach((_, p) => drawBand(g, p, tops[p], ink, soft))
    axis(g, soft, y - GAP)
    if (now >= lo && now <= hi) {
      g.fillStyle = ink; g.fillRect(x(now) - 0.75, TOP - 4, 1.5, y - GAP - TOP + 8)
      g.beginPath(); g.arc(x(now), TOP - 2, 3.5, 0, 7); g.fill()
    }
    const found = living(now)
    tell(found); drawPlan(found, ink, soft)
    lanes.dataset.window = `${lo} ${hi}`; lanes.dataset.drawn = drawn; lanes.dataset.now = now
    const part = hi - lo < 0.999 * end ? ` · ${time(lo)} to ${time(hi)}` : ''
    quiet.textContent = `${m.of} · ${m.values.toLocaleString('en')} lives of ${m.tiles.length.toLocaleString('en')} tiles${part}${said ? ' · ' + said : ''}`
    lanes.setAttribute('aria-label', `Memory over time: ${title.textContent}. ${m.words} Arrow keys move the cursor to the next change, W A S D zoom and pan, P goes to the peak, Escape shows everything.`)
  }
  function tell(found) {
    const parts = m.pools.map((pool, p) => {
      const used = found.reduce((n, k) => n + (m.pool[k] === p ? m.size[k] : 0), 0)
      return `${pool.label} ${amount(pool, used)} in use, ${amount(pool, Math.max(pool.room - used, 0))} free`
    })
    const text = `At ${time(now)}: ${parts.join(' · ')}`
    if (info.textContent !== text) info.textContent = text
    const tiles = new Map()
    for (const k of found) { const t = tiles.get(m.tile[k]) ?? { tile: m.tile[k], size: 0, pool: m.pool[k] }; t.size += m.size[k]; tiles.set(m.tile[k], t) }
    const rows = [...tiles.values()].sort((a, b) => a.pool % 2 - b.pool % 2 || b.size - a.size), key = `${rows.map(r => r.tile + ':' + r.size)}|${chosen}`
    if (list.dataset.key === key) return
    list.dataset.key = key
    list.replaceChildren(...rows.slice(0, LIST).map(r => {
      const t = m.tiles[r.tile], b = node('button', 'kl-mv-tile', `${t.name} ${amount(m.pools[r.pool], r.size)}${t.line ? ' · line ' + t.line : ''}${t.spilled ? ' · ' + t.spilled : ''}`), i = node('i')
      b.type = 'button'; i.style.background = HUES[r.tile % HUES.length]; b.prepend(i)
      b.setAttribute('aria-pressed', String(r.tile === chosen))
      b.addEventListener('click', () => choose(r.tile === chosen ? -1 : r.tile))
      return b
    }), ...(rows.length > LIST ? [node('span', 'kl-quiet', `and ${rows.length - LIST} smaller ones`)] : []))
  }
  function describe(k) {
    const t = m.tiles[m.tile[k]], pool = m.pools[m.pool[k]], used = t.lines.filter(l => l !== t.line)
    return `${t.name} · ${t.shape} · ${amount(pool, m.size[k])}${pool.name === 'SBUF' ? ' a partition' : ''} of ${pool.label}${t.line ? ` · line ${t.line}` : ''}${used.length ? `, used in ${used.length > 1 ? 'lines' : 'line'} ${used.slice(0, 6).join(', ')}` : ''}` +
      ` · ${time(m.until[k] - m.from[k])} from ${time(m.from[k])}${t.spilled ? ` · ${t.spilled}` : ''}`
  }
  function choose(tile, k = -1) {
    chosen = tile; line = 0
    says.textContent = tile < 0 ? '' : describe(k >= 0 ? k : living(now).find(i => m.tile[i] === tile) ?? m.tile.indexOf(tile))
    list.dataset.key = ''
    if (tile >= 0 && m.tiles[tile].line) select({ line: m.tiles[tile].line, tile })
    soon()
  }
  function hit(e) {
    const b = lanes.getBoundingClientRect(), px = e.clientX - b.left, py = e.clientY - b.top
    if (px < LEFT || px > LEFT + width()) return -1
    for (let p = 0; p < m.pools.length; p++) {
      const h = BAND[m.pools[p].name]
      if (py < tops[p] || py > tops[p] + h) continue
      const at = (tops[p] + h - py) / h * range(m.pools[p]), when = us(px), slack = 1.5 * (hi - lo) / width()
      let best = -1, far = Infinity
      for (let k = 0; k < m.count && m.from[k] <= when + slack; k++) {
        if (m.pool[k] !== p || m.at[k] > at || m.at[k] + m.size[k] < at || m.until[k] < when - slack) continue
        const d = Math.max(0, m.from[k] - when, when - m.until[k])
        if (d <= far) { far = d; best = k }
      }
      return best
    }
    return -1
  }
  function view(a, b) { const span = clamp(b - a, Math.max(end * 1e-7, 1e-4), end); lo = clamp(a, 0, end - span); hi = lo + span; soon() }
  const zoom = (f, around = now >= lo && now <= hi ? now : (lo + hi) / 2) => view(around - (around - lo) * f, around + (hi - around) * f)
  const pan = share => view(lo + share * (hi - lo), hi + share * (hi - lo))
  function go(when) { now = clamp(when, 0, end); if (now < lo || now > hi) view(now - (hi - lo) / 2, now + (hi - lo) / 2); soon() }
  function change(way) {                                              // to the next moment, or the one before, at which something changes
    let a = 0, b = m.moments.length
    while (a < b) { const c = (a + b) >> 1; if (way > 0 ? m.moments[c] > now + 1e-9 : m.moments[c] >= now - 1e-9) b = c; else a = c + 1 }
    go(way > 0 ? m.moments[a] ?? end : m.moments[a - 1] ?? 0)
  }
  const toPeak = () => go(m.pools[0].peak ? m.pools[0].peakUs : m.pools[1].peakUs)

  lanes.addEventListener('wheel', e => {
    if (document.activeElement !== lanes && !e.ctrlKey && !e.metaKey && !e.shiftKey) return
    e.preventDefault()
    const flat = e.deltaX || (e.shiftKey ? e.deltaY : 0)
    flat ? pan(flat / width()) : zoom(Math.exp(clamp(e.deltaY, -240, 240) * 0.0022), us(e.clientX - lanes.getBoundingClientRect().left))
  }, { passive: false })
  let drag = null
  lanes.addEventListener('pointerdown', e => { lanes.focus(); drag = { x: e.clientX, lo, hi, moved: false }; lanes.setPointerCapture(e.pointerId) })
  lanes.addEventListener('pointermove', e => {
    if (drag) {
      drag.moved ||= Math.abs(e.clientX - drag.x) > 3
      const way = (e.clientX - drag.x) / width() * (drag.hi - drag.lo)
      if (drag.moved) view(drag.lo - way, drag.hi - way)
      return
    }
    const k = hit(e)
    tip.style.display = k >= 0 ? 'block' : 'none'
    if (k < 0) return
    tip.textContent = describe(k)
    const b = root.getBoundingClientRect()
    tip.style.left = clamp(e.clientX - b.left + 12, 0, Math.max(0, b.width - tip.offsetWidth - 4)) + 'px'; tip.style.top = e.clientY - b.top + 16 + 'px'
  })
  lanes.addEventListener('pointerup', e => {
    const was = drag
    drag = null
    if (!was || was.moved) return
    const k = hit(e)
    go(us(e.clientX - lanes.getBoundingClientRect().left))
    choose(k >= 0 ? m.tile[k] : -1, k)
  })
  lanes.addEventListener('pointerleave', () => { tip.style.display = 'none' })
  lanes.addEventListener('dblclick', () => view(0, end))
  plan.addEventListener('click', e => {
    const b = plan.getBoundingClientRect(), px = e.clientX - b.left, py = e.clientY - b.top
    const found = boxes.find(([a, y, w, h]) => px >= a && px <= a + w && py >= y && py <= y + h)
    choose(found ? m.tile[found[4]] : -1, found ? found[4] : -1)
  })
  lanes.addEventListener('keydown', e => {
    const keys = { w: () => zoom(0.7), ArrowUp: () => zoom(0.7), s: () => zoom(1 / 0.7), ArrowDown: () => zoom(1 / 0.7), a: () => pan(-0.15), d: () => pan(0.15),
      ArrowLeft: () => change(-1), ArrowRight: () => change(1), Home: () => go(0), End: () => go(end), p: toPeak, Escape: () => { choose(-1); view(0, end) } }
    const act = !e.ctrlKey && !e.metaKey && !e.altKey && keys[e.key]
    if (act) { act(); e.preventDefault(); e.stopPropagation() }
  })
  peak.addEventListener('click', toPeak); tick.addEventListener('change', soon)
  const grown = new ResizeObserver(soon), themed = new MutationObserver(soon)
  grown.observe(root); themed.observe(document.body, { attributes: true })

  return {
    show(part, words = {}) {
      m = part && part.rows ? opened(part) : null
      chosen = -1; line = 0; said = words.of ?? ''
      if (!m) return
      end = Math.max(1e-3, m.latency); lo = 0; hi = end
      now = m.pools[0].peak ? m.pools[0].peakUs : m.pools[1].peakUs
      title.textContent = m.title; says.textContent = m.words; list.dataset.key = ''
      draw()
    },
    line(number) { chosen = -1; line = number; list.dataset.key = ''; soon() },
    at(when) { go(when) },
    close() { grown.disconnect(); themed.disconnect(); cancelAnimationFrame(frame); root.remove() },
  }
}

export default { render({ model, el }) {
  const memory = mount(el, { select: found => model.send({ type: 'select', ...found }) })
  const draw = () => memory.show(model.get('part'), model.get('words'))
  const line = () => memory.line(model.get('line'))
  model.on('change:part', draw); model.on('change:line', line)
  draw(); line()
  return () => { model.off('change:part', draw); model.off('change:line', line); memory.close() }
} }
