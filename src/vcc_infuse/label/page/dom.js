/** Small helpers around the document. Names from outside are only ever text: nothing here parses HTML. */

export const $ = (id) => document.getElementById(id);

/** An element with properties (className, onclick, …), attributes (aria-…, role, data-…) and children. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export const key = (text) => el("kbd", { textContent: text.toUpperCase() });

export const icon = (name) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  node.append(use);
  return node;
};

/** A color per class that stays with its id; neighbors in the list differ most (golden angle). */
export function tint(node, id) {
  node.style.setProperty("--hue", String(Math.round(((id < 0 ? -1 - id : id) * 137.5 + 210) % 360)));
  return node;
}

const number = new Intl.NumberFormat("en-US");
export const count = (value) => number.format(value);
export const percent = (fraction) => `${(100 * fraction).toFixed(fraction > 0 && fraction < 0.0995 ? 1 : 0)} %`;
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

let fading = 0;
/** One line that goes away by itself; `bad` ones stay until clicked or replaced. */
export function toast(text, { bad = false } = {}) {
  clearTimeout(fading);
  const node = $("toast");
  node.textContent = text;
  node.classList.toggle("bad", bad);
  node.hidden = false;
  node.onclick = () => (node.hidden = true);
  if (!bad) fading = setTimeout(() => (node.hidden = true), 2600);
}

/** For screen readers only. */
export const say = (text) => ($("spoken").textContent = text);

/** "at most 3.1 % of these 412 labels are wrong (95 %)": the bound in words, or why there is none yet. */
export function boundWords(bound, none) {
  if (!bound || !bound.labels) return none;
  const share = (100 * bound.at_most).toFixed(1);
  return `At most ${share} % of these ${plural(bound.labels, "label")} are wrong (95 %)`;
}

/** Active seconds: stops while the tab is hidden, and while nobody has touched anything for a minute. */
class Clock {
  #spent = 0;
  #since = performance.now();
  #touched = performance.now();
  static IDLE = 60_000;
  constructor() {
    document.addEventListener("visibilitychange", () => this.#settle());
    for (const kind of ["pointerdown", "pointermove", "keydown", "wheel"])
      addEventListener(kind, () => { this.#settle(); this.#touched = performance.now(); }, { capture: true, passive: true });
  }
  #hidden = document.hidden;
  #settle() {
    const now = performance.now();
    if (!this.#hidden) this.#spent += Math.max(0, Math.min(now, this.#touched + Clock.IDLE) - this.#since);
    this.#since = now;
    if (this.#hidden && !document.hidden) this.#touched = now;
    this.#hidden = document.hidden;
  }
  /** Seconds since the last lap. */
  lap() {
    this.#settle();
    const seconds = this.#spent / 1000;
    this.#spent = 0;
    return Math.round(seconds * 1000) / 1000;
  }
}
export const clock = new Clock();
