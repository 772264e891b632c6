# Container image of teletensord. One stage builds the daemon; the next contains only the daemon and
# the libraries that it is linked with.
# build: buildah bud --isolation chroot -t teletensor .      (or docker build -t teletensor .)
#        --target cuda adds the library that compiles kernels for NVIDIA's GPUs
# run:   see deploy/compose.yaml. The daemon listens on a UNIX socket in /run/teletensor, which a
#        client outside reaches through a shared volume. No TCP port is exposed; TCP needs TLS.
FROM debian:12-slim AS build
WORKDIR /src
COPY deploy/packages.txt deploy/install-packages deploy/
RUN deploy/install-packages && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DTELETENSOR_TESTS=OFF \
    && cmake --build --preset release --target teletensord teletensor-health \
    && install -D -s -t /out/usr/local/bin build/release/bin/* \
    && deploy/runtime-packages /out/usr/local/bin/* > /out/packages.txt

FROM debian:12-slim AS plain
COPY --from=build /src/deploy/install-packages /out/packages.txt /tmp/
RUN /tmp/install-packages /tmp/packages.txt && rm -rf /var/lib/apt/lists/* /tmp/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin teletensor \
    && install -d -o teletensor -g teletensor -m 0755 /run/teletensor
COPY --from=build /out/usr/local/bin /usr/local/bin
COPY LICENSE NOTICE THIRD_PARTY.md /usr/share/doc/teletensor/
USER teletensor
VOLUME /run/teletensor
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["teletensor-health", "unix:/run/teletensor/teletensor.sock"]
ENTRYPOINT ["teletensord"]
CMD ["--socket", "/run/teletensor/teletensor.sock", "--listen", ""]

# The driver (libcuda.so.1) comes from the host, through NVIDIA's container toolkit.
FROM nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04 AS toolkit

FROM plain AS cuda
USER root
COPY --from=toolkit /usr/local/cuda/targets/x86_64-linux/lib/libnvrtc*.so.* \
    /usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.* /usr/local/cuda/lib64/
COPY --from=toolkit /usr/lib/x86_64-linux-gnu/libcudnn*.so.9 /usr/local/cuda/lib64/
RUN echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/cuda.conf && ldconfig
USER teletensor
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM plain
