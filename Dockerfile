# One image for every service and the agent: `yard serve --target …`, `yard agent`, `yard topics apply`.
# Build from the repository's root: docker build -t gpuyard:0.1.0 .
ARG BASE=debian:12.13-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends binutils python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# pip and the build back end stand beside the environment that is shipped, not in it.
RUN python3 -m venv /build/tools && python3 -m venv --without-pip /opt/gpuyard
COPY requirements-build.lock requirements-runtime.lock /build/
# Wheels only: nothing is compiled here, and nothing that is not in the lock is installed.
RUN /build/tools/bin/pip install --require-hashes --only-binary :all: -r /build/requirements-build.lock \
 && /build/tools/bin/pip --python /opt/gpuyard/bin/python install --require-hashes --only-binary :all: \
    -r /build/requirements-runtime.lock
COPY pyproject.toml README.md /build/source/
COPY libs /build/source/libs
COPY services /build/source/services
RUN /build/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /build/wheels /build/source \
 && /build/tools/bin/pip --python /opt/gpuyard/bin/python install --no-deps --no-index /build/wheels/*.whl
# Symbols for debuggers are a quarter of what the wheels bring.
RUN find /opt/gpuyard -name '*.so*' -type f -exec strip --strip-unneeded {} +
COPY compose/healthcheck.py /opt/gpuyard/

FROM ${BASE}
# tini is PID 1: a Python process would ignore SIGTERM until it has a handler, and would not reap what an agent's keeper
# leaves behind.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
 && groupadd --gid 10001 gpuyard \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/gpuyard --shell /usr/sbin/nologin gpuyard \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/gpuyard \
 && ln -s /opt/gpuyard/bin/yard /usr/local/bin/yard
COPY --from=build /opt/gpuyard /opt/gpuyard
# Tasks that an agent runs find Debian's python3 in PATH, not the environment that gpuyard itself runs in.
ENV LANG=C.UTF-8 HOME=/var/lib/gpuyard PYTHONUNBUFFERED=1 YARD_LISTEN=0.0.0.0:7000
USER 10001:10001
WORKDIR /var/lib/gpuyard
# 7000 health, metrics and internal HTTP · 7010 an agent's task output · 8080 the gateway's API
EXPOSE 7000 7010 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["/usr/bin/python3", "-I", "-S", "/opt/gpuyard/healthcheck.py"]
ENTRYPOINT ["/usr/bin/tini", "--", "yard"]
CMD ["--help"]
