// plotly.js travels packed. `withPlotly(f)` calls f as soon as it is unpacked; where a browser is too old for that (before 2023), it says so.
const withPlotly = (() => {
  const bytes = Uint8Array.from(atob(PACKED), c => c.charCodeAt(0))
  const unpacked = async () => {
    const script = document.createElement('script')
    script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text()
    document.head.append(script)
  }
  const there = unpacked()
  there.catch(() => document.body.prepend('This browser cannot unpack the figures of this page; a newer one can.'))
  return draw => there.then(draw)
})()
