# syntax=docker/dockerfile:1.7
# The image of a cluster's nodes, head and workers alike: vLLM's own image, and specgate with Ray Serve on top.
#   docker build -t REGISTRY/specgate:0.16.0-vllm0.32.0 .
# What is proven of it without a Docker engine, and what is not: docs/adr/0015-images.md; `make check-images`.

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY serve serve
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM vllm/vllm-openai:v0.32.0
LABEL org.opencontainers.image.title="specgate" \
      org.opencontainers.image.description="LLM gateway on Ray Serve with vLLM: speculation where it is safe" \
      org.opencontainers.image.version="0.16.0" \
      org.opencontainers.image.base.name="docker.io/vllm/vllm-openai:v0.32.0"
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Ray's launcher copies files with rsync, and the head reaches the workers with ssh. Distribution packages are not pinned:
# its mirrors keep one version of each.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-client rsync \
 && rm -rf /var/lib/apt/lists/*

# Our wheel last, its dependencies before it: a change of our code is a layer of a few hundred kB. The pins keep PyTorch
# and vLLM as they are in the base image; the last line fails the build if they are not.
RUN --mount=type=bind,source=pyproject.toml,target=/pins/pyproject.toml \
    --mount=type=bind,source=requirements/gpu.txt,target=/pins/gpu.txt \
    uv pip install --system --no-cache --compile-bytecode --extra ray --constraint /pins/gpu.txt -r /pins/pyproject.toml \
 && python3 -c "import importlib.metadata as m; assert m.version('vllm').split('+')[0] == '0.32.0', m.version('vllm')"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    uv pip install --system --no-cache --no-deps /wheels/*.whl \
 && useradd --create-home --uid 10001 --shell /bin/bash specgate
COPY --chown=specgate:specgate deploy /etc/specgate

USER 10001
WORKDIR /home/specgate
# Ray's launcher reads HOME from the image. The flags must be there when Ray starts, in every process (ADR 0002);
# HAProxy starts through our wrapper (ADR 0024), and its other three flags are what a death or a change costs without them (docs/explanation/failures.md).
ENV HOME=/home/specgate \
    RAY_SERVE_ENABLE_HA_PROXY=1 \
    RAY_SERVE_THROUGHPUT_OPTIMIZED=1 \
    RAY_SERVE_HAPROXY_BINARY_PATH=/usr/local/bin/specgate-haproxy \
    RAY_SERVE_HAPROXY_RETRY_ON="conn-failure empty-response" \
    RAY_SERVE_HAPROXY_TUNE_BUFSIZE=65536 \
    RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S=3600 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1

# Every advisory and every config that ships must read and pass before there is an image, and HAProxy's wrapper be there.
RUN test -x "$RAY_SERVE_HAPROXY_BINARY_PATH" \
 && specgate doctor --config /etc/specgate/h20-kimi-qwen.yaml

EXPOSE 8000
# A node is healthy when its Ray answers; whether every pool is up is what `GET /ready` of the gateway says.
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:52365/api/local_raylet_healthz', timeout=5)"]
# None: Ray's launcher starts the container as `docker run IMAGE bash`, and the base image's would make it `vllm serve bash`.
ENTRYPOINT []
CMD ["bash"]
