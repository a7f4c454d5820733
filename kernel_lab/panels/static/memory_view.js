// Who is in SBUF and PSUM, and when: lives of tiles over time, and a plan of both memories at a moment, on canvases (see canvas.js). Python sends all
// lives once; zooming, the cursor and the plan ask nobody. `mount` itself needs no notebook.
const TOP = 6, GAP = 12, AXIS = 26, BAND = { SBUF: 168, PSUM: 88 }, PLAN = 96, HEAD = 18, LIST = 10, NEAR = 16
const bytes = n => n >= 1024 ? `${three(n / 1024)} KiB` : `${n.toFixed(0)} B`
const amount = (pool, n) => pool.name === 'SBUF' ? bytes(n) : `${n.toFixed(0)} bank${n === 1 ? '' : 's'}`

// The lives as typed arrays in the order of their starts, and all moments at which something changes.
function opened(part) {
  const n = part.count, take = columns(part.rows, n)
  const m = { ...part, from: take(Float64Array), until: take(Float64Array), at: take(Float32Array), size: take(Float32Array), tile: take(Uint32Array), pool: take(Uint8Array) }
  const moments = new Float64Array(2 * n)
  moments.set(m.from); moments.set(m.until, n); moments.sort()
  m.moments = moments
  return m
}

export function mount(el, { select = () => {} } = {}) {
  const root = node('div', 'kl-cv kl-mv'), bar = node('div', 'kl-cv-bar'), lanes = node('canvas', 'kl-mv-time'), plan = node('canvas', 'kl-mv-plan')
  const info = node('div', 'kl-cv-info kl-mv-info'), list = node('div', 'kl-mv-list'), says = node('div', 'kl-cv-info kl-mv-says')
  const title = node('span', 'kl-title'), quiet = node('span', 'kl-quiet'), whole = node('label'), tick = node('input'), peak = node('button', '', 'Go to the peak')
  tick.type = 'checkbox'; whole.append(tick, ' whole memory'); peak.type = 'button'
  bar.append(title, quiet, whole, peak); root.append(bar, lanes, info, plan, list, says); el.append(root)
  lanes.tabIndex = 0; lanes.setAttribute('role', 'application'); plan.setAttribute('role', 'img')
  info.setAttribute('aria-live', 'polite')
  let m = null, look = null, now = 0, chosen = -1, line = 0, tops = [], boxes = [], drawn = 0, hatch = null, said = ''
  const { soon, now: paint, stop } = redrawing(root, () => draw()), w = new TimeWindow(lanes, soon), x = us => w.x(us)
  const range = p => tick.checked || p.name === 'PSUM' ? Math.max(p.room, p.top) : Math.min(Math.max(p.top, p.room / 512) * 1.06, Math.max(p.room, p.top))
  const hue = k => HUES[m.tile[k] % HUES.length], isOut = k => chosen >= 0 ? m.tile[k] !== chosen : line > 0 && !m.tiles[m.tile[k]].lines.includes(line)
  function living(when) { const found = []; for (let k = 0; k < m.count && m.from[k] <= when; k++) if (m.until[k] > when) found.push(k); return found }

  function stripes(g) {
    if (hatch) return hatch
    const c = document.createElement('canvas'); c.width = c.height = 6
    const h = c.getContext('2d'); h.strokeStyle = '#FFFFFF'; h.lineWidth = 1.6
    h.beginPath(); h.moveTo(-1, 7); h.lineTo(7, -1); h.moveTo(-1, 1); h.lineTo(1, -1); h.moveTo(5, 7); h.lineTo(7, 5); h.stroke()
    return hatch = g.createPattern(c, 'repeat')
  }
  function box(g, k, a, b, wd, h) {
    g.globalAlpha = isOut(k) ? 0.14 : 1
    g.fillStyle = hue(k); g.fillRect(a, b, wd, h)
    if (m.tiles[m.tile[k]].spilled && wd > 2 && h > 2) { g.fillStyle = stripes(g); g.fillRect(a, b, wd, h) }
    g.globalAlpha = 1
  }
  function named(g, k, a, b, wd, h) {
    if (wd < 34 || h < 12 || isOut(k)) return
    g.save(); g.beginPath(); g.rect(a, b, wd, h); g.clip()
    g.font = '600 11px ' + look.font; g.textAlign = 'left'; g.textBaseline = 'middle'
    let text = m.tiles[m.tile[k]].name
    if (g.measureText(text).width + 12 > wd) { while (text && g.measureText(text + '…').width + 12 > wd) text = text.slice(0, -1); text = text.length > 1 ? text + '…' : '' }
    if (!text) return g.restore()
    const wide = g.measureText(text).width + 8
    g.fillStyle = 'rgba(20,23,28,0.62)'; g.fillRect(a + 2, b + Math.min(h, 22) / 2 - 7, wide, 14)
    g.fillStyle = '#FFFFFF'; g.fillText(text, a + 6, b + Math.min(h, 22) / 2)
    g.restore()
  }
  // Where the word beside the peak's arrow lies on no box: [left, baseline], as near to the arrow as there is room, above the line or below; null for nowhere.
  // `taken`: of the rows of pixels above the line and of those below, which columns have a box.
  function freeSpot(taken, at, dash, wide, y, h) {
    const most = LEFT + w.width - wide - 6
    for (let off = 8; off < w.width; off += 12) for (const left of [at + off, at - off - wide]) for (const [k, low] of [[0, dash - 4], [1, dash + 12]])
      if (left >= LEFT + 4 && left <= most && low - 9 >= y && low + 3 <= y + h && !taken[k].subarray(left - LEFT - 3, left - LEFT + wide + 4).includes(1)) return [left, low]
    return null
  }
  function drawBand(g, p, y) {
    const { ink, soft, font } = look, pool = m.pools[p], h = BAND[pool.name], top = range(pool), scale = h / top
    g.fillStyle = 'rgba(128,136,148,0.09)'; g.fillRect(LEFT, y, w.width, h)
    g.textAlign = 'right'; g.textBaseline = 'middle'; g.fillStyle = ink; g.font = '12px ' + font
    g.fillText(pool.label, LEFT - 10, y + 8)
    g.fillStyle = soft; g.font = '11px ' + font
    g.fillText(amount(pool, top), LEFT - 10, y + 24)
    if (pool.name === 'SBUF') { g.fillText(top < pool.room ? `of ${bytes(pool.room)}` : '', LEFT - 10, y + 38); g.fillText('a partition', LEFT - 10, y + (top < pool.room ? 52 : 38)) }
    g.fillText('0', LEFT - 10, y + h - 6)
    g.save(); g.beginPath(); g.rect(LEFT, y, w.width, h); g.clip()
    const dash = Math.max(y + h - pool.peak * scale, y), taken = [0, 1].map(() => new Uint8Array(Math.ceil(w.width) + 2))     // the dashed line of the peak, and what is near it
    if (now >= w.lo && now <= w.hi) for (const columns of taken) columns.fill(1, Math.max(0, x(now) - LEFT - 2), x(now) - LEFT + 3)
    for (let k = 0; k < m.count; k++) {
      if (m.pool[k] !== p || m.until[k] < w.lo || m.from[k] > w.hi) continue
      const a = Math.max(x(m.from[k]), LEFT), b = Math.min(x(m.until[k]), LEFT + w.width), wd = Math.max(b - a - (b - a > 4 ? 0.6 : 0), 0.8)
      const tall = Math.max(m.size[k] * scale - (m.size[k] * scale > 4 ? 0.6 : 0), 0.8), up = y + h - (m.at[k] + m.size[k]) * scale
      box(g, k, a, up, wd, tall); named(g, k, a, up, wd, tall); drawn++
      if (up < dash && up + tall > dash - NEAR) taken[0].fill(1, a - LEFT, b - LEFT + 1)
      if (up < dash + NEAR && up + tall > dash) taken[1].fill(1, a - LEFT, b - LEFT + 1)
    }
    if (pool.peak > 0 && pool.peakUs >= w.lo && pool.peakUs <= w.hi) {
      const at = clamp(x(pool.peakUs), LEFT + 1, LEFT + w.width - 1)
      g.strokeStyle = ink; g.setLineDash([4, 3]); g.lineWidth = 1
      g.beginPath(); g.moveTo(LEFT, Math.max(dash, y + 0.5)); g.lineTo(LEFT + w.width, Math.max(dash, y + 0.5)); g.stroke(); g.setLineDash([])
      g.fillStyle = ink; g.textAlign = 'left'; g.textBaseline = 'alphabetic'; g.font = '11px ' + font
      const say = `peak ${amount(pool, pool.peak)}`, spot = freeSpot(taken, at, dash, g.measureText(say).width, y, h)
      if (spot) g.fillText(say, ...spot)
      lanes.dataset[`peak${p}`] = spot ? spot.map(Math.round) : ''
      g.beginPath(); g.moveTo(at, dash + 1); g.lineTo(at - 4, dash - 6); g.lineTo(at + 4, dash - 6); g.fill()
    }
    if (pool.room < top) { g.strokeStyle = '#C8453B'; g.lineWidth = 1.2; g.beginPath(); g.moveTo(LEFT, y + h - pool.room * scale + 0.6); g.lineTo(LEFT + w.width, y + h - pool.room * scale + 0.6); g.stroke() }
    g.restore()
  }
  function drawPlan(found) {
    const { soft, font } = look, cores = m.pools.length / 2, g = cleared(plan, cores * (PLAN + HEAD + GAP)), full = plan.clientWidth, room = full - LEFT - RIGHT, share = room < 420 ? 0.66 : 0.72, [after, before] = room < 420 ? [8, 8] : [20, 54]
    const fitting = (most, ...says) => says.find(s => g.measureText(s).width <= most) ?? says.at(-1)
    boxes = []
    m.pools.forEach((pool, p) => {
      const isS = pool.name === 'SBUF', left = isS ? LEFT : LEFT + room * share + before, wide = isS ? room * share - after : full - RIGHT - left
      const y = HEAD + Math.floor(p / 2) * (PLAN + HEAD + GAP), top = range(pool), scale = wide / top
      g.fillStyle = soft; g.font = '11px ' + font; g.textBaseline = 'middle'; g.textAlign = 'left'
      const all = `${bytes(top)} of ${bytes(pool.room)}`
      g.fillText(isS ? fitting(wide, `${pool.label}: ${m.partitions} partitions × ${all}`, `${pool.label}: ${all}`, pool.label) : fitting(wide, `${pool.label}: ${pool.room} banks`, pool.label), left, y - 9)
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
    look = themed(root)
    tops = []
    let y = TOP
    for (const p of m.pools) { tops.push(y); y += BAND[p.name] + GAP }
    const g = cleared(lanes, y - GAP + AXIS)
    drawn = 0
    m.pools.forEach((_, p) => drawBand(g, p, tops[p]))
    w.axis(g, look, y - GAP)
    if (now >= w.lo && now <= w.hi) {
      g.fillStyle = look.ink; g.fillRect(x(now) - 0.75, TOP - 4, 1.5, y - GAP - TOP + 8)
      g.beginPath(); g.arc(x(now), TOP - 2, 3.5, 0, 7); g.fill()
    }
    const found = living(now)
    tell(found); drawPlan(found)
    lanes.dataset.window = `${w.lo} ${w.hi}`; lanes.dataset.drawn = drawn; lanes.dataset.now = now
    quiet.textContent = `${m.of} · ${m.values.toLocaleString('en')} lives of ${m.tiles.length.toLocaleString('en')} tiles${w.said}${said ? ' · ' + said : ''}`
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
      ` · ${time(m.until[k] - m.from[k])} from ${time(m.from[k])}, simulated${t.spilled ? ` · ${t.spilled}` : ''}`
  }
  function choose(tile, k = -1) {
    chosen = tile; line = 0
    says.textContent = tile < 0 ? '' : describe(k >= 0 ? k : living(now).find(i => m.tile[i] === tile) ?? m.tile.indexOf(tile))
    list.dataset.key = ''
    if (tile >= 0 && m.tiles[tile].line) select({ line: m.tiles[tile].line, tile })
    soon()
  }
  function hit(e) {
    if (!m) return -1
    const b = lanes.getBoundingClientRect(), px = e.clientX - b.left, py = e.clientY - b.top
    if (px < LEFT || px > LEFT + w.width) return -1
    for (let p = 0; p < m.pools.length; p++) {
      const h = BAND[m.pools[p].name]
      if (py < tops[p] || py > tops[p] + h) continue
      const at = (tops[p] + h - py) / h * range(m.pools[p]), when = w.us(px), slack = 1.5 * (w.hi - w.lo) / w.width
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
  function go(when) { now = clamp(when, 0, w.end); if (now < w.lo || now > w.hi) w.centre(now); soon() }
  function change(way) {                                              // to the next moment, or the one before, at which something changes
    let a = 0, b = m.moments.length
    while (a < b) { const c = (a + b) >> 1; if (way > 0 ? m.moments[c] > now + 1e-9 : m.moments[c] >= now - 1e-9) b = c; else a = c + 1 }
    go(way > 0 ? m.moments[a] ?? w.end : m.moments[a - 1] ?? 0)
  }
  const toPeak = () => go(m.pools[0].peak ? m.pools[0].peakUs : m.pools[1].peakUs)

  const found = e => { const k = hit(e); return k < 0 ? null : { k } }
  interactive(w, root, { hit: found, describe: ({ k }) => describe(k), around: () => now >= w.lo && now <= w.hi ? now : undefined,
    click: e => { const k = hit(e); go(w.us(e.clientX - lanes.getBoundingClientRect().left)); choose(k >= 0 ? m.tile[k] : -1, k) },
    keys: { ArrowLeft: () => change(-1), ArrowRight: () => change(1), Home: () => go(0), End: () => go(w.end), p: toPeak, Escape: () => { choose(-1); w.whole() } } })
  plan.addEventListener('click', e => {
    const b = plan.getBoundingClientRect(), px = e.clientX - b.left, py = e.clientY - b.top
    const found = boxes.find(([a, y, w, h]) => px >= a && px <= a + w && py >= y && py <= y + h)
    choose(found ? m.tile[found[4]] : -1, found ? found[4] : -1)
  })
  peak.addEventListener('click', toPeak); tick.addEventListener('change', soon)

  return {
    show(part, words = {}) {
      m = part && part.rows ? opened(part) : null
      chosen = -1; line = 0; said = words.of ?? ''
      if (!m) return
      w.whole(Math.max(1e-3, m.latency))
      now = m.pools[0].peak ? m.pools[0].peakUs : m.pools[1].peakUs
      title.textContent = m.title; says.textContent = m.words; list.dataset.key = ''
      paint()
    },
    line(number) { chosen = -1; line = number; list.dataset.key = ''; soon() },
    at(when) { go(when) },
    close() { stop(); root.remove() },
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
