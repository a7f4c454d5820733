export default { initialize({ model }) {
  const take = ({ type, name }, [bytes]) => {            // a file that Python made: the browser keeps it
    if (type !== 'file' || !bytes) return
    const url = URL.createObjectURL(new Blob([bytes], { type: 'text/html' }))
    const link = Object.assign(document.createElement('a'), { href: url, download: name })
    document.body.append(link)
    link.click()
    link.remove()
    setTimeout(() => URL.revokeObjectURL(url), 60_000)
  }
  model.on('msg:custom', take)
  return () => model.off('msg:custom', take)
} }
