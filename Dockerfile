# The orchestrator alone: no GPU, no handlers' libraries. Build context is the repository.
# The digest is that of the multi-platform index in docker-library/repo-info (repos/python/remote/3.12-slim.md).
FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PYTHONPATH=/app
WORKDIR /app

# Dependencies first: this layer stays while only our code changes.
COPY requirements.txt .
RUN python -m pip install --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements.txt

COPY orchestrator orchestrator
COPY worker worker
COPY gpu_orchestrator gpu_orchestrator
COPY migrations migrations
COPY scripts scripts
COPY examples examples
RUN useradd --system --no-create-home --uid 10001 orchestrator

USER orchestrator
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '8080') + '/readyz', timeout=4)"]

# Exec form: the process is PID 1 itself and receives SIGTERM, where a shell would swallow it.
CMD ["python", "-m", "orchestrator", "run"]
