const ruler = document.createElement('canvas').getContext('2d')
const BUTTONS = 76                                      // pixels that the plot's buttons take, at the height of the title
function broken(layout, width) {                        // the title and the line under it, each in as many lines as the panel is too narrow for
  const [title, below, more] = (layout.title?.text ?? '').split('<br>')
  const [, open, text] = /^(<span[^>]*>)(.*)<\/span>$/s.exec(below ?? '') ?? []
  if (!text || more || !width) return
  const parted = (text, font, most) => {
    ruler.font = `${font} ${layout.template?.layout?.font?.family ?? 'sans-serif'}`
    const long = s => ruler.measureText(new DOMParser().parseFromString(s, 'text/html').body.textContent).width > most
    const fits = by => { let parts = text.split(by); while (parts.length && long(parts.join(by))) parts.pop(); return parts.join(by) }
    const first = long(text) && (fits(' · ') || fits(' '))
    return first ? [first, ...parted(text.slice(first.length).replace(/^( ·)? /, ''), font, most)] : [text]
  }
  const titles = parted(title, '600 14px', width - 24 - BUTTONS), lines = parted(text, '11.5px', width - 32)
  const added = 19 * (titles.length - 1) + 16 * (lines.length - 1)
  if (!added) return
  layout.title.text = [...titles, ...lines.map(line => `${open}${line}</span>`)].join('<br>')
  layout.margin = { ...layout.margin, t: (layout.margin?.t ?? layout.template?.layout?.margin?.t ?? 62) + added }
  layout.height = (layout.height ?? 320) + added
  layout.title.y = 1 - 24 / layout.height
}
