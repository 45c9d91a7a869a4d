/**
 * What the server says, and the clicks on their way to it.
 *
 * A click gets a uuid, is kept in the tab's storage and is sent again and again until the server answers; the server does
 * a repeated uuid only once. So a lost connection or a reload loses nothing, and an answer is never waited for on the screen.
 */
import { clock, say, toast } from "./dom.js";

const STORAGE = "vcc-infuse-label-waiting";
const TIMEOUT = 20_000;

class Store extends EventTarget {
  server = null;
  waiting = JSON.parse(sessionStorage.getItem(STORAGE) ?? "[]");
  done = [];
  undone = [];
  problem = "";
  #made = new Map();
  #temporary = Math.min(0, ...this.waiting.map((click) => click.temporary ?? 0));
  #sending = false;
  #held = null;
  #version = 0;
  #wake = () => {};

  /** The state as the person should see it: the server's, plus the clicks that it has not answered yet. */
  get state() {
    if (!this.server) return null;
    const state = structuredClone(this.server);
    for (const click of this.waiting) anticipate(state, click);
    return state;
  }

  classOf(id) {
    const real = this.#made.get(id) ?? id;
    return this.state?.classes.find((one) => one.id === real) ?? null;
  }

  get canUndo() { return (this.state?.undo ?? 0) > 0; }
  get canRedo() { return (this.state?.redo ?? 0) > 0; }

  /** Images with a click under way: the server may still offer them. */
  get pendingImages() { return this.waiting.map((click) => click.body.image).filter((id) => id !== undefined); }

  /** Do something now and send it. `hooks.undone` and `hooks.redone` put the screen back and forth. */
  act(body, hooks = {}, temporary = undefined) {
    this.undone = [];
    this.done.push({ hooks, clicks: 1 });
    return this.#queue(body, temporary);
  }

  /** Several actions that are one for the person: one undo takes all of them back. */
  actTogether(bodies, hooks = {}) {
    this.undone = [];
    this.done.push({ hooks, clicks: bodies.length });
    return Promise.all(bodies.map((body) => this.#queue(body)));
  }

  /** Add a class; its id is negative until the server has named the real one. */
  addClass(name, key) {
    // Counted on from the classes there are: its color is then most likely the one that its real id will give it.
    const known = this.state.classes.map((one) => (one.id < 0 ? -1 - one.id : one.id));
    this.#temporary = Math.min(this.#temporary - 1, -2 - Math.max(-1, ...known));
    const temporary = this.#temporary;
    this.act({ action: "new_class", name, key }, {}, temporary);
    return temporary;
  }

  undo() { return this.#back("undo", this.done, this.undone, this.canUndo); }
  redo() { return this.#back("redo", this.undone, this.done, this.canRedo); }

  async #back(action, from, to, possible) {
    if (!possible) return toast(`Nothing to ${action}`);
    const step = from.pop();
    if (step) to.push(step);
    step?.hooks[`${action === "undo" ? "undone" : "redone"}`]?.();
    say(action === "undo" ? "Undone" : "Done again");
    const answers = [];
    for (let i = 0; i < (step?.clicks ?? 1); i += 1) answers.push(this.#queue({ action }));
    const answered = await Promise.all(answers);
    // What was done before this page was loaded is known to the server alone: the views ask it again.
    if (!step || step.hooks.reload) this.#emit("elsewhere", answered.at(-1));
  }

  #queue(body, temporary) {
    const click = { body: { ...body, client: crypto.randomUUID(), seconds: clock.lap() }, temporary };
    const answer = new Promise((resolve) => Object.defineProperty(click, "resolve", { value: resolve }));
    this.waiting.push(click);
    this.#changed();
    this.#send();
    return answer;
  }

  #changed() {
    sessionStorage.setItem(STORAGE, JSON.stringify(this.waiting));
    this.#emit("state");
  }

  #emit(kind, detail) { this.dispatchEvent(new CustomEvent(kind, { detail })); }

  async #send() {
    if (this.#sending) return;
    this.#sending = true;
    let delay = 500;
    while (this.waiting.length) {
      const click = this.waiting[0];
      const answer = await request("/api/act", click.body).catch((fault) => fault);
      if (answer.retry) {
        this.#trouble(answer.message);
        await Promise.race([pause(delay), new Promise((resolve) => (this.#wake = resolve))]);
        delay = Math.min(2 * delay, 5000);
        continue;
      }
      delay = 500;
      this.#trouble("");
      this.waiting.shift();
      if (answer instanceof Error) await this.#refused(click, answer);
      else this.#answered(click, answer);
      click.resolve?.(answer);
      this.#changed();
    }
    this.#sending = false;
    this.#take(this.#held);
  }

  #answered(click, answer) {
    this.#version = answer.version;
    this.server = [this.#held, answer.state].reduce((one, other) => (one && newer(one, other) > 0 ? one : other));
    this.#held = null;
    if (click.temporary) this.#named(click);
  }

  /** A refused click is never dropped silently: say so, and show what the server has. */
  async #refused(click, fault) {
    this.server = await this.get("/api/state").catch(() => this.server);
    if (click.temporary && this.#named(click)) return;
    if (click.temporary) this.waiting = this.waiting.filter((other) => other.body.class !== click.temporary);
    this.done = [];
    this.undone = [];
    toast(`Not saved: ${fault.message}`, { bad: true });
    this.#emit("elsewhere");
  }

  #named(click) {
    const made = this.server?.classes.find((one) => one.name === click.body.name);
    if (!made) return false;
    this.#made.set(click.temporary, made.id);
    for (const { body } of this.waiting) {
      for (const part of [body, ...(body.tiles ?? [])]) if (part.class === click.temporary) part.class = made.id;
      if (body.suggested === click.temporary) body.suggested = made.id;
    }
    return true;
  }

  /** A state that came by itself. While a click is under way it waits, or the click would be counted twice. */
  #take(state) {
    if (!state || (this.server && newer(this.server, state) > 0)) return;
    if (this.waiting.length) {
      this.#held = state;
      return;
    }
    const elsewhere = this.server && state.version > Math.max(this.#version, this.server.version);
    this.server = state;
    this.#version = state.version;
    if (elsewhere) {
      this.done = [];
      this.undone = [];
    }
    this.#emit("state");
  }

  #trouble(text) {
    if (text === this.problem) return;
    const over = this.problem && !text;
    this.problem = text;
    this.#emit("trouble");
    if (over) this.#emit("online");
  }

  async get(path) {
    try {
      const answer = await request(path);
      if (!this.waiting.length) this.#trouble("");
      return answer;
    } catch (fault) {
      if (fault.retry) this.#trouble(fault.message);
      throw fault;
    }
  }

  async post(path, body) { return request(path, body); }

  /** Listen for news; a lost stream is opened again, and what came in between is asked for. */
  listen() {
    const source = new EventSource("/api/events");
    source.addEventListener("state", (event) => {
      this.#trouble("");
      this.#wake();
      this.#take(JSON.parse(event.data));
    });
    source.onerror = async () => {
      source.close();
      await this.get("/api/state").then((state) => this.#take(state)).catch(() => {});
      setTimeout(() => this.listen(), 1500);
    };
  }

  async start() {
    addEventListener("beforeunload", (event) => { if (this.waiting.length) event.preventDefault(); });
    addEventListener("online", () => this.#wake());
    while (!this.server) this.server = await this.get("/api/state").catch(() => pause(1000));
    this.#version = this.server.version;
    this.listen();
    this.#emit("state");
    this.#send();
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** GET, or POST where there is a body. A fault with `retry` may go away by itself; any other is the server's "no". */
async function request(path, body) {
  const options = { signal: AbortSignal.timeout(TIMEOUT), credentials: "same-origin" };
  if (body) Object.assign(options, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  let response;
  let answer;
  try {
    response = await fetch(path, options);
    answer = await response.json();
  } catch {
    // An answer that broke off on its way is no answer either.
    throw Object.assign(new Error("No connection to the server. Is vcc-infuse label still running?"), { retry: true });
  }
  if (response.ok) return answer;
  const locked = response.status === 401;
  const text = locked ? "This page is locked. Open the address that vcc-infuse label has printed." : answer.error ?? `error ${response.status}`;
  throw Object.assign(new Error(text), { retry: locked || response.status >= 500 || response.status === 429, status: response.status });
}

const order = (state) => [state.version, state.model?.version ?? 0, state.embedded];
/** > 0 if the first state is the newer one, < 0 if the second is, 0 if nobody can tell. */
function newer(one, other) {
  const left = order(one);
  const right = order(other);
  const at = left.findIndex((value, i) => value !== right[i]);
  return at < 0 ? 0 : left[at] - right[at];
}

const byId = (state, id) => state.classes.find((one) => one.id === id);

/** Change a state as the server will when it gets the click: only what the person looks at while clicking. */
function anticipate(state, { body, temporary }) {
  const steps = { undo: [-1, 1], redo: [1, -1] }[body.action] ?? [1, -state.redo];
  state.undo = Math.max(0, state.undo + steps[0]);
  state.redo = Math.max(0, state.redo + steps[1]);
  const cls = byId(state, body.class);
  if (body.action === "label") {
    state.labeled += 1;
    state.audited += body.audit ? 1 : 0;
    if (cls) cls.labels += 1;
  } else if (body.action === "skip") state.skipped += 1;
  else if (body.action === "foreign") state.foreign += 1;
  else if (body.action === "new_class")
    state.classes.push({ id: temporary ?? 0, name: body.name, key: body.key, labels: 0, confirmed: 0, suggested: 0 });
  else if (body.action === "rename" && cls) cls.name = body.name;
  else if (body.action === "key" && cls) cls.key = body.key;
  else if (body.action === "merge") state.classes = state.classes.filter((one) => one.id !== body.class);
  else if (body.action === "grid" && cls) {
    const right = body.tiles.filter((tile) => tile.right).length;
    cls.confirmed += right;
    state.labeled += right;
  }
}

export const store = new Store();
