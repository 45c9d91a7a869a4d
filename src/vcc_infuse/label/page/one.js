/** One image at a time: the suggestion, the classes, and the next twenty images already here. */
import { $, clock, count, el, key, percent, plural, say, tint, toast } from "./dom.js";
import { classNamed, classWithKey } from "./keys.js";
import { store } from "./store.js";

const HOLD = 20;
const REFILL_BELOW = 14;
const SETTLED = 3;
// As small a p value has one image in twenty that does belong to a class.
const UNLIKELY = 0.05;

let items = [];
let drawn = null;
let asking = false;
let exhausted = false;
let modelVersion = null;
let onScreen = false;
let padLine = "";
const pictures = new Map();

/** The picture of an item, loading since it was first asked for. */
function picture(id) {
  if (!pictures.has(id) || pictures.get(id).broken) {
    const node = el("img", { alt: `Image ${id}`, draggable: false, decoding: "async", className: "picture" });
    node.ready = new Promise((resolve) => {
      node.onload = () => { node.loaded = true; resolve(); };
      node.onerror = () => { node.broken = true; resolve(); };
    });
    node.src = `/image/${id}`;
    pictures.set(id, node);
  }
  return pictures.get(id);
}

function forget() {
  const wanted = new Set(items.map((item) => item.id));
  for (const id of pictures.keys()) if (pictures.size > 2 * HOLD && !wanted.has(id)) pictures.delete(id);
}

/** Hold twenty images. What is on the screen and the next two stay as they are, whatever the model has learned since. */
async function refill() {
  if (asking || items.length >= REFILL_BELOW || !store.server) return;
  asking = true;
  try {
    const skip = [...items.map((item) => item.id), ...store.pendingImages];
    const answer = await store.get(`/api/next?count=${HOLD - items.length}&skip=${skip.join(",")}`);
    const known = new Set([...items.map((item) => item.id), ...store.pendingImages]);
    items.push(...answer.items.filter((item) => !known.has(item.id)));
    exhausted = !items.length;
    for (const item of items) picture(item.id);
    forget();
    draw();
  } catch {
    // The banner says what is wrong; the view asks again when the connection is back.
  } finally {
    asking = false;
  }
}

function advance() {
  items.shift();
  for (const item of items.slice(0, SETTLED)) picture(item.id).decode().catch(() => {});
  draw();
  refill();
}

/** What can be answered now: an image that the person can see. */
function current() {
  const item = items[0];
  return item && picture(item.id).loaded ? item : null;
}

function decide(body, words) {
  const item = current();
  if (!item) {
    if (items.length) say("The image is still loading");
    return;
  }
  store.act({ ...body, image: item.id }, {
    undone: () => { items = [item, ...items.filter((other) => other.id !== item.id)]; draw(); },
    redone: () => { if (items[0]?.id === item.id) advance(); },
  });
  advance();
  say(`${words}. ${spokenSuggestion()}`);
}

export function choose(id) {
  const item = current();
  if (!item) return;
  decide({ action: "label", class: store.classOf(id)?.id ?? id, audit: item.audit, suggested: item.suggestion?.class ?? null },
    `Labeled ${store.classOf(id)?.name ?? ""}`);
}

const suggested = (item) => (item && !item.audit && item.suggestion ? store.classOf(item.suggestion.class) : null);

function accept() {
  const item = current();
  const cls = suggested(item);
  if (cls) choose(cls.id);
  else if (item?.audit) toast("Audit images come without a suggestion: choose a class");
  else if (item) toast("No suggestion yet: choose a class, or type a name");
}

function spokenSuggestion() {
  const item = items[0];
  if (!item) return "No image left";
  if (item.audit) return "Audit image, without suggestion";
  const cls = suggested(item);
  return cls ? `Suggestion: ${cls.name}, ${percent(item.suggestion.confidence)}` : "No suggestion";
}

/** Show the current item. Only a decision of the person changes which one that is. */
function draw() {
  const item = items[0] ?? null;
  if (!onScreen || (drawn === item && item)) return;
  drawn = item;
  $("one-view").classList.toggle("empty", !item);
  $("one-view").classList.toggle("audit", Boolean(item?.audit));
  if (!item) {
    $("frame").replaceChildren(nothing());
    $("answer").replaceChildren();
    return;
  }
  show(item);
  drawAnswer(item);
}

function show(item) {
  const node = picture(item.id);
  const shown = () => {
    if (drawn !== item) return;
    // A thumbnail-sized photo is not blown up to a blur.
    node.style.maxWidth = `${Math.max(320, node.naturalWidth * 6)}px`;
    $("frame").classList.remove("loading");
    clock.lap();
  };
  $("frame").replaceChildren(node, ...badges(item));
  $("frame").classList.toggle("loading", !node.loaded);
  if (node.loaded) shown();
  else node.ready.then(() => (node.broken ? broken(item) : shown()));
}

function broken(item) {
  pictures.delete(item.id);
  if (drawn !== item) return;
  $("frame").classList.remove("loading");
  const again = () => { drawn = null; draw(); };
  const leave = () => { items.shift(); store.act({ action: "skip", image: item.id }); draw(); refill(); };
  $("frame").replaceChildren(message("This image did not load", "The connection may be slow, or the file cannot be read.",
    el("button", { textContent: "Try again", onclick: again }), el("button", { textContent: "Skip it", onclick: leave })));
}

function badges(item) {
  const list = [];
  if (item.audit) list.push(el("span", { className: "badge strong", textContent: "Audit image" }));
  if (item.copies > 0) list.push(el("span", { className: "badge", textContent: plural(item.copies, "near copy", "near copies") }));
  return list.length ? [el("p", { className: "badges" }, ...list)] : [];
}

function drawAnswer(item) {
  const cls = suggested(item);
  if (!cls) {
    $("answer").replaceChildren(el("p", { className: "sentence", textContent: whyNoSuggestion(item) }));
    return;
  }
  const { confidence } = item.suggestion;
  const sure = confidence > 0.995 ? "> 99 %" : percent(confidence);
  const meter = el("i");
  meter.style.width = `${100 * confidence}%`;
  const button = el("button", { className: "primary accept", onclick: accept, "aria-keyshortcuts": "Enter" },
    el("span", { className: "guess", textContent: cls.name }), el("span", { className: "share", textContent: sure }),
    el("kbd", { textContent: "Enter" }), el("span", { className: "sureness" }, meter));
  button.setAttribute("aria-label", `Accept the suggestion ${cls.name}, ${sure} sure`);
  const others = (item.alternatives ?? []).filter((other) => other.class !== cls.id && store.classOf(other.class)).slice(0, 3);
  const hint = item.unknown_p !== null && item.unknown_p <= UNLIKELY ? "Unlike all that you have labeled: perhaps none of these" : item.reason;
  $("answer").replaceChildren(tint(button, cls.id), el("div", { className: "others" },
    ...others.map((other) => chip(store.classOf(other.class), percent(other.confidence)))),
    el("p", { className: "why", textContent: hint ?? "" }));
}

function whyNoSuggestion(item) {
  const used = store.state.classes.filter((one) => one.labels + one.confirmed).length;
  if (!store.state.classes.length) return "Name what you see: the first name is the first class.";
  if (item.audit) return "Drawn at random and shown without a suggestion: your answer measures the error.";
  return used < 2 ? "No suggestion yet. The model starts with the first labels of two classes." : "No suggestion for this one yet: the model is learning.";
}

function chip(cls, note = "") {
  const node = el("button", { className: "chip", onclick: (event) => press(event, cls.id), title: cls.name },
    cls.key ? key(cls.key) : "", el("span", { textContent: cls.name }), note ? el("small", { textContent: note }) : "");
  return tint(node, cls.id);
}

/** After a click with the pointer Enter must mean "accept" again, not "press that button once more". */
function press(event, id) {
  choose(id);
  if (event.detail) $("stage").focus({ preventScroll: true });
}

function message(title, text, ...buttons) {
  return el("div", { className: "message" }, el("h1", { textContent: title }), el("p", { textContent: text }), ...buttons);
}

function nothing() {
  const state = store.state;
  if (state?.phase === "embedding")
    return message("Looking at your photos", `${count(state.embedded)} of ${count(state.images)} are read. The first ones appear in a moment.`);
  if (!exhausted) return message("One moment", "The next images are on their way.");
  const go = (mode) => () => $(`tab-${mode}`).click();
  return message("Nothing left to ask", "Every image has an answer. Look through the doubtful ones, or export the labels.",
    el("button", { textContent: "Clean up", onclick: go("clean") }), el("button", { textContent: "Export", onclick: () => $("export-button").click() }));
}

/** The classes as buttons; while a name is typed, those that match it. */
function drawPad() {
  const typed = $("name").value.trim().toLowerCase();
  const classes = store.state.classes.filter((one) => one.name.toLowerCase().includes(typed));
  const exact = classes.some((one) => one.name.toLowerCase() === typed);
  $("name-hint").replaceChildren(...(typed ? [el("span", { textContent: exact || !typed ? "choose " : "add " }), key("Enter")] : [key("N")]));
  const line = JSON.stringify([typed, classes.map((one) => [one.id, one.name, one.key])]);
  if (line === padLine) return;
  padLine = line;
  $("pad").replaceChildren(...classes.map((one) => chip(one)));
  if (drawn) drawAnswer(drawn);
}

function submitName(event) {
  event.preventDefault();
  const field = $("name");
  if (!field.value.trim()) return accept();
  if (!current()) return;
  const id = classNamed(field.value);
  field.value = "";
  choose(id);
  field.blur();
  $("stage").focus({ preventScroll: true });
  drawPad();
}

export const one = {
  show() {
    onScreen = true;
    drawn = undefined;
    drawPad();
    draw();
    refill();
    if (!store.state.classes.length) $("name").focus({ preventScroll: true });
  },
  hide() { onScreen = false; },
  /** News from the server: new suggestions for what nobody has seen yet, never for what is on the screen. */
  state() {
    drawPad();
    const { model } = store.server;
    const version = model ? `${model.version} ${model.seconds}` : null;
    if (version !== modelVersion) {
      modelVersion = version;
      items = items.slice(0, SETTLED);
    }
    if (!items.length) { drawn = undefined; draw(); }
    refill();
  },
  /** Someone else acted, or an undo went further back than this page: ask again, keep the image on the screen. */
  elsewhere(answer) {
    const back = answer?.again ? [answer.again] : [];
    items = [...back, ...items.slice(0, 1).filter((item) => item.id !== back[0]?.id)];
    draw();
    refill();
  },
  key(pressedKey, event) {
    if (event.repeat) return false;
    const cls = classWithKey(pressedKey);
    if (pressedKey === "Enter") accept();
    else if (pressedKey === "s") decide({ action: "skip" }, "Skipped");
    else if (pressedKey === "x") decide({ action: "foreign" }, "None of these classes");
    else if (cls) choose(cls.id);
    else if (pressedKey === "n" || pressedKey === "/") $("name").focus();
    else if (/^\p{L}$/u.test(pressedKey)) { $("name").focus(); return false; }
    else return false;
    return true;
  },
  start() {
    $("name-form").onsubmit = submitName;
    $("name").oninput = drawPad;
    $("name").onkeydown = (event) => {
      if (event.key !== "Escape") return;
      $("name").value = "";
      drawPad();
      $("stage").focus({ preventScroll: true });
    };
    const tool = (id, body, words) => {
      $(id).onclick = (event) => {
        decide(body, words);
        if (event.detail) $("stage").focus({ preventScroll: true });
      };
    };
    tool("skip-button", { action: "skip" }, "Skipped");
    tool("foreign-button", { action: "foreign" }, "None of these classes");
  },
};
