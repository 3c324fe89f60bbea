// Server-sent events of a task.

/**
 * A change of a task. `id`: from which a stream goes on.
 * @typedef {object} TaskEvent
 * @property {"state" | "ended" | "deleted"} name
 * @property {string} id
 * @property {import("./schema.js").components["schemas"]["TaskShown"]["status"] | null} status
 * @property {unknown} progress what the handler reported
 * @property {number | null} attempt
 */

const MAX_LINE_CHARS = 4 << 20;

/** Reads events line by line. */
export class EventParser {
  /** @type {Record<string, string>} */
  #fields = {};

  /**
   * The events of an answer. `alive` is called with each piece that arrives.
   * @param {Response} response
   * @param {() => void} alive
   * @returns {AsyncGenerator<TaskEvent, void, undefined>}
   */
  static async *read(response, alive) {
    if (!response.body) return;
    const parser = new EventParser(), reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        const lines = (rest + value).split("\n");
        rest = lines.pop() ?? "";
        if (rest.length > MAX_LINE_CHARS) throw new RangeError(`a line of more than ${MAX_LINE_CHARS} characters`);
        for (const line of lines) {
          const event = parser.of(line.replace(/\r$/, ""));
          if (event) yield event;
        }
      }
    } finally {
      await reader.cancel().catch(() => {}); // a broken stream is reported by read()
    }
  }

  /** The event that this line ends, if it ends one. @param {string} line @returns {TaskEvent | null} */
  of(line) {
    if (line) {
      const [, name = "", value = ""] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
      this.#fields[name] = value;
      return null;
    }
    const fields = this.#fields;
    this.#fields = {};
    if (!("data" in fields)) return null;
    const content = JSON.parse(fields["data"] ?? "");
    const { status = null, progress = null, attempt = null } = content;
    const name = /** @type {TaskEvent["name"]} */ (fields["event"] ?? "");
    return { name, id: fields["id"] ?? "", status, progress, attempt };
  }
}
