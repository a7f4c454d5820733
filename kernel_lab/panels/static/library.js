export default { initialize({ model }) {
  const library = globalThis.kernelLabPlotly ??= Promise.withResolvers()
  model.on('msg:custom', async (said, [text]) => {
    if (library.found) return
    library.found = true
    const url = URL.createObjectURL(new Blob([text], { type: 'text/javascript' }))
    await import(url)
    URL.revokeObjectURL(url)
    library.resolve(globalThis.Plotly)
  })
  if (!library.found) model.send({ type: 'library' })
} }
