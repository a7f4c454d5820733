// Ask Perfetto's trace processor (WebAssembly, from a folder of its UI) about a trace: node trace_processor.js FOLDER TRACE SQL… prints a JSON list of tables.
const fs = require('fs'), path = require('path'), vm = require('vm')
const [folder, trace, ...queries] = process.argv.slice(2)

const varint = n => { const out = []; while (n > 127) { out.push(n % 128 | 128); n = Math.floor(n / 128) } return [...out, n] }
const chunk = (tag, bytes) => Buffer.concat([Buffer.from([...varint(tag * 8 + 2), ...varint(bytes.length)]), bytes])
const number = (tag, n) => Buffer.from([...varint(tag * 8), ...varint(n)])

function* fields(b) {                                       // (tag, value) of a message; bytes where it holds some
    let k = 0
    const read = () => { let n = 0n, s = 0n, c; do { c = b[k++]; n |= BigInt(c & 127) << s; s += 7n } while (c > 127); return n }
    while (k < b.length) {
        const key = Number(read()), tag = key >> 3, kind = key & 7
        if (kind === 0) yield [tag, BigInt.asIntN(64, read())]
        else if (kind === 1) { yield [tag, b.readDoubleLE(k)]; k += 8 }
        else { const n = Number(read()); yield [tag, b.subarray(k, k + n)]; k += n }
    }
}
const packed = (b, out) => { for (let k = 0; k < b.length;) { let n = 0n, s = 0n, c; do { c = b[k++]; n |= BigInt(c & 127) << s; s += 7n } while (c > 127); out.push(Number(BigInt.asIntN(64, n))) } }

function table(results) {                                   // rows as objects, from the batches of cells
    const names = [], rows = []
    for (const result of results) for (const [tag, value] of fields(result)) {
        if (tag === 1) names.push(value.toString())
        if (tag === 2 && value.length) throw new Error(value.toString())
        if (tag !== 3) continue
        const kinds = [], ints = [], floats = []
        let texts = []
        for (const [t, x] of fields(value)) {
            if (t === 1) packed(x, kinds)
            if (t === 2) packed(x, ints)
            if (t === 3) for (let k = 0; k < x.length; k += 8) floats.push(x.readDoubleLE(k))
            if (t === 5) texts = x.toString().split('\0')
        }
        const cells = kinds.map(k => k === 2 ? ints.shift() : k === 3 ? floats.shift() : k === 4 ? texts.shift() : null)
        while (cells.length) rows.push(cells.splice(0, names.length))
    }
    return rows.map(r => Object.fromEntries(r.map((x, k) => [names[k], x])))
}

const wasm = fs.readFileSync(path.join(folder, 'trace_processor.wasm'))
const self = { location: { href: 'file:///engine_bundle.js' } }
class XMLHttpRequest { open() {} send() { this.status = 200; this.response = wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) } }
const quiet = { log() {}, warn() {}, error() {}, info() {} }
const world = { self, XMLHttpRequest, location: self.location, console: quiet, importScripts() {}, WebAssembly, TextDecoder, TextEncoder, URL, setTimeout, clearTimeout, performance, Uint8Array, TypeError }
vm.runInNewContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), world)

const replies = [], port = { postMessage: b => replies.push(Buffer.from(b)) }
self.onmessage({ data: { enginePort: port } })
let seq = 0
const ask = (request, body = Buffer.alloc(0)) => port.onmessage({ data: new Uint8Array(chunk(1, Buffer.concat([number(1, seq++), number(2, request), body]))) })

async function main() {
    await new Promise(r => setTimeout(r, 50))               // the module is there now
    ask(1, chunk(101, fs.readFileSync(trace)))
    ask(2)
    const found = []
    for (const sql of queries) {
        replies.length = 0
        ask(3, chunk(103, chunk(1, Buffer.from(sql))))
        const results = []
        for (const [, message] of fields(Buffer.concat(replies))) for (const [tag, value] of fields(message)) if (tag === 203) results.push(value)
        found.push(table(results))
    }
    process.stdout.write(JSON.stringify(found))
    process.exit(0)
}
main().catch(e => { process.stderr.write(String(e && e.stack || e)); process.exit(1) })
