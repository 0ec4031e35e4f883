# plimsoll, its C library and CA certificates, and nothing else. See docs/deploy.md.
#
#   docker build -t plimsoll:0.1.0 .
#   docker build -t plimsoll:0.1.0-cuda --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04 .     for jobs on cards

# Has glibc, libgcc and CA certificates, no shell, and a user of its own. Steps on cards need CUDA's libraries (NVRTC, cuBLASLt) beside it.
ARG BASE=gcr.io/distroless/cc-debian12:nonroot

# As old a C library as the base has: what is built against a newer one does not start.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p plimsoll && strip target/release/plimsoll

FROM ${BASE}
COPY --from=build /src/target/release/plimsoll /usr/local/bin/plimsoll
# For bases that have no user of their own; compose and Kubernetes files of `plimsoll deploy` set the owner of the run folder.
USER 65532:65532
# What the driver's container toolkit is to bring: computing and NVML, no graphics. Which cards, the starter says.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# A run saves and ends on it; give it as much time as the plan says (`plimsoll deploy` does).
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/plimsoll"]
