/** Cleaning: doubtful labels, images of no class, "a new class?", near copies, and the labels of one class. */
import { $, clock, count, el, key, percent, plural, say, tint } from "./dom.js";
import { classNamed, classWithKey } from "./keys.js";
import { store } from "./store.js";
import { classSelect, neighbor, thumb } from "./tiles.js";

const TILES = 48;
const KINDS = {
  doubtful: ["Doubtful labels", "The model disagrees with these labels.", "No label looks doubtful."],
  unknown: ["Unknown", "These look like none of your classes.", "No image looks foreign."],
  new_class: ["A new class?", "These look alike, and like none of your classes. Leave out what does not belong, then name them.", "No group stands apart."],
  duplicates: ["Duplicates", "Near copies: one answer is enough for all of them.", "No near copies were found."],
};
let kind = "doubtful";
let review = null;
let offset = 0;
let total = 0;
let cards = [];
let at = -1;
let loading = false;
let stale = true;
let onScreen = false;

async function load() {
  if (loading) return;
  loading = true;
  stale = false;
  drawKinds();
  try {
    const path = review === null ? `/api/clean?kind=${kind}&count=${TILES}` : `/api/class/${review}?offset=${offset}&count=${TILES}`;
    const answer = await store.get(path);
    total = answer.total ?? answer.items.length;
    draw(answer.items.slice(0, TILES).map((item) => (review === null ? item : { ...item, class: review })));
  } catch (fault) {
    stale = true;
    if (!fault.retry) draw([]);
  } finally {
    loading = false;
  }
}

/** One card per group of images that get one answer together. */
function draw(items) {
  const groups = new Map();
  for (const item of items) {
    const name = item.group === null || item.group === undefined ? `image ${item.id}` : `group ${item.group}`;
    groups.set(name, [...(groups.get(name) ?? []), item]);
  }
  cards = [...groups.values()].map(card);
  at = -1;
  const words = review === null ? KINDS[kind] : ["", `What you and the grid have put into ${store.classOf(review)?.name ?? "this class"}.`, "No labels in this class."];
  $("clean-lead").textContent = words[1];
  if (cards.length) $("cards").replaceChildren(...cards.map((one) => one.box));
  else $("cards").replaceChildren(el("div", { className: "message" }, el("h1", { textContent: words[2] }), el("p", { textContent: hint() })));
  $("cards").scrollTop = 0;
  drawFoot();
  clock.lap();
}

function hint() {
  if (!store.state.model) return "Cleaning needs a model: label a few images of two classes first.";
  return "Come back after more labels, or look at another kind.";
}

function card(items) {
  const one = { items, out: new Set(), verdict: "", box: el("article", { className: items.length > 1 ? "card group" : "card", tabIndex: -1 }) };
  one.box.onfocus = () => (at = cards.indexOf(one));
  drawCard(one);
  return one;
}

function drawCard(one) {
  const faces = one.items.map((item) => face(one, item));
  const bottom = one.verdict
    ? [el("p", { className: "verdict", textContent: one.verdict })]
    : [el("div", { className: "choices" }, ...choices(one))];
  one.box.classList.toggle("done", Boolean(one.verdict));
  one.box.setAttribute("aria-label", `${plural(one.items.length, "image")}. ${one.verdict || facts(one)}`);
  one.box.replaceChildren(el("div", { className: "faces" }, ...faces), el("p", { className: "facts-line", textContent: facts(one) }), ...bottom);
}

function face(one, item) {
  if (one.items.length === 1) return el("div", { className: "face" }, thumb(item.id));
  const node = el("button", { className: "face", "aria-pressed": String(one.out.has(item.id)), "aria-label": `Image ${item.id}: leave out`, disabled: Boolean(one.verdict) }, thumb(item.id));
  node.onclick = () => {
    if (!one.out.delete(item.id)) one.out.add(item.id);
    node.setAttribute("aria-pressed", String(one.out.has(item.id)));
  };
  return node;
}

const labelOf = (one) => (one.items[0].class === null || one.items[0].class === undefined ? null : store.classOf(one.items[0].class));
const guessOf = (one) => (one.items[0].suggestion ? store.classOf(one.items[0].suggestion.class) : null);

function facts(one) {
  const [first] = one.items;
  const parts = [];
  const names = new Set(one.items.map((item) => (item.class === null || item.class === undefined ? null : store.classOf(item.class)?.name)).filter(Boolean));
  if (names.size > 1) parts.push(`labels differ: ${[...names].join(", ")}`);
  else if (names.size) parts.push(`labeled ${[...names][0]}`);
  if (first.source) parts.push(first.source === "person" ? "by you" : "by the grid");
  const guess = guessOf(one);
  if (guess && guess !== labelOf(one)) parts.push(`looks like ${guess.name} (${percent(first.suggestion.confidence)})`);
  return parts.join(" · ") || first.reason || "";
}

function choices(one) {
  const list = [];
  const own = labelOf(one);
  const guess = guessOf(one);
  const odd = review === null && ["unknown", "new_class"].includes(kind);
  const none = { className: odd && kind === "unknown" ? "primary" : "", textContent: "None of these", "aria-keyshortcuts": "X", onclick: () => foreign(one) };
  if (odd && kind === "new_class") list.push(naming(one));
  if (!own) list.push(el("button", none));
  if (guess && guess.id !== own?.id) list.push(tint(el("button", { className: odd ? "" : "primary", textContent: guess.name, onclick: () => answer(one, guess.id) }), guess.id));
  if (own) list.push(el("button", { textContent: "Keep", onclick: () => answer(one, own.id) }));
  list.push(classSelect("Class…", "Another class", { onchange: (id) => id !== null && answer(one, id) }));
  if (own && review !== null) list.push(el("button", { textContent: "Unlabel", onclick: () => send(one, { action: "unlabel" }, "label taken away") }));
  return list;
}

function naming(one) {
  const field = el("input", { type: "text", maxLength: 100, placeholder: "Name the class…", "aria-label": "Name of the new class" });
  const form = el("form", {}, field, el("button", { className: "primary", textContent: "Add" }));
  form.onsubmit = (event) => {
    event.preventDefault();
    const id = classNamed(field.value);
    if (id !== null) answer(one, id);
  };
  return form;
}

function answer(one, id) {
  const cls = store.classOf(id);
  send(one, { action: "label", class: cls?.id ?? id, audit: false, suggested: one.items[0].suggestion?.class ?? null }, cls?.name ?? "");
}
const foreign = (one) => send(one, { action: "foreign" }, "none of these classes");

/** One answer for all images of the card that were not left out; it stays where it is, and one undo takes it back. */
function send(one, body, verdict) {
  const kept = one.items.filter((item) => !one.out.has(item.id));
  if (one.verdict || !kept.length) return;
  const set = (text) => { one.verdict = text; drawCard(one); drawFoot(); };
  store.actTogether(kept.map((item) => ({ ...body, image: item.id })), { undone: () => set(""), redone: () => set(verdict) });
  set(verdict);
  say(`${plural(kept.length, "image")}: ${verdict}`);
  const next = cards.findIndex((other, i) => i > cards.indexOf(one) && !other.verdict);
  if (next >= 0) move(next);
  else $("clean-more").focus({ preventScroll: true });
}

function move(index) {
  at = index;
  cards[at].box.focus({ preventScroll: true });
  cards[at].box.scrollIntoView({ block: "nearest" });
}

function drawFoot() {
  const open = cards.filter((one) => !one.verdict).length;
  const more = review !== null && offset + TILES < total;
  $("clean-count").textContent = cards.length ? `${count(cards.length - open)} of ${count(cards.length)} answered${more ? ` · ${count(total)} in all` : ""}` : "";
  $("clean-more").textContent = more ? "Next page" : "Look again";
}

function drawKinds() {
  const pressed = (name) => String(review === null && name === kind);
  const buttons = Object.entries(KINDS).map(([name, [title]]) => el("button", { textContent: title, "aria-pressed": pressed(name), onclick: () => open(name) }));
  if (review !== null) buttons.push(el("button", { textContent: store.classOf(review)?.name ?? "", "aria-pressed": "true" }));
  $("clean-kinds").replaceChildren(...buttons);
}

function open(name) {
  kind = name;
  review = null;
  offset = 0;
  load();
}

/** Look at the labels of one class. */
export function reviewClass(id) {
  review = id;
  offset = 0;
  stale = true;
}

export const clean = {
  show() { onScreen = true; if (stale) load(); },
  hide() { onScreen = false; stale = true; },
  state() { if (!cards.length && !loading && !stale && kind !== null) drawFoot(); },
  elsewhere() { stale = true; if (onScreen) load(); },
  key(pressedKey, event) {
    const one = cards[at];
    const cls = classWithKey(pressedKey);
    if (pressedKey.startsWith("Arrow") && cards.length) move(neighbor(cards.map((other) => other.box), at, pressedKey));
    else if (event.repeat || !one || one.verdict) return false;
    else if (pressedKey === "Enter" && guessOf(one)) answer(one, guessOf(one).id);
    else if (pressedKey === "k" && labelOf(one)) answer(one, labelOf(one).id);
    else if (pressedKey === "x" && !labelOf(one)) foreign(one);
    else if (cls) answer(one, cls.id);
    else return false;
    return true;
  },
  start() {
    $("clean-more").onclick = () => {
      offset = review !== null && offset + TILES < total ? offset + TILES : 0;
      load();
    };
  },
};
