// The latest steps: tokens of each, those of prompts on top of those of answers, against the budget.

import { count, fitCanvas, seconds, setText, theme } from "./tools.js";

const MOST = 512, WIDTH = 6, FOOT = 16, HEAD = 16;
const [ID, , SECONDS, PROMPT, ANSWER, ROWS] = Array(6).keys();

export class Timeline {
  constructor(canvas, readout) {
    this.canvas = canvas;
    this.readout = readout;
    this.steps = [];
    this.budget = 0;
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.point(this.firstShown() + Math.floor(event.offsetX / WIDTH)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  add(steps, budget) {
    this.budget = budget;
    if (!steps.length) return;
    if (this.cursor !== null) this.cursor -= Math.max(0, this.steps.length + steps.length - MOST);
    this.steps = [...this.steps, ...steps].slice(-MOST);
    this.draw();
  }

  get columns() {
    return Math.max(1, Math.floor(this.canvas.clientWidth / WIDTH));
  }

  firstShown() {
    return Math.max(0, this.steps.length - this.columns);
  }

  point(index) {
    this.cursor = index !== null && index >= 0 && index < this.steps.length ? index : null;
    this.draw();
    this.tell();
  }

  onKey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -MOST, End: MOST };
    if (!(event.key in moves) || !this.steps.length) return;
    const target = (this.cursor ?? this.steps.length) + moves[event.key];
    this.point(Math.max(this.firstShown(), Math.min(this.steps.length - 1, target)));
    event.preventDefault();
  }

  tell() {
    const step = this.steps[this.cursor ?? this.steps.length - 1];
    if (!step) return;
    const total = step[PROMPT] + step[ANSWER];
    setText(this.readout, `${this.cursor === null ? "The last step" : "Step"} ${count(step[ID])}: ${count(total)} of ${count(this.budget)} tokens, `
      + `${count(step[PROMPT])} of prompts and ${count(step[ANSWER])} of answers, in ${step[ROWS]} rows; ${seconds(step[SECONDS])}`);
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (!width) return;
    if (width !== this.width || height !== this.height || !this.context) {
      [this.width, this.height] = [width, height];
      this.context = fitCanvas(this.canvas, width, height);
    }
    const context = this.context, colours = theme(), first = this.firstShown();
    const shown = this.steps.slice(first);
    const most = shown.reduce((top, step) => Math.max(top, step[PROMPT] + step[ANSWER]), 1);
    const scale = (height - FOOT - HEAD) / most, ground = height - FOOT;
    const [ink, prompt, answer, soft, grid] = [colours.ink, colours.prompt, colours.answer, colours.soft, colours.grid];
    context.clearRect(0, 0, width, height);
    context.fillStyle = grid;
    context.fillRect(0, ground, width, 1);
    shown.forEach((step, i) => {
      const low = step[ANSWER] ? Math.max(2, step[ANSWER] * scale) : 0;
      const high = step[PROMPT] ? Math.max(2, step[PROMPT] * scale) : 0;
      context.fillStyle = answer;
      context.fillRect(i * WIDTH, ground - low, WIDTH - 1, low);
      context.fillStyle = prompt;
      context.fillRect(i * WIDTH, ground - low - high, WIDTH - 1, high);
      if (first + i === this.cursor) {
        context.strokeStyle = ink;
        context.strokeRect(i * WIDTH - 0.5, HEAD - 4, WIDTH, ground - HEAD + 5);
      }
    });
    context.fillStyle = soft;
    context.font = "11px system-ui, sans-serif";
    const share = most / (this.budget || 1);
    context.fillText(`highest ${count(most)} tokens, ${(100 * share).toFixed(0)} % of the budget of ${count(this.budget)}`, 2, 11);
    if (shown.length) {
      context.fillText(`step ${count(shown[0][ID])}`, 2, height - 3);
      const last = `step ${count(shown.at(-1)[ID])}`;
      context.fillText(last, Math.max(80, Math.min(width, shown.length * WIDTH) - context.measureText(last).width), height - 3);
    }
    if (this.cursor === null) this.tell();
  }
}
