/** Which key stands for which class, and the keys that the page needs itself. */
import { store } from "./store.js";

export const RESERVED = "suxnk";
const LETTERS = "abcdefghijlmopqrtvwyz";

/** 1–9 in order, then a letter of the name, then any letter that is free. */
export function freeKey(name) {
  const taken = new Set(store.state.classes.map((one) => one.key));
  const wanted = [..."123456789", ...name.toLowerCase(), ...LETTERS];
  return wanted.find((one) => !taken.has(one) && ("123456789".includes(one) || LETTERS.includes(one))) ?? "";
}

/** The key of an event as the classes know it; a digit also where the layout wants Shift for digits. */
export function pressed(event) {
  if (event.key.length > 1) return event.key;
  const digit = /^(Digit|Numpad)([1-9])$/.exec(event.code ?? "");
  return digit && !event.shiftKey ? digit[2] : event.key.toLowerCase();
}

export const classWithKey = (key) => (key.length === 1 ? store.state?.classes.find((one) => one.key === key) : undefined);

/** The class of that name (case does not matter), or a new one with the next free key. */
export function classNamed(text) {
  const name = text.trim().replace(/\s+/g, " ");
  if (!name) return null;
  const known = store.state.classes.find((one) => one.name.toLowerCase() === name.toLowerCase());
  return known ? known.id : store.addClass(name, freeKey(name));
}
