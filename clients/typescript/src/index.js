// A client of gpu-orchestrator's API: submit tasks, wait for them, follow them, get their outputs. No dependencies.
//
// The source is JavaScript with types in comments, so it runs without a build. `npm run generate` writes index.d.ts.

import { EventParser } from "./events.js";
import { ApiError, ServiceUnavailable, WaitTimeout } from "./errors.js";

export { ApiError, ServiceUnavailable, WaitTimeout };

/** @typedef {import("./schema.js").components["schemas"]} Schemas */
/** @typedef {Schemas["TaskShown"]} TaskInfo */
/** @typedef {Schemas["TaskLine"]} TaskLine */
/** @typedef {Schemas["OutputShown"]} Output `url` is valid for `expires_in_s`; null outside of the orchestrator's bucket. */
/** @typedef {import("./events.js").TaskEvent} TaskEvent */
/** @typedef {Partial<Omit<Schemas["TaskInput"], "params">> & {task_type: string, params?: Record<string, unknown>}} TaskInput */
/** @typedef {NonNullable<import("./schema.js").operations["listTasks"]["parameters"]["query"]>} Filters */
/** @typedef {{signal?: AbortSignal}} Options `signal` ends the call and its repetitions. */
/**
 * @typedef {object} Call
 * @property {string} method
 * @property {string} path
 * @property {Record<string, unknown>} [query]
 * @property {unknown} [body]
 * @property {Record<string, string>} [headers]
 * @property {boolean} [once] whether a second one would do something twice
 */

const WAIT_S = 20; // of one call that waits; the service allows 25 s
const ANSWER_MS = 30_000; // for the service to answer
const LATE_MS = 2_000; // how much later than the end of its wait an answer may come
const MAX_TIMER_MS = 2 ** 31 - 1 - LATE_MS; // of setTimeout
const PAGE = 200; // tasks of one page at most
const SILENCE_MS = 45_000; // of a stream: the service sends a comment every 15 s
const FIRST_PAUSE_MS = 200, MAX_PAUSE_MS = 10_000, MAX_RETRY_AFTER_MS = 60_000;
const REPEATED = [429, 502, 503, 504]; // HTTP statuses after which a request may be sent again
const NOT_DONE = [429]; // … and those that say that nothing was done

/** A service and a token. The token belongs on a server: it must not reach a browser. */
export class Client {
  /** @type {string} */
  #base;
  /** @type {string} */
  #token;
  /** @type {number} */
  #retries;
  /** @type {typeof globalThis.fetch} */
  #fetch;

  /**
   * @param {{url: string, token: string, retries?: number, fetch?: typeof globalThis.fetch}} options
   *   `retries`: how often a request is repeated after no answer, or 429, 502, 503 or 504.
   */
  constructor({ url, token, retries = 5, fetch = globalThis.fetch }) {
    if (!url || !token) throw new TypeError("no url or no token");
    [url, token] = [plain(url), plain(token)];
    if (!/^https?:\/\/[^/?#\s]+[^?#\s]*$/.test(url)) throw new TypeError("the url is none such as https://gpu.example.com");
    if (!/^[!-~]+$/.test(token)) throw new TypeError("the token has a character that no token has");
    this.#base = `${url.replace(/\/+$/, "").replace(/\/api\/v1$/, "")}/api/v1`;
    this.#token = token;
    this.#retries = retries;
    this.#fetch = (...request) => fetch(...request);
  }

  /**
   * Submit a task, once, also if its answer is lost.
   * @param {TaskInput} task
   * @param {Options & {idempotencyKey?: string}} [options]
   * @returns {Promise<Task>}
   */
  async submit(task, { idempotencyKey = newKey(), signal } = {}) {
    const headers = { "Idempotency-Key": idempotencyKey };
    const { id } = await this.send({ method: "POST", path: "/tasks", body: task, headers }, signal);
    return new Task(this, id);
  }

  /**
   * Submit tasks, all or none, once. `depends_on: ["#0"]` names the first one.
   * @param {TaskInput[]} tasks
   * @param {Options & {idempotencyKey?: string}} [options]
   * @returns {Promise<Task[]>}
   */
  async submitMany(tasks, { idempotencyKey = newKey(), signal } = {}) {
    const headers = { "Idempotency-Key": idempotencyKey };
    const answer = await this.send({ method: "POST", path: "/tasks/batch", body: { tasks }, headers }, signal);
    return answer.tasks.map((/** @type {{id: string}} */ one) => new Task(this, one.id));
  }

  /** A task by its id; nothing is asked yet. @param {string} id */
  task(id) {
    return new Task(this, id);
  }

  /**
   * Tasks, newest first, page by page.
   * @param {Filters} [filters] `limit`: how many tasks at most, of all pages together; all if it is not set
   * @param {Options} [options]
   * @returns {AsyncGenerator<TaskLine, void, undefined>}
   */
  async *tasks(filters = {}, { signal } = {}) {
    let { cursor, limit: left = Infinity } = filters;
    while (left > 0) {
      const limit = left === Infinity ? undefined : Math.min(left, PAGE);
      const page = await this.send({ method: "GET", path: "/tasks", query: { ...filters, limit, cursor } }, signal);
      yield* page.tasks.slice(0, left);
      left -= page.tasks.length;
      cursor = page.next ?? undefined;
      if (!cursor) return;
    }
  }

  /**
   * Send a request of the API, repeatedly if need be; its JSON. Throws ApiError or ServiceUnavailable, and TypeError for
   * a body with what JSON does not have.
   * @param {Call} call
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  async send(call, signal) {
    const body = call.body === undefined ? null : JSON.stringify(call.body, finite);
    for (let attempt = 0; ; attempt++) {
      const timer = limited(signal, ANSWER_MS);
      let failure, response;
      try {
        response = await this.open(call, timer.signal, body);
        if (response.ok) return await response.json();
        failure = await ApiError.of(response);
      } catch (error) {
        signal?.throwIfAborted();
        failure = new ServiceUnavailable("the service gave no answer", { cause: error });
        response = undefined;
      } finally {
        timer.clear();
      }
      const repeated = response ? (call.once ? NOT_DONE : REPEATED).includes(response.status) : !call.once;
      if (!repeated || attempt >= this.#retries) throw failure;
      await pause(attempt, response, signal);
    }
  }

  /**
   * One request, sent once.
   * @param {Call} call
   * @param {AbortSignal} signal
   * @param {string | null} [body] JSON
   * @returns {Promise<Response>}
   */
  open({ method, path, query = {}, headers = {} }, signal, body = null) {
    const given = Object.entries(query).flatMap(([name, value]) =>
      [value].flat().filter((one) => one !== undefined).map((one) => [name, String(one)]));
    const search = given.length ? `?${new URLSearchParams(given)}` : "";
    /** @type {Record<string, string>} */
    const json = body === null ? {} : { "Content-Type": "application/json" };
    return this.#fetch(this.#base + path + search, {
      method,
      headers: { Authorization: `Bearer ${this.#token}`, Accept: "application/json", ...json, ...headers },
      body,
      redirect: "error", // the token goes to the service and nowhere else
      signal,
    });
  }

  /** How often to repeat. */
  get retries() {
    return this.#retries;
  }
}

/** One task of a service. */
export class Task {
  /** @type {Client} */
  #client;
  /** @type {string} */
  #path;

  /** @param {Client} client @param {string} id */
  constructor(client, id) {
    this.id = id;
    this.#client = client;
    this.#path = `/tasks/${encodeURIComponent(id)}`;
  }

  /** The task now. @param {Options} [options] @returns {Promise<TaskInfo>} */
  info({ signal } = {}) {
    return this.#client.send({ method: "GET", path: this.#path }, signal);
  }

  /**
   * The task when it has ended. Throws WaitTimeout after `timeoutMs`; without it, it waits for ever.
   * @param {Options & {timeoutMs?: number}} [options]
   * @returns {Promise<TaskInfo>}
   */
  async wait({ timeoutMs = Infinity, signal } = {}) {
    const until = Date.now() + timeoutMs, path = `${this.#path}/wait`;
    const timer = timeoutMs < MAX_TIMER_MS ? limited(signal, timeoutMs + LATE_MS) : undefined;
    try {
      for (;;) {
        const timeout_s = Math.max(0, Math.min(WAIT_S, (until - Date.now()) / 1000));
        const answer = await this.#client.send({ method: "GET", path, query: { timeout_s } }, timer?.signal ?? signal);
        if (answer.ended) return answer.task;
        if (Date.now() >= until) throw new WaitTimeout(`task ${this.id} is ${answer.task.status} after ${timeoutMs} ms`);
      }
    } catch (error) {
      signal?.throwIfAborted();
      throw timer?.signal.aborted ? new WaitTimeout(`no answer about task ${this.id} after ${timeoutMs} ms`) : error;
    } finally {
      timer?.clear();
    }
  }

  /**
   * Each change until the task has ended. A broken stream goes on. Throws ApiError or ServiceUnavailable.
   * @param {Options} [options]
   * @returns {AsyncGenerator<TaskEvent, void, undefined>}
   */
  async *events({ signal } = {}) {
    let lastId = "", attempt = 0;
    for (; ; attempt++) {
      const timer = limited(signal, SILENCE_MS);
      let failure, response;
      try {
        const headers = { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) };
        response = await this.#client.open({ method: "GET", path: `${this.#path}/events`, headers }, timer.signal);
        if (!response.ok) throw await ApiError.of(response);
        for await (const event of EventParser.read(response, timer.restart)) {
          [lastId, attempt] = [event.id, 0];
          yield event;
          if (event.name === "ended" || event.name === "deleted") return;
        }
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof ApiError && !REPEATED.includes(error.status)) throw error;
        failure = error;
      } finally {
        timer.abort(); // also if the caller leaves the loop
      }
      if (attempt >= this.#client.retries) {
        throw new ServiceUnavailable("the stream of events cannot be continued", { cause: failure });
      }
      await pause(attempt, response, signal);
    }
  }

  /**
   * End it, a running one with its worker's next heartbeat; with a version, only if it still has that one.
   * @param {Options & {version?: string}} [options]
   * @returns {Promise<TaskInfo | null>} null if the token may not read tasks
   */
  cancel(options) {
    return this.#act("cancel", options);
  }

  /**
   * Queue it again after Failed or Cancelled. With a version, a lost answer is repeated: it cannot happen twice.
   * @param {Options & {version?: string}} [options]
   * @returns {Promise<TaskInfo | null>} null if the token may not read tasks
   */
  retry(options) {
    return this.#act("retry", options);
  }

  /** Where its output lies. Throws ApiError if it has none. @param {Options} [options] @returns {Promise<Output>} */
  output({ signal } = {}) {
    return this.#client.send({ method: "GET", path: `${this.#path}/output` }, signal);
  }

  /**
   * @param {"cancel" | "retry"} name
   * @param {Options & {version?: string}} [options]
   * @returns {Promise<TaskInfo | null>}
   */
  async #act(name, { version, signal } = {}) {
    /** @type {Record<string, string>} */
    const headers = version === undefined ? {} : { "If-Match": `"${version}"` };
    const once = name === "retry" && version === undefined;
    return (await this.#client.send({ method: "POST", path: `${this.#path}/${name}`, headers, once }, signal)).task;
  }
}

/** A value as other tools write it: without spaces and quotes around it. @param {string} value */
function plain(value) {
  return value.trim().replace(/^(["'])(.*)\1$/s, "$2").trim();
}

/** Refuse a number that JSON.stringify would turn into null. @param {string} key @param {unknown} value */
function finite(key, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`${key}: ${value} is not JSON`);
  return value;
}

/** A key that no other submission has. Node 18 has no global `crypto`. */
function newKey() {
  const random = () => Math.random().toString(36).slice(2);
  return globalThis.crypto?.randomUUID?.() ?? Array.from({ length: 4 }, random).join("-");
}

/**
 * A signal that ends with the caller's, or after a time.
 * @param {AbortSignal | undefined} signal
 * @param {number} ms
 */
function limited(signal, ms) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  let timer = setTimeout(abort, ms);
  signal?.addEventListener("abort", abort);
  if (signal?.aborted) abort();
  const clear = () => { clearTimeout(timer); signal?.removeEventListener("abort", abort); };
  const restart = () => { clearTimeout(timer); timer = setTimeout(abort, ms); };
  return { signal: controller.signal, clear, restart, abort: () => { clear(); controller.abort(); } };
}

/**
 * Wait before a repetition: longer each time, with jitter, and at least as long as the service asks for.
 * @param {number} attempt
 * @param {Response | undefined} response
 * @param {AbortSignal | undefined} signal
 */
async function pause(attempt, response, signal) {
  const planned = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt) * (0.5 + Math.random() / 2);
  const asked = response?.headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(asked) ? Math.max(planned, Math.min(1000 * Number(asked), MAX_RETRY_AFTER_MS)) : planned;
  const timer = limited(signal, ms);
  await new Promise((resolve) => timer.signal.addEventListener("abort", resolve, { once: true }));
  timer.clear();
  signal?.throwIfAborted();
}
