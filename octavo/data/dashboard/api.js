// What is asked of the server. The cookie of the login goes along by itself.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  if (response.ok) return response;
  let message = `${path} answers ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* no error body: the status says it */ }
  throw new Refused(response.status, message);
}

const PATIENCE = 10_000; // ms: a server that takes longer to tell how it is does not answer

const soon = () => ({ signal: AbortSignal.timeout(PATIENCE) });

async function json(path) {
  return (await ask(path, soon())).json();
}

export const pool = (after) => json(`/debug/pool?after=${after}`);
export const block = (id) => json(`/debug/pool/blocks/${id}`);
export const choices = (id) => json(`/debug/pool/requests/${encodeURIComponent(id)}`);
export const metrics = async () => (await ask("/metrics", soon())).text();

// Events of a streamed chat, one by one.
export async function* chat(body, signal) {
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Refused(500, data.error.message);
      yield data;
    }
  }
}
