// A chat, and the blocks that it takes while it is answered.

import * as api from "./api.js";
import { ACTIVE, CACHED, references, stateOf } from "./blocks.js";
import { make, setText } from "./tools.js";

const MOST_SHOWN = 96;
const COMPUTED = 7;

export class Playground {
  // onBlocks(blocks): those of the answer that is being watched.
  constructor(root, onBlocks) {
    this.form = root.querySelector("#ask");
    this.said = root.querySelector("#asked");
    this.root = root.querySelector("#answers");
    this.send = root.querySelector("#send");
    this.onBlocks = onBlocks;
    this.answers = [];
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.abort) this.abort.abort();
      else this.ask();
    });
  }

  get blocks() {
    return [...new Set(this.answers.flatMap((answer) => answer.table.filter((block) => block >= 0 && !answer.lost.has(block))))];
  }

  async ask() {
    const n = Number(this.form.querySelector("#choices").value);
    const tokens = Number(this.form.querySelector("#length").value) || 1;
    const messages = [{ role: "user", content: this.form.querySelector("#prompt").value }];
    this.abort = new AbortController();
    this.id = null;
    this.answers = Array.from({ length: n }, (_, i) => this.makeAnswer(i));
    this.root.replaceChildren(...this.answers.map((answer) => answer.element));
    setText(this.send, "Stop");
    setText(this.said, "Sent.");
    try {
      for await (const event of api.chat({ messages, n, max_tokens: tokens, temperature: 0.8 }, this.abort.signal)) this.take(event);
    } catch (error) {
      setText(this.said, error.name === "AbortError" ? "Stopped." : error.message);
    }
    this.abort = null;
    this.isOver = true;
    setText(this.send, "Send");
  }

  take(event) {
    if (!this.id) {
      this.id = event.id;
      this.isOver = false;
      setText(this.said, "Answering: the bright blocks are shared, until an answer writes into one and gets its own copy.");
    }
    for (const choice of event.choices) {
      const answer = this.answers[choice.index];
      answer.text.append(choice.delta.content ?? "");
    }
    if (event.usage) {
      const cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
      setText(this.said, `${event.usage.prompt_tokens} tokens of prompt, ${cached} of them found in the cache; `
        + `${event.usage.completion_tokens} generated. Its blocks stay cached until others need the room: send it again.`);
    }
  }

  makeAnswer(index) {
    const text = make("p", { class: "text" }), strip = make("ol", { class: "strip", "aria-label": "Its blocks" });
    const element = make("article", {}, make("h3", {}, `Answer ${index + 1}`), text, strip);
    return { element, text, strip, table: [], computed: 0, boxes: [], looksSince: 0, lost: new Set() };
  }

  // Once a look: where the answers' blocks lie, and what these are now.
  async look(codes, blockSize) {
    if (!this.id) return;
    if (!this.isOver) {
      const { choices } = await api.choices(this.id);
      for (const choice of choices) {
        const answer = this.answers[choice.choice];
        if (!answer || !choice.tables.length) continue;
        answer.table = choice.tables[0];
        answer.computed = choice.request[COMPUTED];
      }
    }
    for (const answer of this.answers) this.draw(answer, codes, blockSize);
    this.onBlocks(this.blocks);
  }

  draw(answer, codes, blockSize) {
    const first = Math.max(0, answer.table.length - MOST_SHOWN), table = answer.table.slice(first);
    while (answer.boxes.length > table.length) answer.boxes.pop().element.remove();
    while (answer.boxes.length < table.length) {
      const fill = make("i"), name = make("b"), element = make("li", {}, fill, name);
      answer.strip.append(element);
      answer.boxes.push({ element, fill, name });
    }
    if (this.isOver) answer.looksSince++;
    table.forEach((block, i) => {
      const box = answer.boxes[i], code = block < 0 ? 0 : codes[block] ?? 0, state = stateOf(code);
      const filled = Math.max(0, Math.min(blockSize, answer.computed - (first + i) * blockSize));
      // Later on a block without a name holds nothing of the answer, or others' tokens.
      if (answer.looksSince > 3 && !(code & 1)) answer.lost.add(block);
      const shared = state === ACTIVE && references(code) > 1;
      const kind = answer.lost.has(block) ? "gone" : shared ? "shared" : state === CACHED ? "cached" : "";
      if (box.element.className !== kind) box.element.className = kind;
      setText(box.name, block < 0 ? "–" : String(block));
      box.fill.style.width = `${(100 * filled) / blockSize}%`;
      const told = block < 0 ? "behind the window" : `block ${block}, ${filled} of ${blockSize} slots, ${kind || "active"}`;
      if (box.element.title !== told) box.element.title = told;
    });
  }
}
