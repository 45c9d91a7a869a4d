/** The side: progress, error, classes, model, export. On a phone it is a sheet at the bottom. */
import { $, boundWords, count, el, icon, key, percent, plural, tint, toast } from "./dom.js";
import { reviewClass } from "./clean.js";
import { RESERVED } from "./keys.js";
import { store } from "./store.js";

const FORMATS = {
  csv: ["Labels", "labels.csv and audit.csv: vcc-infuse train reads them"],
  run: ["Run folder", "model, report and labels: vcc-infuse predict reads it"],
  "label-studio": ["Label Studio", "tasks with annotations and predictions"],
  fiftyone: ["FiftyOne", "data and labels.json"],
  cleanlab: ["cleanlab", "labels, probabilities out of fold, features"],
  huggingface: ["Hugging Face", "imagefolder with metadata.csv"],
};
let edited = null;

const total = (state, part) => state.classes.reduce((sum, one) => sum + one[part], 0);

/** Fixed rows: a number may change, its place may not. */
function facts(state) {
  const error = state.error;
  const gain = state.gain;
  const interval = (low, high) => `${(100 * low).toFixed(high < 0.0995 ? 1 : 0)}–${percent(high)}`;
  return [
    ["Labeled", count(state.labeled), `of ${plural(state.images, "image")}${state.foreign ? `, ${count(state.foreign)} of no class` : ""}`],
    ["Error", error ? percent(error.value) : "–", error ? `${interval(error.low, error.high)} (95 %), ${plural(error.n, "audit image")}` : `${plural(state.audited, "audit image")} so far`],
    ["Confirmed in grids", count(total(state, "confirmed")), boundWords(state.bound, total(state, "confirmed") ? "Too few seen for a bound on the rest of a class" : "nothing yet")],
    ["Time", minutes(state.minutes), gain ? `${gain.minutes} more: error ${percent(gain.error)} (${interval(gain.low, gain.high)})` : pace(state)],
  ];
}

const minutes = (value) => (value < 1 ? `${Math.round(60 * value)} s` : `${value.toFixed(value < 10 ? 1 : 0)} min`);
const pace = (state) => (state.labeled ? `${((60 * state.minutes) / state.labeled).toFixed(1)} s per label` : "counted while you look");

function drawFacts(state) {
  const rows = facts(state);
  if ($("facts").children.length !== rows.length)
    $("facts").replaceChildren(...rows.map(([name]) => el("div", { className: name === "Confirmed in grids" ? "two" : "" }, el("dt", { textContent: name }), el("dd", {}, el("b"), el("small")))));
  rows.forEach(([, value, note], i) => {
    const [big, small] = $("facts").children[i].lastChild.children;
    if (big.textContent !== value) big.textContent = value;
    if (small.textContent !== note) small.textContent = note;
  });
  const share = (value) => `${state.images ? (100 * value) / state.images : 0}%`;
  $("meter-labeled").style.width = share(total(state, "labels"));
  $("meter-confirmed").style.width = share(total(state, "confirmed"));
  $("meter").setAttribute("aria-valuemax", state.images);
  $("meter").setAttribute("aria-valuenow", state.labeled);
}

function drawModel(state) {
  const { model } = state;
  const used = state.classes.filter((one) => one.labels + one.confirmed).length;
  let text = used < 2 ? "The model starts with labels of two classes" : "The model learns its first labels";
  if (model?.labels) text = `Model of ${plural(model.labels, "label")}, learned in ${model.seconds.toFixed(1)} s`;
  if (state.phase === "embedding") text = `Reading photos: ${count(state.embedded)} of ${count(state.images)}`;
  if (state.message) text = state.message;
  $("model").textContent = text;
  $("model").classList.toggle("busy", Boolean(model?.training) || state.phase === "embedding");
  $("model").title = model?.training ? "Learning from your newest labels" : "";
  const error = state.error ? ` · error ${percent(state.error.value)}` : "";
  $("sheet-line").textContent = `${count(state.labeled)} of ${count(state.images)} labeled${error}`;
}

/** Rows are changed in place, so that a count never takes the focus away. */
function drawClasses(state) {
  const list = $("classes");
  const old = new Map([...list.children].map((row) => [row.dataset.id, row]));
  const rows = state.classes.map((one) => fill(old.get(String(one.id)) ?? row(one.id), one));
  if (rows.length !== list.children.length || rows.some((node, i) => list.children[i] !== node)) list.replaceChildren(...rows);
  if (!rows.length) list.replaceChildren(el("li", { className: "none", textContent: "None yet: type a name for the first image." }));
}

function row(id) {
  const edit = el("button", { className: "icon", onclick: () => openClass(id) }, icon("more"));
  return tint(el("li", { "data-id": id }, el("kbd"), el("span", { className: "class-name" }), el("span", { className: "counts" }), edit), id);
}

function fill(node, one) {
  const [cap, name, counts, edit] = node.children;
  const labels = count(one.labels + one.confirmed);
  if (cap.textContent !== one.key.toUpperCase()) cap.textContent = one.key.toUpperCase();
  if (name.textContent !== one.name) { name.textContent = one.name; name.title = one.name; }
  if (counts.textContent !== labels) counts.textContent = labels;
  counts.title = `${one.labels} by you, ${one.confirmed} confirmed, ${one.suggested} suggested`;
  edit.setAttribute("aria-label", `Edit class ${one.name}, ${labels} labels`);
  return node;
}

function openClass(id) {
  const cls = store.classOf(id);
  if (!cls) return;
  edited = id;
  $("class-title").textContent = cls.name;
  $("class-name").value = cls.name;
  $("class-key").value = cls.key;
  $("class-fault").textContent = "";
  const others = store.state.classes.filter((one) => one.id !== cls.id && one.id >= 0);
  $("merge-form").hidden = !others.length;
  $("merge-into").replaceChildren(el("option", { value: "", textContent: "…" }), ...others.map((one) => el("option", { value: one.id, textContent: one.name })));
  $("class-dialog").showModal();
}

function saveClass(event) {
  event.preventDefault();
  const cls = store.classOf(edited);
  const name = $("class-name").value.trim().replace(/\s+/g, " ");
  const wanted = $("class-key").value.trim().toLowerCase();
  const others = store.state.classes.filter((one) => one.id !== cls.id);
  let fault = "";
  if (others.some((one) => one.name.toLowerCase() === name.toLowerCase())) fault = `There is a class ${name} already: merge them instead.`;
  else if (wanted && !/^[1-9\p{L}]$/u.test(wanted)) fault = "A key is a digit from 1 to 9 or a letter.";
  else if (RESERVED.includes(wanted) && wanted) fault = `${wanted.toUpperCase()} is a key of the page itself.`;
  else if (wanted && others.some((one) => one.key === wanted)) fault = `${wanted.toUpperCase()} is the key of another class.`;
  $("class-fault").textContent = fault;
  if (fault || !name) return;
  if (name !== cls.name) store.act({ action: "rename", class: cls.id, name });
  if (wanted !== cls.key) store.act({ action: "key", class: cls.id, key: wanted });
  $("class-dialog").close();
}

function merge(event) {
  event.preventDefault();
  const cls = store.classOf(edited);
  const into = store.classOf(Number($("merge-into").value));
  store.act({ action: "merge", class: cls.id, into: into.id }, { reload: true });
  toast(`${cls.name} is now part of ${into.name}`);
  $("class-dialog").close();
}

async function write(format, button) {
  button.disabled = true;
  $("export-answer").textContent = "Writing…";
  try {
    const { files, note } = await store.post("/api/export", { format });
    $("export-answer").textContent = `Written: ${files.join(", ")}${note ? ` (${note})` : ""}`;
  } catch (fault) {
    $("export-answer").textContent = `Not written: ${fault.message}`;
  }
  button.disabled = false;
}

export const side = {
  draw(state) {
    $("folder").textContent = state.folder;
    $("folder").title = state.folder;
    drawFacts(state);
    drawModel(state);
    drawClasses(state);
  },
  start() {
    $("class-form").onsubmit = saveClass;
    $("merge-form").onsubmit = merge;
    $("class-review").onclick = () => { reviewClass(edited); $("class-dialog").close(); $("tab-clean").click(); };
    $("export-button").onclick = () => { $("export-answer").textContent = ""; $("export-dialog").showModal(); };
    $("formats").replaceChildren(...Object.entries(FORMATS).map(([format, [title, text]]) => {
      const button = el("button", { "data-format": format }, el("b", { textContent: title }), el("small", { textContent: text }));
      button.onclick = () => write(format, button);
      return button;
    }));
    $("sheet-button").onclick = () => {
      const open = $("side").classList.toggle("open");
      $("sheet-button").setAttribute("aria-expanded", String(open));
    };
  },
};
