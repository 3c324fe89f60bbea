// Compiled, not run: what the types allow, and what they refuse.

import { ApiError, Client, type Output, type TaskEvent, type TaskInfo } from "gpu-orchestrator-client";

export async function program(signal: AbortSignal): Promise<Output> {
  const client = new Client({ url: "https://orchestrator.example.com", token: "secret" });
  const task = await client.submit({ task_type: "travel_segment", params: { frames: 48 }, priority: 3 }, { signal });
  for await (const event of task.events({ signal })) show(event);
  const info: TaskInfo = await task.wait({ timeoutMs: 5_000, signal });
  if (info.status === "Failed") await task.retry({ version: info.version });
  for await (const line of client.tasks({ status: "Queued" })) console.log(line.id satisfies string);
  // @ts-expect-error  a task has a type
  await client.submit({ params: {} });
  // @ts-expect-error  there is no such status
  client.tasks({ status: "Done" });
  // @ts-expect-error  there is no such field
  await client.submit({ task_type: "t", prioriti: 3 });
  return task.output();
}

function show(event: TaskEvent): void {
  console.log(event.name, event.status, event.progress);
}

export const isRefused = (error: unknown): error is ApiError => error instanceof ApiError && error.id === "E041";
declare const console: { log(...values: unknown[]): void };
