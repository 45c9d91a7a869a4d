/** A grid per class: 48 tiles that the model puts together; the person marks the wrong ones and confirms the rest. */
import { $, boundWords, clock, count, el, plural, say, tint } from "./dom.js";
import { classWithKey } from "./keys.js";
import { store } from "./store.js";
import { classSelect, neighbor, thumb } from "./tiles.js";

const TILES = 48;
const EDGE = 76;
const GAP = 8;
const LARGEST = 240;
let cls = null;
let purpose = "teach";
let batch = null;
let marks = new Map();
let boxes = [];
let at = -1;
let loading = false;
let onScreen = false;
let pickLine = "";

/** How many tiles a screen shows without scrolling, at most 48: what is confirmed must have been seen. */
function room(tiles = TILES) {
  const { clientWidth: width, clientHeight: height } = $("tiles");
  const fit = (length, edge) => Math.max(1, Math.floor((length + GAP) / (edge + GAP)));
  const wanted = Math.min(tiles, Math.max(12, fit(width, EDGE) * fit(height, EDGE)));
  let columns = Math.min(3, fit(width, EDGE));
  const edge = () => Math.floor((width - GAP) / columns) - GAP;
  while (edge() > EDGE && fit(height - GAP, edge()) * columns < wanted) columns += 1;
  return { wanted, columns, edge: Math.min(edge(), LARGEST) };
}

/** Fit the tiles to the window; only a change of the window or a new batch moves them. */
function fitTiles() {
  const { columns, edge } = room(boxes.length);
  $("tiles").style.setProperty("--columns", columns);
  $("tiles").style.setProperty("--edge", `${edge}px`);
}

/** A window that became too small gets a smaller random sample, not the upper part of this one; marks are never lost. */
function resized() {
  fitTiles();
  if (onScreen && batch && !marks.size && boxes.length > room().wanted) load();
}

/** The class with the most images to confirm. */
function best() {
  const classes = store.state.classes.filter((one) => one.id >= 0);
  return [...classes].sort((one, other) => other.suggested - one.suggested)[0]?.id ?? null;
}

async function load(id = cls) {
  if (loading) return;
  if (id !== cls) $("grid-bound").textContent = "";
  cls = id ?? best();
  drawPick();
  if (cls === null) return empty("No classes yet", "Label a few images one by one first: the grid fills as soon as the model knows two classes.", "one");
  loading = true;
  $("tiles").classList.add("loading");
  try {
    batch = await store.get(`/api/grid?class=${cls}&count=${room().wanted}&purpose=${purpose}`);
    draw();
  } catch (fault) {
    if (!fault.retry) empty("No grid", fault.message, "one");
  } finally {
    loading = false;
    $("tiles").classList.remove("loading");
  }
}

function empty(title, text, mode, next = null) {
  batch = null;
  boxes = [];
  const go = next ? () => load(next.id) : () => $(`tab-${mode}`).click();
  const label = next ? `Go on with ${next.name}` : "Label one by one";
  $("tiles").replaceChildren(el("div", { className: "message" }, el("h1", { textContent: title }), el("p", { textContent: text }), el("button", { textContent: label, onclick: go })));
  drawFoot();
}

function draw() {
  marks = new Map();
  at = -1;
  const name = store.classOf(cls)?.name ?? "";
  const { bound } = batch;
  $("grid-bound").textContent = bound ? `${boundWords(bound, "")}: ${count(bound.looked_at)} looked at, ${count(bound.wrong)} wrong` : "";
  if (!batch.tiles.length) return nothing(name);
  boxes = batch.tiles.slice(0, TILES).map(tile);
  fitTiles();
  $("tiles").replaceChildren(...boxes);
  $("tiles").scrollTop = 0;
  boxes[0].firstChild.tabIndex = 0;
  drawFoot();
  clock.lap();
  say(`${boxes.length} images that look like ${name}. Mark the wrong ones.`);
}

function nothing(name) {
  const next = store.state.classes.filter((one) => one.id !== cls && one.suggested > 0).sort((one, other) => other.suggested - one.suggested)[0];
  if (!store.state.model) return empty("The model is not ready", "It needs labels of two classes, and a moment to learn. Label one by one until then.", "one");
  empty(`No more ${name}`, "Everything that the model puts in this class has been judged.", "one", next);
}

function tile({ id }, index) {
  const face = el("button", { className: "face", tabIndex: -1, "aria-pressed": "false", "aria-label": `Image ${id}` }, thumb(id));
  face.onclick = (event) => { move(index, event.detail === 0); mark(id, !marks.has(id), null); };
  return el("div", { className: "tile", "data-id": id }, face);
}

/** Mark a tile as wrong (`right`: its true class, if the person says), or take the mark back. */
function mark(id, wrong, right) {
  if (wrong) marks.set(id, right);
  else marks.delete(id);
  const index = batch.tiles.findIndex((one) => one.id === id);
  const box = boxes[index];
  const face = box.firstChild;
  box.classList.toggle("wrong", wrong);
  face.setAttribute("aria-pressed", String(wrong));
  const named = right === null ? null : store.classOf(right);
  face.setAttribute("aria-label", `Image ${id}${wrong ? `, wrong${named ? `, is ${named.name}` : ""}` : ""}`);
  box.querySelector("select")?.remove();
  if (wrong) box.append(classSelect("wrong", `Right class of image ${id}`, { except: cls, value: right ?? "", onchange: (chosen) => mark(id, true, chosen) }));
  drawFoot();
}

function move(index, visible = true) {
  if (at >= 0 && boxes[at]) boxes[at].firstChild.tabIndex = -1;
  at = index;
  const face = boxes[at].firstChild;
  face.tabIndex = 0;
  if (visible) face.focus();
}

function drawFoot() {
  const tiles = batch?.tiles.length ?? 0;
  const right = tiles - marks.size;
  const name = store.classOf(cls)?.name ?? "";
  $("grid-confirm").classList.toggle("unused", !tiles);
  $("grid-confirm").replaceChildren(el("span", { textContent: right ? `Confirm ${right} as ${name}` : `None is ${name}` }), el("kbd", { textContent: "Enter" }));
  const more = tiles ? Math.max(0, batch.remaining - tiles) : 0;
  const left = tiles ? `${plural(marks.size, "tile")} marked wrong · ${more ? `${count(more)} more after these` : "these are the last"}` : "";
  if ($("grid-count").textContent !== left) $("grid-count").textContent = left;
}

async function confirm() {
  if (!batch || loading) return;
  const judged = batch.tiles.slice(0, TILES).map(({ id }) => ({ id, right: !marks.has(id), class: marks.get(id) ?? null }));
  const wrong = marks.size;
  const answer = store.act({ action: "grid", class: cls, batch: batch.batch, tiles: judged }, { reload: true });
  say(`${judged.length - wrong} confirmed, ${wrong} wrong`);
  batch = null;
  for (const box of boxes) box.classList.add("done");
  drawFoot();
  $("stage").focus({ preventScroll: true });
  await answer;
  if (onScreen) load();
}

/** The list of classes changes only while nobody has it open. */
function drawPick() {
  const pick = $("grid-class");
  const classes = store.state.classes.filter((one) => one.id >= 0);
  const line = JSON.stringify(classes.map((one) => [one.id, one.name, one.suggested]));
  if (line === pickLine && pick.value === String(cls)) return;
  if (document.activeElement === pick && pick.options.length) return;
  pickLine = line;
  pick.replaceChildren(...classes.map((one) => el("option", { value: one.id, textContent: `${one.name} (${count(one.suggested)})` })));
  pick.value = String(cls);
  pick.disabled = !classes.length;
  if (cls !== null) tint(pick, cls);
}

/** Unsure ones teach the model most; of sure ones a few grids are enough to promise something for all. */
function drawFrom(name) {
  purpose = name;
  for (const button of $("grid-purposes").children) button.setAttribute("aria-pressed", String(button.dataset.purpose === name));
  load();
  $("stage").focus({ preventScroll: true });
}

function step(by) {
  const ids = store.state.classes.filter((one) => one.id >= 0).map((one) => one.id);
  if (ids.length) load(ids[(ids.indexOf(cls) + by + ids.length) % ids.length]);
}

export const grid = {
  show() {
    onScreen = true;
    if (!batch || !store.classOf(cls)) load(store.classOf(cls) ? cls : null);
    else drawPick();
  },
  hide() { onScreen = false; },
  /** News of the model never touch the tiles on the screen. */
  state() {
    drawPick();
    if (!batch && !loading && !store.waiting.length && !boxes.length) load();
  },
  elsewhere() { batch = null; boxes = []; if (onScreen) load(store.classOf(cls) ? cls : null); },
  key(pressedKey, event) {
    if (pressedKey.startsWith("Arrow") && boxes.length) move(neighbor(boxes, at, pressedKey));
    else if (event.repeat) return false;
    else if (pressedKey === "Enter") confirm();
    else if (pressedKey === "PageUp") step(-1);
    else if (pressedKey === "PageDown") step(1);
    else if (!batch || at < 0) return false;
    else if (pressedKey === " ") mark(batch.tiles[at].id, !marks.has(batch.tiles[at].id), null);
    else if (classWithKey(pressedKey)) {
      const named = classWithKey(pressedKey).id;
      mark(batch.tiles[at].id, named !== cls, named === cls ? null : named);
    } else return false;
    return true;
  },
  start() {
    $("grid-class").onchange = (event) => { load(Number(event.target.value)); event.target.blur(); $("stage").focus({ preventScroll: true }); };
    $("grid-confirm").onclick = confirm;
    for (const button of $("grid-purposes").children) button.onclick = () => drawFrom(button.dataset.purpose);
    new ResizeObserver(resized).observe($("tiles"));
  },
};
