export default { initialize({ model }) {
  const library = globalThis.kernelLabPlotly ??= Promise.withResolvers()
  let timer
  const take = async (said, [text]) => {
    if (library.found) return
    library.found = true
    const url = URL.createObjectURL(new Blob([text], { type: 'text/javascript' }))
    await import(url)
    URL.revokeObjectURL(url)
    library.resolve(globalThis.Plotly)
  }
  const ask = wait => {                                 // again and again: a kernel can miss what comes while the widget is made
    if (library.found || wait > 60_000) return
    model.send({ type: 'library' })
    timer = setTimeout(ask, wait, 2 * wait)
  }
  model.on('msg:custom', take)
  ask(2000)
  return () => { clearTimeout(timer); model.off('msg:custom', take) }
} }
