// The service as Railway's Infrastructure as Code: what railway.toml says, for services that may not use that file.
// docs/railway.md says when which is read. `npm install railway`, then `railway config plan`, `railway config apply`.
import { defineRailway, preserve, project, service } from "railway/iac";

// Every variable that the orchestrator reads, under each of its names; not HOST, PORT and RAILWAY_…, which are the
// platform's. Its value stays where it is, in Railway; a name that were missing here would be deleted by
// `railway config apply`.
const NAMES = [
  "DATABASE_URL", "SUPABASE_URL", "SUPABASE_SERVICE_ROLE_KEY", "SUPABASE_PUBLISHABLE_KEY",
  "SUPABASE_ANON_KEY",
  "RUNPOD_API_KEY", "RUNPOD_API_BASE_URL",
  "RUNPOD_SSH_PUBLIC_KEY", "RUNPOD_SSH_PRIVATE_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
  "AWS_REGION", "AWS_DEFAULT_REGION", "S3_ENDPOINT_URL",
  "ATTEMPTS_RETENTION_DAYS", "EVENTS_RETENTION_DAYS", "WORKERS_RETENTION_DAYS", "DECISIONS_RETENTION_DAYS",
  "AUDIT_RETENTION_DAYS", "HISTORY_RETENTION_DAYS", "TASKS_RETENTION_DAYS",
  "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_BUCKET", "S3_PREFIX", "FLEET_ID", "METRICS_TOKEN", "ADMIN_TOKEN", "VIEWER_TOKEN",
  "TRUSTED_PROXY_HOPS",
  "LOG_LEVEL", "MIN_ACTIVE_GPUS", "MAX_ACTIVE_GPUS", "SCALING_POLICY", "WAIT_PRICE", "MAX_WAIT_SEC", "TASKS_PER_GPU_THRESHOLD", "MACHINES_TO_KEEP_IDLE",
  "GPU_IDLE_TIMEOUT_SEC", "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC", "SPAWNING_GRACE_PERIOD_SEC",
  "SCALE_DOWN_GRACE_PERIOD_SEC", "ORCHESTRATOR_POLL_SEC", "SPAWNING_TIMEOUT_SEC", "BRINGUP_DEADLINES",
  "GRACEFUL_SHUTDOWN_TIMEOUT_SEC", "TASK_STUCK_TIMEOUT_SEC", "HEARTBEAT_TIMEOUT_SEC",
  "MAX_WORKER_FAILURE_RATE", "FAILURE_WINDOW_MINUTES", "MIN_WORKERS_FOR_RATE_CHECK", "WORKER_MAX_CONSECUTIVE_FAILURES", "MAX_HOURLY_COST_USD",
  "DAILY_BUDGET_USD", "POOLS_FILE", "RUNPOD_GPU_TYPE", "RUNPOD_DATA_CENTERS", "RUNPOD_CLOUD",
  "RUNPOD_WORKER_IMAGE", "RUNPOD_REGISTRY_AUTH", "RUNPOD_STORAGE_NAME", "RUNPOD_VOLUME_MOUNT_PATH", "RUNPOD_CONTAINER_DISK_GB",
  "RUNPOD_MIN_MEMORY_GB", "RUNPOD_MIN_VCPU", "WORKER_API_URL", "WORKER_JWT_SECRET", "WORKER_JWT_SECRET_PREVIOUS", "WORKER_JWT_SIGNING_KEY", "WORKER_JWT_SIGNING_KEY_PREVIOUS", "WORKER_CODE_DIR",
  "WORKER_HANDLERS", "WORKER_TASKS_PER_CLAIM", "WORKER_SETUP_COMMAND", "WORKER_ENV", "WORKER_PYTHON", "WORKER_START_COMMAND",
  "DEADMAN_TIMEOUT_SEC", "ALERT_WEBHOOK_URL", "ALERT_QUIET_HOURS", "ALERT_MAX_PER_HOUR",
  "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "SENTRY_DSN",
  "WEBHOOK_SECRET", "WEBHOOK_SECRET_PREVIOUS", "WEBHOOK_PRIVATE_NETWORKS",
];

export default defineRailway(() => {
  const orchestrator = service("orchestrator", {
    build: { builder: "DOCKERFILE", dockerfilePath: "Dockerfile" },
    preDeploy: ["python -m orchestrator migrate"],
    start: "python -m orchestrator run",
    healthcheck: "/readyz",
    healthcheckTimeout: 120,
    replicas: 1,
    deploy: { restartPolicyType: "ALWAYS", overlapSeconds: 10, drainingSeconds: 30 },
    env: Object.fromEntries(NAMES.map((name) => [name, preserve()])),
  });

  return project("gpu-orchestrator", { resources: [orchestrator] });
});
