/** What the grid and the cleaning share: thumbnails, the list of classes, and arrow keys over boxes that wrap. */
import { el } from "./dom.js";
import { store } from "./store.js";

export function thumb(id) {
  const node = el("img", { alt: "", draggable: false, decoding: "async", width: 192, height: 192 });
  node.onerror = () => node.classList.add("broken");
  node.src = `/thumb/${id}`;
  return node;
}

/** A select of the classes; `first` is the entry that stands for no class. */
export function classSelect(first, label, { except = null, value = "", onchange }) {
  const others = store.state.classes.filter((one) => one.id !== except);
  const node = el("select", { "aria-label": label },
    el("option", { value: "", textContent: first }), ...others.map((one) => el("option", { value: one.id, textContent: one.name })));
  node.value = value;
  node.onchange = () => onchange(node.value === "" ? null : Number(node.value));
  return node;
}

/** Where an arrow leads from box `at`: left and right in order, up and down to the box nearest in the row. */
export function neighbor(boxes, at, arrow) {
  if (at < 0) return 0;
  if (arrow === "ArrowLeft") return Math.max(0, at - 1);
  if (arrow === "ArrowRight") return Math.min(boxes.length - 1, at + 1);
  const from = boxes[at].getBoundingClientRect();
  const sign = arrow === "ArrowDown" ? 1 : -1;
  const middle = from.left + from.width / 2;
  const places = boxes.map((box, i) => {
    const place = box.getBoundingClientRect();
    return { i, down: sign * (place.top - from.top), aside: Math.abs(place.left + place.width / 2 - middle) };
  }).filter((place) => place.down > 4);
  places.sort((one, other) => one.down - other.down || one.aside - other.aside);
  return places[0]?.i ?? at;
}
