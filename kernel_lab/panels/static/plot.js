export default { render({ model, el }) {
  const plot = el.appendChild(document.createElement('div'))
  let Plotly, gone = false
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
    const home = { name: 'everything', title: 'Show everything', icon: Plotly.Icons.home, click: everything }
    Plotly.newPlot(plot, data, layout, { ...model.get('config'), doubleClick: false, modeBarButtonsToAdd: [home] })
    plot.on('plotly_relayout', moved)
    plot.on('plotly_doubleclick', everything)
    plot.on('plotly_click', e => e.points.slice(0, 1).forEach(p => say({ type: 'click', trace: p.curveNumber, y: p.y })))
  }
  model.on('change:drawn', draw);
  (globalThis.kernelLabPlotly ??= Promise.withResolvers()).promise.then(found => { Plotly = found; draw() })
  return () => { gone = true; model.off('change:drawn', draw); Plotly?.purge(plot) }
} }
