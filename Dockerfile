# The service, its weights inside, run by gunicorn as a non-root user.
#
#   docker build -t seewhy .                                              PyTorch with CUDA (runs on CPUs too)
#   docker build -t seewhy --build-arg TORCH_INDEX_URL=<CPU index> .      PyTorch for CPUs only, several GB smaller
#
# It runs with a root file system that cannot be written: docker run --read-only --tmpfs /tmp; see docs/security.md.
#
# The address of the CPU index is the one that PyTorch's "Get started" page gives for pip on Linux with CPU.

FROM docker.io/library/python:3.12-slim AS build
ARG TORCH_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/seewhy
ENV PATH=/opt/seewhy/bin:$PATH

# From what changes least to what changes most: PyTorch, the other dependencies, SeeWhy itself.
RUN pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch>=2.11" "torchvision>=0.26"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
RUN mkdir app explainers models && touch app/__init__.py explainers/__init__.py models/__init__.py \
    && pip install ".[lite,redis,otel]" && pip uninstall --yes seewhy && rm -rf build *.egg-info
COPY app app
COPY explainers explainers
COPY models models
RUN pip install --no-deps .

FROM docker.io/library/python:3.12-slim
RUN useradd --uid 10001 --create-home seewhy
COPY --from=build /opt/seewhy /opt/seewhy
ENV PATH=/opt/seewhy/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
ENV SEEWHY_HOST=0.0.0.0 SEEWHY_PORT=8000
USER 10001
WORKDIR /home/seewhy
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"SEEWHY_PORT\"]}/healthz', timeout=4)"]
CMD ["seewhy", "serve"]
