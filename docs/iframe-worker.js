// Search in pages that were opened as files: browsers start no Worker there, so what it would run is
// run in a hidden frame. The theme looks for a class of this name.
if (location.protocol === "file:") {
  const load = (page, url) =>
    new Promise((resolve, reject) => {
      const script = page.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = () => reject(new Error(`cannot load ${url}`))
      page.head.append(script)
    })

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><title>search</title>"
      this.inside = new Promise((resolve) => {
        this.frame.onload = async () => {
          const inside = this.frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          inside.importScripts = async (...urls) => {
            for (const one of urls) await load(inside.document, one)
          }
          await load(inside.document, url)
          resolve(inside)
        }
      })
      document.body.append(this.frame)
    }

    async postMessage(data) {
      const inside = await this.inside
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
