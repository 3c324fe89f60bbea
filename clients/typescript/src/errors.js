// What can go wrong, as a program can tell it apart.

/** The service refused a request. `id` is stable: `orchestrator explain <id>` says more. */
export class ApiError extends Error {
  /** @param {number} status @param {Record<string, unknown>} problem */
  constructor(status, problem) {
    const text = (/** @type {string} */ name) => String(problem[name] ?? "");
    super(`${status} ${text("id")}: ${text("title")}: ${text("detail")}; fix: ${text("fix")}`);
    this.name = "ApiError";
    this.status = status;
    this.id = text("id");
    this.title = text("title");
    this.detail = text("detail");
    this.fix = text("fix");
  }

  /** From an answer that may come from a proxy in front of the service. @param {Response} response */
  static async of(response) {
    const text = await response.text();
    let problem;
    try {
      problem = JSON.parse(text);
    } catch {
      problem = undefined;
    }
    const isObject = typeof problem === "object" && problem !== null && !Array.isArray(problem);
    return new ApiError(response.status, isObject ? problem : { title: response.statusText, detail: text.slice(0, 200) });
  }
}

/** The service gave no answer, however often it was asked. `cause` is the last failure. */
export class ServiceUnavailable extends Error {
  name = "ServiceUnavailable";
}

/** The task has not ended within the time. */
export class WaitTimeout extends Error {
  name = "WaitTimeout";
}
