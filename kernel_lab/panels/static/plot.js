const ruler = document.createElement('canvas').getContext('2d')
const BUTTONS = 76                                      // pixels that the plot's buttons take, at the height of the title
function broken(layout, width) {                        // the title and the line under it, each in two where the panel is narrower than it
  const [title, below, more] = (layout.title?.text ?? '').split('<br>')
  const [, open, text] = /^(<span[^>]*>)(.*)<\/span>$/s.exec(below ?? '') ?? []
  if (!text || more || !width) return
  const parted = (text, font, most) => {
    ruler.font = `${font} ${layout.template?.layout?.font?.family ?? 'sans-serif'}`
    const long = s => ruler.measureText(new DOMParser().parseFromString(s, 'text/html').body.textContent).width > most
    const fits = by => { let parts = text.split(by); while (parts.length && long(parts.join(by))) parts.pop(); return parts.join(by) }
    const first = long(text) && (fits(' · ') || fits(' '))
    return first ? [first, text.slice(first.length).replace(/^( ·)? /, '')] : [text]
  }
  const titles = parted(title, '600 14px', width - 24 - BUTTONS), lines = parted(text, '11.5px', width - 32)
  const added = 19 * (titles.length - 1) + 16 * (lines.length - 1)
  if (!added) return
  layout.title.text = [...titles, ...lines.map(line => `${open}${line}</span>`)].join('<br>')
  layout.margin = { ...layout.margin, t: (layout.margin?.t ?? layout.template?.layout?.margin?.t ?? 62) + added }
  layout.height = (layout.height ?? 320) + added
  layout.title.y = 1 - 24 / layout.height
}

export default { render({ model, el }) {
  const plot = el.appendChild(document.createElement('div'))
  let Plotly, gone = false, width = 0                   // of the panel when it was drawn: 0 while a tab hides it
  const say = said => model.send(said)
  const everything = () => { draw(); say({ type: 'window', window: null }) }
  const moved = e => {
    const [lo, hi] = e['xaxis.range'] ?? [e['xaxis.range[0]'], e['xaxis.range[1]']]
    if (lo !== undefined) say({ type: 'window', window: [lo, hi] })
  }
  const draw = () => {
    if (!Plotly || gone) return
    if (!model.get('drawn')) return Plotly.purge(plot)
    const { data, layout } = JSON.parse(model.get('drawn'))
    broken(layout, width = plot.clientWidth)
    const home = { name: 'everything', title: 'Show everything', icon: Plotly.Icons.home, click: everything }
    const config = { ...model.get('config'), doubleClick: false, modeBarButtonsToAdd: [home] }
    if (plot._fullLayout) return Plotly.react(plot, data, layout, config)          // what listens stays, and so does half of what is drawn
    Plotly.newPlot(plot, data, layout, config)
    plot.on('plotly_relayout', moved)
    plot.on('plotly_doubleclick', everything)
    plot.on('plotly_click', e => e.points.slice(0, 1).forEach(p => say({ type: 'click', trace: p.curveNumber, y: p.y })))
  }
  const seen = new ResizeObserver(() => { if (!width && plot.clientWidth) draw() })
  seen.observe(plot)
  model.on('change:drawn', draw);
  (globalThis.kernelLabPlotly ??= Promise.withResolvers()).promise.then(found => { Plotly = found; draw() })
  return () => { gone = true; seen.disconnect(); model.off('change:drawn', draw); Plotly?.purge(plot) }
} }
