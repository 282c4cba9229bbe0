// The drawer: one place at the side where a broker, a channel, the subscriber or the controls are shown. Not modal: the
// map stays usable beside it. Esc closes it, and the focus goes back to where it came from.

import { byId } from "./dom.js";

/** @typedef {{title: string, body: Node[], closed?: () => void}} Content */

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
   * @param {string} key what is shown; a view that comes late with an answer asks whether it still is
   * @param {string} title
   * @param {Node[]} body
   * @param {() => void} [closed] called when it is closed or shows something else
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

  /** On a phone it covers the map: out of sight, not closed, while a place is picked. */
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
