/** The page: three modes on one stage, the keys, the colors, the banner. */
import { $, plural } from "./dom.js";
import { clean } from "./clean.js";
import { grid } from "./grid.js";
import { pressed } from "./keys.js";
import { one } from "./one.js";
import { side } from "./side.js";
import { store } from "./store.js";

const MODES = { one, grid, clean };
const THEMES = ["system", "dark", "light"];
let mode = null;

function go(name) {
  if (mode) MODES[mode].hide();
  mode = name;
  for (const other of Object.keys(MODES)) {
    $(`${other}-view`).hidden = other !== name;
    $(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
  }
  $("stage").setAttribute("aria-labelledby", `tab-${name}`);
  history.replaceState(null, "", `#${name}`);
  MODES[name].show();
}

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme-button").setAttribute("aria-label", `Colors: ${theme === "system" ? "as the system" : theme}`);
  localStorage.setItem("vcc-infuse-theme", theme);
}
const nextTheme = () => paint(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);

function drawBanner() {
  const waiting = store.waiting.length;
  const kept = waiting ? ` ${plural(waiting, "click")} ${waiting === 1 ? "is" : "are"} kept here and will be sent.` : "";
  $("banner").textContent = store.problem ? store.problem + kept : "";
  $("banner").hidden = !store.problem;
}

function draw() {
  const { state } = store;
  if (!state) return;
  side.draw(state);
  $("undo-button").disabled = !store.canUndo;
  $("redo-button").disabled = !store.canRedo;
  drawBanner();
  document.documentElement.dataset.waiting = String(store.waiting.length);
  if (mode) MODES[mode].state();
}

const COMMANDS = { i: () => go("one"), g: () => go("grid"), c: () => go("clean"), u: () => store.redo(), t: nextTheme };

/** Keys of the whole page; what is left goes to the mode. Nothing is taken from a field or a menu that has the focus. */
function onKey(event) {
  const target = event.target;
  if (event.isComposing || document.querySelector("dialog[open]") || !store.state) return;
  if (target.closest?.("input, select, textarea")) return;
  const held = event.ctrlKey || event.metaKey;
  const letter = event.key.toLowerCase();
  if (held && letter === "z") run(event, () => (event.shiftKey ? store.redo() : store.undo()));
  else if (held || event.altKey) return;
  else if (event.key === "?") run(event, () => $("help-dialog").showModal());
  else if (event.shiftKey && COMMANDS[letter]) run(event, COMMANDS[letter]);
  else if (event.shiftKey && /^[a-z]$/.test(letter)) return;
  else if (letter === "u") run(event, () => store.undo());
  else if (pushes(target, event)) return;
  else if (MODES[mode].key(pressed(event), event)) event.preventDefault();
}

function run(event, command) {
  event.preventDefault();
  command();
}

/** Enter and Space belong to a button that has the focus; on a tile only the mode knows what they mean. */
function pushes(target, event) {
  return (event.key === "Enter" || event.key === " ") && target.closest("button, a") && !target.closest(".tile");
}

function tabKeys(event) {
  const names = Object.keys(MODES);
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.stopPropagation();
  go(names[(names.indexOf(mode) + by + names.length) % names.length]);
  $(`tab-${mode}`).focus();
}

async function start() {
  paint(localStorage.getItem("vcc-infuse-theme") ?? "system");
  for (const part of [one, grid, clean, side]) part.start();
  for (const name of Object.keys(MODES)) $(`tab-${name}`).onclick = (event) => { go(name); if (event.detail) $("stage").focus({ preventScroll: true }); };
  document.querySelector(".tabs").addEventListener("keydown", tabKeys);
  $("undo-button").onclick = () => store.undo();
  $("redo-button").onclick = () => store.redo();
  $("theme-button").onclick = nextTheme;
  $("help-button").onclick = () => $("help-dialog").showModal();
  for (const dialog of document.querySelectorAll("dialog")) dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  document.addEventListener("keydown", onKey);
  store.addEventListener("state", draw);
  store.addEventListener("trouble", drawBanner);
  store.addEventListener("online", () => mode && MODES[mode].show());
  store.addEventListener("elsewhere", (event) => { for (const part of Object.values(MODES)) part.elsewhere(event.detail); });
  await store.start();
  draw();
  const wanted = location.hash.slice(1);
  go(wanted in MODES ? wanted : "one");
  document.documentElement.dataset.ready = "";
}

start();
