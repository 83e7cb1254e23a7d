"use strict";
// The data says what each picture shows; the pictures are Graphviz's. One of them is seen at a time: a fold state.
const states = JSON.parse(document.getElementById("data").textContent);
const pictures = [...document.querySelectorAll(".picture")];
const at = (id) => document.getElementById(id);
const slider = at("step"), panel = at("panel");
let now = 0, step = 0, hovered = null, pinned = null, mouse = "";

// --- small helpers -------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Symbols with <I>, <B>, <SUB>, <SUP>: elements are made of these four alone, all else is text. */
function rich(text) {
  const root = element("span", { class: "math" }), open = [root];
  for (const part of text.split(/(<\/?(?:I|B|SUB|SUP)>)/)) {
    const tag = /^<(\/?)(\w+)>$/.exec(part);
    if (!tag) open.at(-1).append(unescaped(part));
    else if (tag[1]) open.pop();
    else {
      const inner = element(tag[2]);
      open.at(-1).append(inner);
      open.push(inner);
    }
  }
  return root;
}

function unescaped(text) {
  const signs = { lt: "<", gt: ">", quot: '"', amp: "&" };
  return text.replace(/&(lt|gt|quot|amp);/g, (_, name) => signs[name]);
}

const plain = (text) => rich(text).textContent;

/** Three digits, as 0.127, 11.7, 1530 or 3.6e-7. */
function digits(x) {
  if (typeof x !== "number") return x;
  const text = Number.isInteger(x) || Math.abs(x) >= 1e3 ? String(Math.round(x)) : x.toPrecision(3);
  return text.replaceAll("-", "−");
}

/** A norm, or ≡ 0 as the picture has it. */
const normed = (x) => (x === 0 ? ZERO : digits(x));

function range(norms) {
  if (!norms.every(Number.isFinite)) return norms.map(digits).join(", ");
  const ends = [Math.min(...norms), Math.max(...norms)].map(digits);
  if (ends[0] === ends[1]) return normed(norms[0]);
  return ends.join(" … ");
}

// --- pictures ------------------------------------------------------------------------------------------------

/** What belongs to a state: elements by id, arrows by their ends. Made when the state is first seen. */
function prepare(number) {
  const data = states[number], picture = pictures[number];
  if (data.elements) return data;
  const scope = picture.firstElementChild.classList[1];
  data.elements = new Map();
  for (const part of [...data.nodes, ...data.arrows, ...data.frames]) {
    data.elements.set(part.id, picture.querySelector(`#${CSS.escape(`${scope}-${part.id}`)}`));
  }
  for (const said of picture.querySelectorAll(".node tspan")) {
    if (said.textContent.startsWith("‖∂‖")) said.classList.add("norm");
  }
  data.nodeOf = new Map(data.nodes.map((node) => [node.id, node]));
  data.into = byEnd(data.arrows, "to");
  data.outOf = byEnd(data.arrows, "from");
  data.items = items(data);
  for (const item of data.items) enliven(data, item);
  data.items[0].element.setAttribute("tabindex", "0");
  return data;
}

function byEnd(arrows, end) {
  const found = new Map();
  for (const arrow of arrows) found.set(arrow[end], [...(found.get(arrow[end]) ?? []), arrow]);
  return found;
}

/** Nodes in the order of the computation, each frame before the first node in it: the order of the keyboard. */
function items(data) {
  const found = [];
  for (const node of data.nodes) {
    for (const frame of data.frames) if (frame.first === node.id) found.push(frame);
    found.push(node);
  }
  return found.map((part) => Object.assign(part, { element: data.elements.get(part.id) }));
}

function enliven(data, item) {
  const { element: shown } = item, folds = item.to != null;
  shown.setAttribute("role", "button");
  shown.setAttribute("tabindex", "-1");
  const kind = item.kind ?? "frame", { label } = item;
  shown.setAttribute("aria-label", label.includes(` ${kind} `) ? label : `${kind}: ${label}`);
  if (folds) shown.setAttribute("aria-expanded", String(item.open ?? false));
  const pin = () => { rove(data, item); pinned = item; hover(null); };
  shown.addEventListener("focus", pin);
  shown.addEventListener("click", () => {
    if (folds) return go(item.to, item.unit);
    shown.focus({ preventScroll: true });
    pin();
  });
  shown.addEventListener("keydown", (event) => key(event, data, item));
}

function key(event, data, item) {
  const place = data.items.indexOf(item), last = data.items.length - 1;
  const to = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0,
    End: last }[event.key];
  if (to !== undefined) data.items[Math.max(0, Math.min(last, to))].element.focus();
  else if ((event.key === "Enter" || event.key === " ") && item.to != null) go(item.to, item.unit);
  else return;
  event.preventDefault();
}

function hover(item) {
  hovered = item;
  show();
}

/** Only a mouse that moves points at something: where it rests, scrolling brings nodes under it. */
document.addEventListener("mousemove", (event) => {
  const place = `${event.clientX} ${event.clientY}`, item = mouse === place ? hovered : itemAt(event.target);
  mouse = place;
  if (item !== hovered) hover(item);
}, true);
document.addEventListener("mouseleave", () => { if (hovered) hover(null); });

function itemAt(target) {
  const found = target.closest(".picture [role=button]");
  return prepare(now).items.find((item) => item.element === found) ?? null;
}

function rove(data, item) {
  for (const other of data.items) other.element.setAttribute("tabindex", other === item ? "0" : "-1");
  reveal(item.element);
}

/** Scrolls as little as shows the first with some room around it, and with it those of the others that fit. */
function reveal(first, ...others) {
  const graph = at("graph"), view = graph.getBoundingClientRect(), room = 28; // for a badge, too
  const across = [view.left + room, view.left + graph.clientWidth - room];
  const down = [view.top + room, view.top + graph.clientHeight - room];
  const box = (shown) => shown.getBoundingClientRect();
  let { left, right, top, bottom } = box(first);
  for (const other of others.map(box)) {
    const wide = [Math.min(left, other.left), Math.max(right, other.right)];
    const high = [Math.min(top, other.top), Math.max(bottom, other.bottom)];
    if (fits(wide, across) && fits(high, down)) [left, right, top, bottom] = [...wide, ...high];
  }
  graph.scrollBy(shift([left, right], across), shift([top, bottom], down));
}

const fits = ([start, end], [from, to]) => end - start <= to - from;

function shift([start, end], [from, to]) {
  if (start < from || !fits([start, end], [from, to])) return start - from;
  return Math.max(0, end - to);
}

/** Another fold state; the focus goes to what was folded or unfolded, the slider stays at the same call. */
function go(number, unit) {
  const call = step ? states[now].steps[step - 1].call : -1;
  hovered = pinned = null;
  now = number;
  const data = prepare(now);
  pictures.forEach((picture, i) => { picture.hidden = i !== now; });
  step = 1 + data.steps.findLastIndex((each) => each.call <= call);
  document.querySelector("[role=toolbar]").hidden = states.length === 1;
  able(at("close-all"), now !== data.closed, at("open-all"));
  able(at("open-all"), now !== 0, at("close-all"));
  slider.max = data.steps.length;
  show();
  const same = data.items.find((item) => unit !== undefined && item.unit === unit);
  if (same) same.element.focus();
  else at("graph").scrollTo(0, 0);
}

// --- paths ---------------------------------------------------------------------------------------------------

/** All arrows on the way from a node, against them or along them, by the arrows that `along` lets through. */
function paths(data, start, against, along) {
  const seen = new Set([start]), arrows = new Set(), waiting = [start];
  while (waiting.length) {
    for (const arrow of (against ? data.into : data.outOf).get(waiting.pop()) ?? []) {
      const next = against ? arrow.from : arrow.to;
      if (!along(arrow)) continue;
      arrows.add(arrow.id);
      if (!seen.has(next)) waiting.push(next);
      seen.add(next);
    }
  }
  return new Set([...seen, ...arrows].filter((id) => id !== start));
}

/** What a node was computed from, what it feeds, and the way that its gradient comes. */
function pathsOf(data, node) {
  const back = ["gradient", "gradient formula"].includes(node.kind);
  const own = (arrow) => (arrow.kind === "bwd") === back && (back || arrow.kind === "fwd" || arrow.from === node.id);
  const found = { from: paths(data, node.id, true, own), feeds: paths(data, node.id, false, own) };
  if (node.gradient) {
    found.grad = paths(data, node.gradient, true, (arrow) => arrow.kind === "bwd").add(node.gradient);
  } else {
    found.grad = back ? new Set() : paths(data, node.id, false, (arrow) => arrow.back);
  }
  return found;
}

// --- showing -------------------------------------------------------------------------------------------------

const ZERO = "≡ 0";
const WORDS = ["from", "feeds", "grad", "self", "now", "part", "done", "waits"];

function show() {
  const data = prepare(now), picture = pictures[now], item = hovered ?? pinned;
  const node = item?.kind ? item : null;
  for (const shown of data.elements.values()) shown.classList.remove(...WORDS);
  for (const badge of picture.querySelectorAll(".badge")) badge.remove();
  picture.classList.toggle("lit", Boolean(node));
  picture.classList.toggle("stepping", step > 0);
  if (step) walk(data);
  if (node) {
    const found = pathsOf(data, node);
    for (const [word, ids] of Object.entries(found)) {
      for (const id of ids) data.elements.get(id).classList.add(word);
    }
    data.elements.get(node.id).classList.add("self");
    panel.replaceChildren(...about(data, node, found));
  } else if (item) panel.replaceChildren(...aboutFrame(data, item));
  else if (step) panel.replaceChildren(...aboutStep(data));
  else panel.replaceChildren(...help(data));
  slider.value = step;
  slider.setAttribute("aria-valuetext", step ? told(data) : "no step");
  at("count").textContent = step ? `step ${step} of ${data.steps.length}` : `${data.steps.length} steps`;
  able(at("back"), step > 0, slider);
  able(at("on"), step < data.steps.length, slider);
}

/** A button that can do no more hands its focus over, which would be lost. */
function able(button, can, other) {
  const lost = !can && document.activeElement === button;
  button.disabled = !can;
  if (!lost) return;
  other.disabled = false;
  other.focus();
}

/** Classes and badges of the current step: where the walk is, and which gradients are there, all or in part. */
function walk(data) {
  const mark = (id, word) => data.elements.get(id)?.classList.add(word), sums = new Map();
  data.steps.slice(0, step).forEach((each, i) => {
    const last = i === step - 1;
    mark(each.node, last ? "now" : "done");
    for (const arrival of each.arrivals) {
      mark(arrival.arrow, last ? "now" : "done");
      mark(arrival.to, arrival.part === arrival.of ? "done" : "part");
      if (last && i) mark(arrival.to, "now");
      if (arrival.of > 1) sums.set(arrival.to, arrival);
    }
  });
  // the norm in a box is that of the whole gradient: it is not there before the last of its parts
  const waiting = new Set(data.steps.slice(step).flatMap(({ arrivals }) => arrivals.map(({ to }) => to)));
  for (const { id, gradient } of data.nodes) if (waiting.has(id) || waiting.has(gradient)) mark(id, "waits");
  for (const arrival of sums.values()) badge(data, arrival);
}

function badge(data, arrival) {
  const box = data.elements.get(arrival.to).getBBox();
  const text = `${plain(arrival.name)} ${arrival.part}/${arrival.of}`, wide = 10 + 5.4 * text.length;
  const x = box.x + box.width + 10 - wide, y = box.y - 13;
  const front = pictures[now].querySelector(".graph");
  front.append(drawn("g", { class: "badge", "aria-hidden": "true" },
    drawn("rect", { x, y, width: wide, height: 14, rx: 7 }),
    drawn("text", { x: x + wide / 2, y: y + 10 }, text)));
}

// --- the panel -----------------------------------------------------------------------------------------------

const line = (text, kind = "line") => element("p", { class: kind }, text);

function section(title, ...children) {
  return children.length ? [element("h3", {}, title), ...children] : [];
}

function about(data, node, found) {
  const count = (ids, of) => [...ids].filter((id) => data.nodeOf.has(id) === of).length;
  const kind = node.kind === "folded" ? "folded: click or Enter unfolds it" : node.kind;
  const names = node.tensors.flatMap((tensor, i) => [...(i ? [", "] : []), rich(tensor.name)]);
  const ways = [["computed from", found.from], ["feeds", found.feeds]]
    .filter(([, ids]) => ids.size)
    .map(([text, ids]) => element("li", {}, `${text} ${many(count(ids, true), "node")}`));
  if (found.grad.size) {
    ways.push(element("li", { class: "gradient" }, `its gradient comes along ${many(count(found.grad, false), "arrow")}`));
  }
  return [
    element("h2", {}, ...(node.equation ? [rich(node.equation)] : names.length ? names : [node.label])),
    line(kind, "kind"),
    ...node.found.map((text) => line(rich(text), "found")),
    ...section("gradient, by the vector-Jacobian product", ...formulas(node)),
    ...node.tensors.flatMap((tensor) => aboutTensor(tensor, node.shares)),
    ...section("more", ...node.facts.map((fact) => line(fact, ""))),
    ...(ways.length ? section("paths", element("ul", {}, ...ways)) : []),
  ];
}

/** The formulas of a node's gradients; why there is none where a gradient flows through it. */
function formulas(node) {
  if (node.formulas?.length || !node.formulas || !node.tensors.some(({ needs }) => needs)) {
    return (node.formulas ?? []).map((text) => line(rich(text)));
  }
  const cure = node.kind === "folded" ? "unfold it" : "draw it at level ops";
  return [line(`It is several ops, each with formulas of its own: ${cure}.`, "kind")];
}

function many(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function aboutTensor(tensor, shares) {
  const rows = [];
  if (tensor.shape && tensor.shape !== tensor.sizes) rows.push(["shape", rich(tensor.shape)]);
  rows.push(["sizes", tensor.sizes]);
  const { values } = tensor;
  if (values) {
    for (const name of ["least", "mean", "greatest", "norm"]) {
      if (name in values) rows.push([name === "norm" ? "‖·‖" : name, digits(values[name])]);
    }
    if (values.hidden) rows.push(["not finite", many(values.hidden, "value")]);
  }
  if (tensor.norms) rows.push(["‖∂‖, its gradient", tensor.zero && tensor.norms.some(Boolean) ? `${ZERO} (but for rounding)` : range(tensor.norms)]);
  else if (!tensor.needs) rows.push(["gradient", "none flows here"]);
  return [
    element("h3", {}, rich(tensor.name)),
    element("table", {}, element("tbody", {}, ...rows.map(([name, value]) =>
      element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))))),
    ...(values?.maps ? [maps(values, plain(tensor.name), shares)] : values ? noMaps(tensor.sizes) : []),
  ];
}

/** Why a matrix has no cells: of numbers alone, vectors, and what has no elements, nobody expects them. */
function noMaps(sizes) {
  const sides = (sizes.match(/\d+/g) ?? []).slice(-2).map(Number), { most } = states[now];
  const large = sides.length === 2 && Math.min(...sides) > 0 && Math.max(...sides) > most;
  return large ? [line(`${sides.join(" × ")}: cells are shown up to ${most} a side`, "kind")] : [];
}

/** Values as cells, orange − 0 + blue, shares white 0 … 1 purple, grey what is masked, framed in red what is not finite, as in the
    picture; the numbers are in each cell's title. */
function maps({ maps: grids, masked }, name, shares) {
  const finite = grids.flat(2).filter(Number.isFinite), most = shares ? 1 : Math.max(...finite.map(Math.abs)) || 1;
  const side = Math.min(16, 320 / Math.max(...grids.map((grid) => grid[0].length)));
  const cell = (x, hidden, i, j) => drawn("rect", {
    x: j * side, y: i * side, width: side, height: side, ...(hidden ? { fill: GREY } : Number.isFinite(x) ? { fill: colour(x, most, shares) } : WRONG),
  }, drawn("title", {}, hidden ? "masked" : digits(x)));
  return element("div", { class: "maps" }, ...grids.map((grid, k) => drawn("svg", {
    role: "img", width: side * grid[0].length, height: side * grid.length,
    "aria-label": `values of ${name}, map ${k + 1} of ${grids.length}, ${grid.length} by ${grid[0].length}`,
  }, ...grid.flatMap((row, i) => row.map((x, j) => cell(x, masked?.[k][i][j], i, j))))));
}

const GREY = "#E4E7EB", WRONG = { fill: "#FDE6E8", stroke: "#C00018" };

function colour(x, most, shares) {
  const end = shares ? [0xa5, 0x43, 0x86] : x < 0 ? [0xbf, 0x58, 0x04] : [0x01, 0x73, 0xe3], share = Math.abs(x) / most;
  return `rgb(${end.map((part) => Math.round(255 + share * (part - 255))).join(" ")})`;
}

function aboutFrame(data, frame) {
  const alike = data.together ? ", and with it every frame of its depth" : "";
  return [element("h2", {}, frame.label), line(`frame: click or Enter ${frame.open ? "" : "un"}folds it${alike}`, "kind")];
}

/** dX = 1 of 3, ‖·‖ 11, and the norm of the sum so far; of a single one dX, ‖·‖ 11, or ≡ 0 where the picture says so. */
function arrived({ name, part, of, norm, sum, zero }) {
  const said = element("li", {}, rich(name), of > 1 ? ` = ${part} of ${of}` : ""), whole = zero ? ZERO : normed(sum);
  if (norm !== undefined) said.append(`, ‖·‖ ${of > 1 ? normed(norm) : whole}`);
  if (sum !== undefined && of > 1) said.append(`, ‖sum${part < of ? " so far" : ""}‖ ${whole}`);
  return said;
}

function told(data) {
  const each = data.steps[step - 1];
  return `step ${step} of ${data.steps.length}: ` + each.arrivals.map((a) => arrived(a).textContent).join("; ");
}

function aboutStep(data) {
  const each = data.steps[step - 1], node = data.nodeOf.get(each.node);
  const start = each.call === 0, first = each.call - each.ops.length + 1;
  const which = first < each.call ? `products number ${first} to ${each.call}` : `product number ${each.call}`;
  const what = start ? "the gradient that the walk starts with" : node?.equation ? rich(node.equation) : node?.label;
  return [
    element("h2", {}, `Step ${step} of ${data.steps.length}`),
    line(start ? "backward begins" : `backward of ${each.ops.join(", ")}${each.module ? ` in ${each.module}` : ""}`, "kind"),
    line(what ?? ""),
    ...section("arrives", ...(each.arrivals.length ? [element("ul", { class: "gradient" }, ...each.arrivals.map(arrived))] : [])),
    ...section("by the formulas", ...(start || !node ? [] : formulas(node))),
    ...(start ? [] : [line(`vector-Jacobian ${which} of the walk`, "kind")]),
  ];
}

function help(data) {
  const lines = [
    ["Point", " at a node, or walk there with Tab and the arrow keys: its path lights up, and is told here."],
    ["Click", data.frames.length || data.folded.length ? " a frame, or press Enter: it folds; a folded one unfolds."
      : " a node to keep it."],
    ["Slide", " below, or use the arrow keys there: the backward, in the engine's order."],
    ["Escape", " clears: first the node, then the steps."],
  ];
  return [element("h2", {}, "How to explore"), ...lines.map(([word, text]) => {
    return element("p", {}, element("b", {}, word), text);
  }), ...(data.gradients ? [] : [line("No gradient is drawn: steps have no numbers.", "kind")])];
}

// --- the slider, and Escape ----------------------------------------------------------------------------------

function take(number) {
  step = Math.max(0, Math.min(states[now].steps.length, number));
  clear();
  if (!step) return;
  const { steps, elements } = states[now], { node, arrivals } = steps[step - 1];
  reveal(...[node, ...arrivals.map((arrival) => arrival.to)].map((id) => elements.get(id)));
}

function clear() {
  hovered = pinned = null;
  show();
}

slider.addEventListener("input", () => take(Number(slider.value)));
at("graph").addEventListener("click", (event) => { if (!event.target.closest("[role=button]")) clear(); });
at("back").addEventListener("click", () => take(step - 1));
at("on").addEventListener("click", () => take(step + 1));
at("close-all").addEventListener("click", () => go(states[now].closed));
at("open-all").addEventListener("click", () => go(0));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (hovered ?? pinned) clear();
  else take(0);
});
go(0);
