// What is known of the block that is pointed at.

import * as api from "./api.js";
import { LOOKS, lookOf, references, stateOf, ACTIVE } from "./blocks.js";
import { make, seconds, setText, shortId } from "./tools.js";

const PATIENCE = 120; // ms: a pointer that crosses the map asks nothing
const EVERY = 1000; // ms: so often what is told is asked again

export class BlockDetail {
  // onRequest(id): the request of a holder was chosen.
  constructor(root, onRequest) {
    this.root = root;
    this.onRequest = onRequest;
    this.block = null;
    this.lastUsed = new Float64Array(0);
    this.since = null;
    this.clear();
  }

  // When each block was in somebody's table, as far as this page has seen it.
  note(codes, time) {
    if (this.lastUsed.length !== codes.length) {
      this.lastUsed = new Float64Array(codes.length);
      this.since = time;
    }
    for (let i = 0; i < codes.length; i++) if (codes[i] > 1) this.lastUsed[i] = time;
    this.codes = codes;
    this.time = time;
  }

  clear() {
    this.block = this.told = null; // the one that is pointed at; the one of which something is told
    clearTimeout(this.timer);
    this.root.replaceChildren(make("p", { class: "note" },
      "Point at a block, tap it, or move there with the arrow keys: it tells who has it and what it holds."));
  }

  show(block) {
    this.block = block;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(block), PATIENCE);
  }

  // After a look: what is told of a block stays true as long as it is told.
  async renew() {
    if (this.block === null || this.block !== this.told || performance.now() < this.due) return;
    if (this.block < this.codes.length) await this.ask(this.block);
    else this.clear(); // another server's pool, that is smaller
  }

  async ask(block) {
    let found;
    try {
      found = await api.block(block);
    } catch (error) {
      if (this.block === block) this.say([make("p", {}, error.message)]);
      return;
    }
    if (this.block === block) this.write(found);
  }

  say(lines) {
    this.told = this.block;
    this.due = performance.now() + EVERY;
    this.rest = null;
    this.root.replaceChildren(...lines);
  }

  // What is the same stays as it is: it may have the focus, and what is read out is what has changed.
  write(found) {
    const rest = JSON.stringify([found.id, found.holders, found.text]);
    if (rest === this.rest) this.due = performance.now() + EVERY;
    else {
      this.head = [make("strong"), make("span"), make("span", { "aria-live": "off" })];
      this.say([make("p", {}, ...this.head), ...this.below(found)]);
      this.rest = rest;
    }
    this.headline(found).forEach((text, i) => setText(this.head[i], text));
  }

  headline(found) {
    const code = this.codes[found.id] ?? 0, look = LOOKS[lookOf(code)];
    const state = stateOf(code) === ACTIVE ? `active, in ${references(code)} ${references(code) === 1 ? "table" : "tables"}` : look.name;
    const parts = [` (${found.filled} slots filled`];
    if (found.in_prefix_cache) parts.push("can be found in the prefix cache");
    if (found.pins) parts.push(`held by ${found.pins} ${found.pins === 1 ? "pin" : "pins"}`);
    return [`Block ${found.id}: ${state}`, `${parts.join("; ")}; `, `${this.used(found.id)})`];
  }

  below(found) {
    const lines = [];
    if (found.holders.length) lines.push(make("ul", { "aria-label": "Who has it" }, ...found.holders.map((each) => this.holder(each))));
    if (found.text) lines.push(make("pre", {}, found.text));
    return lines;
  }

  holder(each) {
    const group = each.group ? `, layer group ${each.group}` : "";
    const button = make("button", { type: "button", title: each.request },
      `${shortId(each.request)} / ${each.choice}: block ${each.block}${group}`);
    button.addEventListener("click", () => this.onRequest(each.request));
    return make("li", {}, button);
  }

  used(id) {
    const last = this.lastUsed[id];
    if (!last) return `not used since this page was opened, ${seconds(this.time - this.since)} ago`;
    return last === this.time ? "in use now" : `last used ${seconds(this.time - last)} ago`;
  }
}
