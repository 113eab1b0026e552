// The queues: a row a choice with its bar. Only the rows that can be seen exist.

import { make, setText, shortId } from "./tools.js";

const ROW = 30;
const PLACES = {
  running: "▶ runs", waiting: "… waits", preempted: "↩ thrown out", prefix: "⧗ for prefix", family: "⑂ for prompt", held: "⏸ held",
};
export const PARTS = ["cached", "prompt", "rest", "answer"];

// Fields of a request, in the order in which they come (octavo/engine/looks.py).
const [ID, CHOICE, PLACE, TENANT, PRIORITY, PROMPT, CACHED, COMPUTED, GENERATED, BLOCKS, MOST] = Array(11).keys();

export class Queue {
  // onSelect(id): a request was chosen; null: none any more.
  constructor(root, onSelect) {
    this.root = root;
    this.onSelect = onSelect;
    this.selected = null;
    this.requests = [];
    this.rows = [];
    this.spacer = root.appendChild(make("div", { class: "spacer" }));
    this.empty = root.appendChild(make("p", { class: "note" }, " Nobody asks for anything now."));
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(root);
  }

  show(requests) {
    this.requests = requests;
    this.longest = requests.reduce((most, each) => Math.max(most, each[PROMPT] + each[GENERATED]), 1);
    this.spacer.style.height = `${requests.length * ROW}px`;
    this.empty.hidden = requests.length > 0;
    this.draw();
  }

  select(id) {
    this.selected = id;
    this.draw();
  }

  draw() {
    const first = Math.floor(this.root.scrollTop / ROW);
    const number = Math.min(this.requests.length - first, Math.ceil(this.root.clientHeight / ROW) + 1);
    while (this.rows.length < number) this.rows.push(this.makeRow());
    this.rows.forEach((row, i) => {
      row.element.parentElement.hidden = i >= number;
      if (i < number) this.fill(row, this.requests[first + i], first + i);
    });
  }

  makeRow() {
    const id = make("span", { class: "id" }), place = make("span"), numbers = make("span", { class: "numbers" });
    const parts = PARTS.map((name) => make("i", { class: `part-${name}` }));
    const element = make("button", { type: "button", class: "request" },
      id, place, make("span", { class: "bar" }, ...parts), numbers);
    const row = { element, id, place, parts, numbers };
    element.addEventListener("click", () => {
      this.select(this.selected === row.request ? null : row.request);
      this.onSelect(this.selected);
    });
    this.root.append(make("div", { role: "listitem" }, element));
    return row;
  }

  fill(row, request, index) {
    const generated = request[GENERATED], prompt = request[PROMPT], cached = Math.min(request[CACHED], prompt);
    const computed = Math.max(cached, Math.min(request[COMPUTED], prompt));
    row.request = request[ID];
    row.element.style.transform = `translateY(${index * ROW}px)`;
    row.element.setAttribute("aria-pressed", String(this.selected === request[ID]));
    setText(row.id, `${shortId(request[ID])} / ${request[CHOICE]}`);
    setText(row.place, PLACES[request[PLACE]]);
    [cached, computed - cached, prompt - computed, generated].forEach((tokens, i) => {
      row.parts[i].style.width = `${(100 * tokens) / this.longest}%`;
    });
    setText(row.numbers, `${prompt} + ${generated} of ${request[MOST] - prompt}`);
    const told = `${request[ID]}, choice ${request[CHOICE]}, ${request[PLACE]}: ${prompt} tokens of prompt, ${cached} of them cached, `
      + `${computed} computed; ${generated} generated of at most ${request[MOST] - prompt}; ${request[BLOCKS]} blocks; `
      + `tenant ${request[TENANT]}, priority ${request[PRIORITY]}`;
    if (row.told !== told) {
      row.told = told;
      row.element.setAttribute("aria-label", told);
      row.element.title = told;
    }
  }
}
