/** A service and a token. The token belongs on a server: it must not reach a browser. */
export class Client {
    /**
     * @param {{url: string, token: string, retries?: number, fetch?: typeof globalThis.fetch}} options
     *   `retries`: how often a request is repeated after no answer, or 429, 502, 503 or 504.
     */
    constructor({ url, token, retries, fetch }: {
        url: string;
        token: string;
        retries?: number;
        fetch?: typeof globalThis.fetch;
    });
    /**
     * Submit a task, once, also if its answer is lost.
     * @param {TaskInput} task
     * @param {Options & {idempotencyKey?: string}} [options]
     * @returns {Promise<Task>}
     */
    submit(task: TaskInput, { idempotencyKey, signal }?: Options & {
        idempotencyKey?: string;
    }): Promise<Task>;
    /**
     * Submit tasks, all or none, once. `depends_on: ["#0"]` names the first one.
     * @param {TaskInput[]} tasks
     * @param {Options & {idempotencyKey?: string}} [options]
     * @returns {Promise<Task[]>}
     */
    submitMany(tasks: TaskInput[], { idempotencyKey, signal }?: Options & {
        idempotencyKey?: string;
    }): Promise<Task[]>;
    /** A task by its id; nothing is asked yet. @param {string} id */
    task(id: string): Task;
    /**
     * Tasks, newest first, page by page.
     * @param {Filters} [filters] `limit`: how many tasks at most, of all pages together; all if it is not set
     * @param {Options} [options]
     * @returns {AsyncGenerator<TaskLine, void, undefined>}
     */
    tasks(filters?: Filters, { signal }?: Options): AsyncGenerator<TaskLine, void, undefined>;
    /**
     * Send a request of the API, repeatedly if need be; its JSON. Throws ApiError or ServiceUnavailable, and TypeError for
     * a body with what JSON does not have.
     * @param {Call} call
     * @param {AbortSignal} [signal]
     * @returns {Promise<any>}
     */
    send(call: Call, signal?: AbortSignal): Promise<any>;
    /**
     * One request, sent once.
     * @param {Call} call
     * @param {AbortSignal} signal
     * @param {string | null} [body] JSON
     * @returns {Promise<Response>}
     */
    open({ method, path, query, headers }: Call, signal: AbortSignal, body?: string | null): Promise<Response>;
    /** How often to repeat. */
    get retries(): number;
    #private;
}
/** One task of a service. */
export class Task {
    /** @param {Client} client @param {string} id */
    constructor(client: Client, id: string);
    id: string;
    /** The task now. @param {Options} [options] @returns {Promise<TaskInfo>} */
    info({ signal }?: Options): Promise<TaskInfo>;
    /**
     * The task when it has ended. Throws WaitTimeout after `timeoutMs`; without it, it waits for ever.
     * @param {Options & {timeoutMs?: number}} [options]
     * @returns {Promise<TaskInfo>}
     */
    wait({ timeoutMs, signal }?: Options & {
        timeoutMs?: number;
    }): Promise<TaskInfo>;
    /**
     * Each change until the task has ended. A broken stream goes on. Throws ApiError or ServiceUnavailable.
     * @param {Options} [options]
     * @returns {AsyncGenerator<TaskEvent, void, undefined>}
     */
    events({ signal }?: Options): AsyncGenerator<TaskEvent, void, undefined>;
    /**
     * End it, a running one with its worker's next heartbeat; with a version, only if it still has that one.
     * @param {Options & {version?: string}} [options]
     * @returns {Promise<TaskInfo | null>} null if the token may not read tasks
     */
    cancel(options?: Options & {
        version?: string;
    }): Promise<TaskInfo | null>;
    /**
     * Queue it again after Failed or Cancelled. With a version, a lost answer is repeated: it cannot happen twice.
     * @param {Options & {version?: string}} [options]
     * @returns {Promise<TaskInfo | null>} null if the token may not read tasks
     */
    retry(options?: Options & {
        version?: string;
    }): Promise<TaskInfo | null>;
    /** Where its output lies. Throws ApiError if it has none. @param {Options} [options] @returns {Promise<Output>} */
    output({ signal }?: Options): Promise<Output>;
    #private;
}
export type Schemas = import("./schema.js").components["schemas"];
export type TaskInfo = Schemas["TaskShown"];
export type TaskLine = Schemas["TaskLine"];
/**
 * `url` is valid for `expires_in_s`; null outside of the orchestrator's bucket.
 */
export type Output = Schemas["OutputShown"];
export type TaskEvent = import("./events.js").TaskEvent;
export type TaskInput = Partial<Omit<Schemas["TaskInput"], "params">> & {
    task_type: string;
    params?: Record<string, unknown>;
};
export type Filters = NonNullable<import("./schema.js").operations["listTasks"]["parameters"]["query"]>;
/**
 * `signal` ends the call and its repetitions.
 */
export type Options = {
    signal?: AbortSignal;
};
export type Call = {
    method: string;
    path: string;
    query?: Record<string, unknown> | undefined;
    body?: unknown;
    headers?: Record<string, string> | undefined;
    /**
     * whether a second one would do something twice
     */
    once?: boolean | undefined;
};
import { ApiError } from "./errors.js";
import { ServiceUnavailable } from "./errors.js";
import { WaitTimeout } from "./errors.js";
export { ApiError, ServiceUnavailable, WaitTimeout };
