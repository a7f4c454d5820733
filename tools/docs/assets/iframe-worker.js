// Pages read from a disk may not start workers: the search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.queue = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.importScripts = (...urls) => Promise.all(urls.map(u => this.load(inner, new URL(u, url).href)));
      inner.postMessage = data => this.dispatchEvent(Object.assign(new Event("message"), { data }));
      this.inner = inner;
      this.ready = this.load(inner, url);
    }
    load(inner, url) {
      return new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        Object.assign(script, { src: url, onload: resolve, onerror: reject });
        inner.document.head.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(Object.assign(new this.inner.Event("message"), { data })));
    }
    terminate() {}
  };
}
