// What a byte of the pool's map says (octavo/core/block_map.py), and how it looks.

export const FREE = 0, CACHED = 1, PINNED = 2, ACTIVE = 3;
const ONLY_PINNED = 127;
const DEPTHS = 4;

export function decode(text) {
  const raw = atob(text);
  const codes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) codes[i] = raw.charCodeAt(i);
  return codes;
}

export function references(code) {
  return code >> 1 === ONLY_PINNED ? 0 : code >> 1;
}

export function stateOf(code) {
  if (code >> 1 === ONLY_PINNED) return PINNED;
  if (code >> 1) return ACTIVE;
  return code & 1 ? CACHED : FREE;
}

// One of the few looks that a block can have: free, cached, pinned, then active by how many share it.
export function lookOf(code) {
  const state = stateOf(code);
  if (state !== ACTIVE) return state;
  const shared = references(code);
  return ACTIVE + (shared < 3 ? shared - 1 : shared < 5 ? 2 : DEPTHS - 1);
}

export const LOOKS = [
  { name: "free", say: "holds nothing" },
  { name: "cached", say: "in the prefix cache, in nobody's table: it may be taken" },
  { name: "pinned", say: "kept by a pin alone" },
  { name: "active", say: "in one table" },
  { name: "shared by 2", say: "in two tables" },
  { name: "by 3 or 4", say: "in three or four tables" },
  { name: "by 5 or more", say: "in five tables or more" },
];

// Draws a cell of this look at (x, y). State is told by pattern too: hollow, hatched, dotted, full, and full with as
// many strokes as share it.
export function paint(context, look, x, y, size, colours) {
  const gap = size >= 6 ? 1 : 0, inner = size - gap;
  if (look === FREE) {
    if (size < 5) {
      context.fillStyle = colours.free;
      context.fillRect(x, y, Math.max(1, inner - 1), Math.max(1, inner - 1));
      return;
    }
    context.strokeStyle = colours.free;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
    return;
  }
  context.fillStyle = look === CACHED ? colours.cached : look === PINNED ? colours.pinned : colours[`shared-${look - ACTIVE + 1}`];
  context.fillRect(x, y, inner, inner);
  if (size < 7) return;
  context.save();
  context.beginPath();
  context.rect(x, y, inner, inner);
  context.clip();
  if (look === CACHED) {
    context.strokeStyle = colours["cached-line"];
    context.lineWidth = Math.max(1, size / 11);
    context.beginPath();
    for (let offset = -inner; offset < inner; offset += Math.max(4, size / 3)) {
      context.moveTo(x + offset, y + inner);
      context.lineTo(x + offset + inner, y);
    }
    context.stroke();
  } else if (look === PINNED) {
    context.fillStyle = colours["pinned-line"];
    context.beginPath();
    context.arc(x + inner / 2, y + inner / 2, inner / 4.5, 0, 2 * Math.PI);
    context.fill();
  } else if (look > ACTIVE && size >= 10) {
    const strokes = look - ACTIVE + 1, width = Math.max(1, inner / 10);
    context.fillStyle = look - ACTIVE >= 2 ? colours["shared-1"] : colours["active-line"];
    for (let i = 0; i < strokes; i++) {
      context.fillRect(x + 2 + i * width * 2, y + inner - 2 - inner / 3, width, inner / 3);
    }
  }
  context.restore();
}
