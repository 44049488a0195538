# Two images from one file:
#
#   docker build -t tally .                       for a CPU
#   docker build -t tally:cuda --target cuda .    with NVIDIA's runtime, for versions that have CUDA kernels; without them the
#                                                 program in it is the CPU one
#
#   docker run --rm -p 127.0.0.1:8000:8000 -v /path/to/models:/models:ro tally serve --model /models/FILE.gguf
#
# Nothing is authenticated: publish the port on an address of this machine only, or put a proxy in front.

# ---- CUDA ----
FROM nvidia/cuda:12.6.3-devel-ubuntu24.04 AS cuda-build
WORKDIR /src
COPY scripts/common.sh scripts/
RUN bash -c '. scripts/common.sh && install_packages "${BUILD_PACKAGES[@]}"'
COPY . .
RUN cmake -S . -B build -G Ninja -DTALLY_TESTS=OFF -DTALLY_CUDA=AUTO && ninja -C build tally

FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04 AS cuda
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl libmicrohttpd12t64 libjansson4 libcyaml1 libpcre2-8-0 libutf8proc3 \
       libxxhash0 libcurl4t64 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tally
COPY --from=cuda-build /src/build/tally /usr/local/bin/tally
COPY LICENSE /usr/share/doc/tally/LICENSE
USER 10001:10001
ENV TALLY_HOST=0.0.0.0 TALLY_PORT=8000 TALLY_ALLOW_REMOTE=true
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["tally"]
CMD ["serve", "--help"]

# ---- CPU, the default ----
FROM debian:12-slim AS cpu-build
WORKDIR /src
COPY scripts/common.sh scripts/
RUN bash -c '. scripts/common.sh && install_packages "${BUILD_PACKAGES[@]}"'
COPY . .
RUN cmake -S . -B build -G Ninja -DTALLY_TESTS=OFF -DTALLY_CUDA=OFF && ninja -C build tally

FROM debian:12-slim AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl libmicrohttpd12 libjansson4 libcyaml1 libpcre2-8-0 libutf8proc2 \
       libxxhash0 libcurl4 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tally
COPY --from=cpu-build /src/build/tally /usr/local/bin/tally
COPY LICENSE /usr/share/doc/tally/LICENSE
USER 10001:10001
ENV TALLY_HOST=0.0.0.0 TALLY_PORT=8000 TALLY_ALLOW_REMOTE=true
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["tally"]
CMD ["serve", "--help"]
