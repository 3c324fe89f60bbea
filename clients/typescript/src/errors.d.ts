/** The service refused a request. `id` is stable: `orchestrator explain <id>` says more. */
export class ApiError extends Error {
    /** From an answer that may come from a proxy in front of the service. @param {Response} response */
    static of(response: Response): Promise<ApiError>;
    /** @param {number} status @param {Record<string, unknown>} problem */
    constructor(status: number, problem: Record<string, unknown>);
    status: number;
    id: string;
    title: string;
    detail: string;
    fix: string;
}
/** The service gave no answer, however often it was asked. `cause` is the last failure. */
export class ServiceUnavailable extends Error {
}
/** The task has not ended within the time. */
export class WaitTimeout extends Error {
}
