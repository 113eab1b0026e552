// The pool as a map: a cell a block. Only cells that changed are drawn again.

import { LOOKS, lookOf, paint } from "./blocks.js";
import { fitCanvas, theme } from "./tools.js";

const LARGEST = 22, SMALLEST = 3, MOST_HEIGHT = 440;

export class BlockMap {
  // onPick(block, kept): one is pointed at, or chosen to stay; null: none any more.
  constructor(root, onPick) {
    this.root = root;
    this.cells = root.querySelector(".cells");
    this.marks = root.querySelector(".marks");
    this.onPick = onPick;
    this.codes = new Uint8Array(0);
    this.looks = new Uint8Array(0);
    this.cursor = null;
    this.kept = false;
    this.marked = [];
    new ResizeObserver(() => this.layOut()).observe(root);
    this.listen();
  }

  // Another state of the pool. Where it has as many blocks as before, only what differs is drawn.
  show(codes) {
    const same = codes.length === this.codes.length && this.size;
    this.codes = codes;
    if (!same) {
      this.looks = new Uint8Array(codes.length);
      this.layOut(true);
      return;
    }
    for (let block = 0; block < codes.length; block++) {
      const look = lookOf(codes[block]);
      if (look !== this.looks[block]) {
        this.looks[block] = look;
        this.drawCell(block);
      }
    }
  }

  // Outlines these blocks: a request's.
  mark(blocks) {
    if (blocks.length === this.marked.length && blocks.every((block, i) => block === this.marked[i])) return;
    this.marked = blocks;
    this.drawMarks();
  }

  recolour() {
    this.layOut(true);
  }

  layOut(anew = false) {
    const width = Math.floor(this.root.clientWidth), number = this.codes.length;
    if (!width || !number || (!anew && width === this.width)) return;
    this.width = width;
    let size = Math.min(LARGEST, Math.floor(Math.sqrt((width * MOST_HEIGHT) / number)));
    size = Math.max(SMALLEST, size);
    // The widest cells of this many columns: the right edge is straight.
    this.columns = Math.max(1, Math.floor(width / size));
    this.size = size;
    const height = Math.ceil(number / this.columns) * size;
    this.root.style.height = this.cells.style.height = this.marks.style.height = `${height}px`;
    this.context = fitCanvas(this.cells, width, height);
    this.over = fitCanvas(this.marks, width, height);
    this.sprites = this.makeSprites(size);
    for (let block = 0; block < number; block++) {
      this.looks[block] = lookOf(this.codes[block]);
      this.drawCell(block);
    }
    this.drawMarks();
  }

  makeSprites(size) {
    const colours = theme();
    return LOOKS.map((_, look) => {
      const canvas = document.createElement("canvas");
      paint(fitCanvas(canvas, size, size), look, 0, 0, size, colours);
      return canvas;
    });
  }

  place(block) {
    return [(block % this.columns) * this.size, Math.floor(block / this.columns) * this.size];
  }

  drawCell(block) {
    const [x, y] = this.place(block);
    this.context.clearRect(x, y, this.size, this.size);
    this.context.drawImage(this.sprites[this.looks[block]], x, y, this.size, this.size);
  }

  drawMarks() {
    if (!this.over) return;
    const over = this.over, size = this.size, colours = theme();
    over.clearRect(0, 0, this.width, this.marks.height);
    over.strokeStyle = colours.mark;
    over.lineWidth = size >= 8 ? 2 : 1;
    for (const block of this.marked) {
      const [x, y] = this.place(block);
      over.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
    }
    if (this.cursor === null) return;
    const [x, y] = this.place(this.cursor);
    over.lineWidth = 2.5;
    over.strokeStyle = colours.ink;
    over.strokeRect(x - 1.5, y - 1.5, size + 2, size + 2);
  }

  pick(block, kept = false) {
    if (block === this.cursor && kept === this.kept) return;
    this.cursor = block;
    this.kept = kept && block !== null;
    this.drawMarks();
    this.onPick(block, this.kept);
  }

  at(event) {
    const column = Math.floor(event.offsetX / this.size), row = Math.floor(event.offsetY / this.size);
    const block = row * this.columns + column;
    return column < this.columns && block >= 0 && block < this.codes.length ? block : null;
  }

  listen() {
    const marks = this.marks;
    marks.addEventListener("pointermove", (event) => {
      if (!this.kept && event.pointerType === "mouse") this.pick(this.at(event));
    });
    marks.addEventListener("pointerleave", () => {
      if (!this.kept && document.activeElement !== marks) this.pick(null);
    });
    marks.addEventListener("click", (event) => {
      const block = this.at(event);
      this.pick(block, block !== null && !(this.kept && block === this.cursor));
    });
    marks.addEventListener("keydown", (event) => this.onKey(event));
    marks.addEventListener("focus", () => {
      if (this.cursor === null && this.codes.length && marks.matches(":focus-visible")) this.pick(0);
    });
  }

  onKey(event) {
    const page = this.columns * 8;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page,
      Home: -this.codes.length, End: this.codes.length,
    };
    if (event.key === "Escape") this.pick(null);
    else if (event.key === "Enter" || event.key === " ") this.pick(this.cursor, !this.kept);
    else if (event.key in steps) {
      const target = (this.cursor ?? 0) + steps[event.key];
      this.pick(Math.max(0, Math.min(this.codes.length - 1, target)));
    } else return;
    event.preventDefault();
  }
}
