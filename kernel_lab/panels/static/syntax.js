// The colours of source: what the editor and the view of compiled kernels share. A panel's own script follows.
const WORDS = 'False|None|True|and|as|assert|break|class|continue|def|elif|else|for|from|if|import|in|is|lambda|not|or|pass|raise|return|while|with|yield'
const STRINGS = /"""[\s\S]*?"""|'{3}[\s\S]*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/.source
const KINDS = new RegExp(`(#[^\\n]*)|(${STRINGS})|(@[\\w.]+)|\\b(${WORDS})\\b|\\b(\\d[\\w.]*)\\b|\\b(nki|nisa|nl|triton|tl)\\b`, 'g')
const NAMES = ['', 'comment', 'string', 'decorator', 'keyword', 'number', 'module']
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }

function paint(pre, text) {
  pre.replaceChildren()
  let at = 0
  for (const m of text.matchAll(KINDS)) {
    if (m.index > at) pre.append(text.slice(at, m.index))
    if (m[0].includes('__global__')) pre.append(m[0])                   // a kernel in C++ is a text in Python's eyes: as it is, not all in one colour
    else pre.append(node('span', 'kl-' + NAMES[m.findIndex((g, i) => i > 0 && g !== undefined)], m[0]))
    at = m.index + m[0].length
  }
  pre.append(text.slice(at) + '\n ')
}
