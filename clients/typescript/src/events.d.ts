/** Reads events line by line. */
export class EventParser {
    /**
     * The events of an answer. `alive` is called with each piece that arrives.
     * @param {Response} response
     * @param {() => void} alive
     * @returns {AsyncGenerator<TaskEvent, void, undefined>}
     */
    static read(response: Response, alive: () => void): AsyncGenerator<TaskEvent, void, undefined>;
    /** The event that this line ends, if it ends one. @param {string} line @returns {TaskEvent | null} */
    of(line: string): TaskEvent | null;
    #private;
}
/**
 * A change of a task. `id`: from which a stream goes on.
 */
export type TaskEvent = {
    name: "state" | "ended" | "deleted";
    id: string;
    status: import("./schema.js").components["schemas"]["TaskShown"]["status"] | null;
    /**
     * what the handler reported
     */
    progress: unknown;
    attempt: number | null;
};
