# One image, both commands: python -m extender, python -m controller.
#   docker build -t serried:0.2.0 .
# With --build-arg LOCK=traces it can also send traces. PYTHON_IMAGE may be an image of your own.
ARG PYTHON_IMAGE=pinned

# Dependabot raises the digest, which is that of an index for all architectures.
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7 AS pinned

FROM ${PYTHON_IMAGE} AS build
ARG PREFIX=/opt/serried
ARG LOCK=runtime
# Byte code is made here, because the final file system is read-only.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ONLY_BINARY=:all:
WORKDIR /src
# The locks first: a change of our own code then reuses the layers of the dependencies.
COPY locks/build.txt locks/runtime.txt locks/traces.txt locks/
RUN python -m venv build-tools \
    && build-tools/bin/pip install --require-hashes --requirement locks/build.txt \
    && python -m venv "${PREFIX}" \
    && "${PREFIX}/bin/pip" install --require-hashes --requirement "locks/${LOCK}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY serried serried
COPY extender extender
COPY controller controller
COPY cli cli
# Without isolation the build uses the hashed tools, and nothing that the index offers today.
RUN build-tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && "${PREFIX}/bin/pip" install --no-deps --no-index dist/serried-*.whl \
    && "${PREFIX}/bin/pip" uninstall --yes pip setuptools

FROM ${PYTHON_IMAGE}
ARG PREFIX=/opt/serried
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="serried" \
      org.opencontainers.image.source="https://github.com/serried/serried" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.description="Gang scheduling and topology-aware placement for a stock kube-scheduler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build ${PREFIX} ${PREFIX}
# The file system is read-only; one arena per few threads keeps glibc from hoarding memory.
ENV PATH="${PREFIX}/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2
USER 65532:65532
WORKDIR /
# Ops ports of extender and controller; the verbs listen on loopback.
EXPOSE 8912 8913
CMD ["python", "-m", "extender"]
