# The sidecar's image: a static binary, the licence texts of what is linked into it, and nothing else. Under its second name,
# /livenessprobe, the binary takes that sidecar's place.
#
#   docker buildx build --platform linux/amd64,linux/arm64,linux/arm/v7,linux/ppc64le,linux/s390x --build-arg VERSION=v1.2.3 .
#
# The build machine's own architecture compiles for all of them. BUILDER is a Debian 12 with its security suite, where a
# current Rust comes from.
ARG BUILDER=debian:bookworm

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates cargo-web gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

ARG TARGETARCH
ARG TARGETVARIANT
# The target's names at Debian, GNU and Rust. A foreign target needs a linker and a C library, and cargo builds its standard
# library from Debian's sources, for which it wants unstable options: Debian has no current binaries for all of them.
RUN case "$TARGETARCH/$TARGETVARIANT" in \
      amd64/*)   set -- amd64 x86_64-linux-gnu x86_64-unknown-linux-gnu ;; \
      arm64/*)   set -- arm64 aarch64-linux-gnu aarch64-unknown-linux-gnu ;; \
      arm/v7)    set -- armhf arm-linux-gnueabihf armv7-unknown-linux-gnueabihf ;; \
      ppc64le/*) set -- ppc64el powerpc64le-linux-gnu powerpc64le-unknown-linux-gnu ;; \
      s390x/*)   set -- s390x s390x-linux-gnu s390x-unknown-linux-gnu ;; \
      *) echo "no image is made for $TARGETARCH/$TARGETVARIANT" >&2; exit 1 ;; \
    esac \
 && echo "export LINKER=$2-gcc CARGO_BUILD_TARGET=$3" > /target \
 && if [ "$1" != "$(dpkg --print-architecture)" ]; then \
      echo 'export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort' >> /target \
      && apt-get update \
      && apt-get install --yes --no-install-recommends \
           "gcc-$(echo "$2" | tr _ -)" "libc6-dev-$1-cross" rust-web-src \
      && rm -rf /var/lib/apt/lists/*; \
    fi

WORKDIR /src
COPY . .
ARG VERSION=dev
# Static, and at a fixed address: a position-independent program is larger in the file and in memory.
RUN . /target \
 && export REGISTRAR_VERSION="$VERSION" CARGO_TARGET_DIR=/tmp/target \
      RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static -C linker=$LINKER" \
 && cargo build --release --locked --no-default-features --features registrar --bin csi-node-driver-registrar \
 && mkdir /image \
 && cp "/tmp/target/$CARGO_BUILD_TARGET/release/csi-node-driver-registrar" /image/ \
 && ln -s csi-node-driver-registrar /image/livenessprobe \
 && deploy/image/licenses /image/licenses

FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="csi-node-driver-registrar" \
      org.opencontainers.image.description="Registers a CSI driver with the kubelet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /image /
ENTRYPOINT ["/csi-node-driver-registrar"]
