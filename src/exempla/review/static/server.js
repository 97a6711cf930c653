// Talking to the server. A decision counts as made when the server has committed it.
//
// What could not be sent is kept, shown, and sent again under the same key `once`, so that it is
// made once however often it arrives. It is also put into localStorage: a reload does not lose it.

import { key } from "./session.js";

const WAIT_MS = 8000;

async function ask(path, wait, headers = {}, more = {}) {
  const signal = AbortSignal.timeout(wait);
  const answer = await fetch(path, { ...more, signal, headers: { ...headers, "X-Exempla": key() } });
  if (!answer.ok) throw new Failure(answer.status, await answer.text());
  return answer;
}

export const get = async (path) => (await ask(path, WAIT_MS)).json();
export const blob = async (path, wait = WAIT_MS) => (await ask(path, wait)).blob();

export async function post(path, body, wait = WAIT_MS) {
  const json = { "Content-Type": "application/json" };
  return (await ask(path, wait, json, { method: "POST", body: JSON.stringify(body) })).json();
}

class Failure extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
    try {
      this.body = JSON.parse(text);
    } catch {
      this.body = {};
    }
  }
}

export class Sender {
  // `report(state, pending, error)` is called with "saving", "saved" or "unsent".
  constructor(key, report) {
    this.prefix = `exempla-unsent:${key}:`;
    this.report = report;
    this.pending = null;
    this.failing = false; // the last attempt failed, and the message waits
    this.timer = null;
    this.onWake = null;
    addEventListener("online", () => this.retryNow());
  }

  get busy() {
    return this.pending !== null;
  }

  // Resolves with {ok} | {conflict} | {refused} once the server has answered, however long it takes.
  async send(path, body, words) {
    const once = crypto.randomUUID();
    return this.deliver({ path, body: { ...body, once }, words });
  }

  async deliver(message) {
    this.pending = message;
    const place = this.prefix + message.body.once;
    remember(place, JSON.stringify(message));
    this.report("saving", message);
    for (let tries = 0; this.pending === message; tries += 1) {
      try {
        const ok = await post(message.path, message.body);
        return this.finish(place, { ok });
      } catch (error) {
        if (error.status === 409) return this.finish(place, { conflict: error.body });
        if ([400, 404, 413, 415, 422].includes(error.status)) {
          return this.finish(place, { refused: error.body.detail ?? error.message });
        }
        if (this.pending !== message) break;
        this.failing = true;
        this.report("unsent", message, error);
        await this.sleep(Math.min(500 * 2 ** tries, 4000));
      }
    }
    forget(place);
    return { discarded: true };
  }

  finish(place, result) {
    forget(place);
    this.pending = null;
    this.failing = false;
    this.report("saved", null);
    return result;
  }

  discard() {
    this.pending = null;
    this.failing = false;
    this.retryNow();
    this.report("saved", null);
  }

  retryNow() {
    clearTimeout(this.timer);
    this.onWake?.();
  }

  sleep(ms) {
    return new Promise((resolve) => {
      this.onWake = resolve;
      this.timer = setTimeout(resolve, ms);
    });
  }

  // What an earlier visit could not send.
  leftovers() {
    const found = [];
    for (let i = 0; i < localStorage.length; i += 1) {
      const name = localStorage.key(i);
      if (!name.startsWith(this.prefix)) continue;
      try {
        found.push(JSON.parse(localStorage.getItem(name)));
      } catch {
        localStorage.removeItem(name);
      }
    }
    return found;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Storage is full or forbidden: the message still waits in memory.
  }
}

function forget(name) {
  try {
    localStorage.removeItem(name);
  } catch {
    // As above.
  }
}
