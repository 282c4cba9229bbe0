// The drawer at the side of the page shows a broker, a channel, the subscriber or the controls. It is not modal: the
// map stays usable. Esc closes it and returns the focus to the element that opened it.

import { byId } from "./dom.js";

export class Drawer {
  constructor() {
    this.dialog = byId("drawer");
    this.body = byId("drawer-body");
    this.title = byId("drawer-title");
    /** @type {HTMLElement|null} */ this.opener = null;
    /** @type {(() => void)|undefined} */ this.closed = undefined;
    this.key = "";
    byId("drawer-close").addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.dialog.open && !byId("sign-in").open) this.close();
    });
  }

  /**
   * @param {string} key identifies the content; a view with a late answer checks it with `shows`
   * @param {string} title
   * @param {Node[]} body
   * @param {() => void} [closed] called when the drawer closes or shows other content
   */
  open(key, title, body, closed) {
    this.closed?.();
    if (!this.dialog.open) {
      this.opener = /** @type {HTMLElement} */ (document.activeElement);
      this.dialog.show();
    }
    this.key = key;
    this.closed = closed;
    this.title.textContent = title;
    this.body.replaceChildren(...body);
    this.body.scrollTop = 0;
    this.title.focus({ preventScroll: true });
  }

  shows(key) {
    return this.dialog.open && this.key === key;
  }

  /** Hide the drawer while the user picks a place, because on a phone it covers the map. */
  aside(on) {
    this.dialog.classList.toggle("aside", on);
  }

  close() {
    if (!this.dialog.open) return;
    this.dialog.close();
    this.key = "";
    this.closed?.();
    this.closed = undefined;
    if (this.opener?.isConnected) this.opener.focus({ preventScroll: true });
    this.opener = null;
  }
}
