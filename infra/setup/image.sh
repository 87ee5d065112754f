# The sandbox image, and the base it stands on. Sourced by setup.sh after lib.sh and docker.sh.
# shellcheck shell=bash

PUBLIC_BASE="python:3.11-slim-bookworm"
# The index of all platforms that this tag had in September 2026 (Python 3.11.16): what is pulled is this, whatever the tag says now.
PUBLIC_DIGEST="sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"
SANDBOX_FOLDER="containers/sandbox"

image_id() { docker image inspect --format '{{.Id}}' "$1" 2>/dev/null; }

apt_value() { apt-config shell V "$1" | sed -n "s/^V='\(.*\)'\$/\1/p"; }

# Debian's release is fixed, so that the sandbox's Python is 3.11 everywhere; Ubuntu's archive holds only Ubuntu's.
base_suite() {
    # shellcheck disable=SC1091
    (. /etc/os-release && if [ "$ID" = debian ]; then echo bookworm; else echo "${VERSION_CODENAME:?}"; fi)
}

# The archive that apt already uses here: it is within reach, and near.
base_mirror() {
    # shellcheck disable=SC2016  # apt fills these in
    apt-get indextargets --format '$(REPO_URI) $(COMPONENT) $(RELEASE)' 'Created-By: Packages' |
        awk '$1 ~ /^https?:/ && $2 == "main" && $3 !~ /security|updates|backports/ { print $1; exit }'
}

# debootstrap downloads with wget, which knows nothing of apt's proxy and certificates.
use_apt_network() {
    local proxy ca
    proxy=$(apt_value Acquire::http::Proxy)
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy="$proxy"; fi
    proxy=$(apt_value Acquire::https::Proxy)
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export https_proxy="$proxy"; fi
    ca=$(apt_value Acquire::https::CaInfo)
    if [ -n "$ca" ]; then
        printf 'ca_certificate = %s\n' "$ca" >"$CACHE/wgetrc"
        export WGETRC="$CACHE/wgetrc"
    fi
}

# import_tree FOLDER: without what no Python program reads.
import_tree() {
    set -o pipefail
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/usr/share/doc "$1"/usr/share/man
    rm -rf "$1"/usr/share/locale
    tar -C "$1" --numeric-owner --one-file-system -c . |
        docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
            --change 'CMD ["python3"]' - "$BASE_IMAGE"
}

# Unpacking a hundred packages flushes every file to the disk: in memory it takes a third of the time.
in_memory() {
    awk '/^MemAvailable:/ && $2 > 2000000 { enough = 1 } END { exit !enough }' /proc/meminfo &&
        mount -t tmpfs -o size=1g tmpfs "$1" 2>/dev/null
}

# In a subshell, so that the proxy settings and the trap stay inside.
debootstrap_base() (
    mirror=$(base_mirror)
    [ -n "$mirror" ] || fail 1 "no Debian archive among apt's sources"
    use_apt_network
    tree=$(mktemp -d "${TMPDIR:-/var/tmp}/populora-base.XXXXXX")
    trap 'umount "$tree" 2>/dev/null; rm -rf "$tree"' EXIT
    in_memory "$tree" || true
    say "Building the base image with debootstrap: $(base_suite) with python3, about a minute"
    logged debootstrap debootstrap --variant=minbase --include=python3 "$(base_suite)" "$tree" "$mirror" &&
        logged import import_tree "$tree"
)

# By digest, and then under the name that the rest of the set-up knows.
pull_base() {
    logged pull with_timeout 300 docker pull -q "$PUBLIC_BASE@$PUBLIC_DIGEST" 2>/dev/null &&
        docker tag "$PUBLIC_BASE@$PUBLIC_DIGEST" "$PUBLIC_BASE"
}

# Whether the image that has the public name here is the one that its digest names: anybody may have tagged another.
is_public_base() {
    docker image inspect --format '{{join .RepoDigests "\n"}}' "$PUBLIC_BASE" 2>/dev/null | grep -q "@$PUBLIC_DIGEST\$"
}

# Sets BASE to an image with Python that is on this machine.
ensure_base() {
    BASE="$PUBLIC_BASE"
    ! is_public_base || return 0
    BASE="$BASE_IMAGE" # made here, or by whoever gave it this name
    [ -z "$(image_id "$BASE")" ] || return 0
    BASE="$PUBLIC_BASE"
    say "Pulling $BASE by its digest"
    pull_base && return 0
    BASE="$BASE_IMAGE"
    say "Could not pull $PUBLIC_BASE; building a base image from packages instead"
    if ! is_debian || ! is_root; then
        fail 3 "no registry is reachable, and building a base image requires root on Debian or Ubuntu" \
            "load one by hand: docker load < python.tar, then docker tag it $BASE_IMAGE"
    fi
    have debootstrap || apt_install debootstrap || fail 1 "could not install debootstrap"
    debootstrap_base || fail 1 "could not build the base image"
}

# The image carries the digest of what it was made from, so nothing has to be remembered beside Docker.
ensure_sandbox_image() {
    local base_id files made_from want found
    [ -f "$ROOT/$SANDBOX_FOLDER/Dockerfile" ] || fail 1 "$SANDBOX_FOLDER/Dockerfile is missing"
    ensure_base
    base_id=$(image_id "$BASE")
    files=$(cd "$ROOT" && find "$SANDBOX_FOLDER" -type f ! -name '*.pyc' | LC_ALL=C sort)
    # shellcheck disable=SC2086  # a list of names without spaces
    made_from=$(digest $files)
    want=$(printf '%s %s\n' "$base_id" "$made_from" | sha256)
    found=$(docker image inspect --format '{{index .Config.Labels "populora.content"}}' "$SANDBOX_IMAGE" 2>/dev/null) || true
    [ "$found" != "$want" ] || return 0
    say "Building the image $SANDBOX_IMAGE on $BASE"
    # populora.files is what `populora doctor` compares with the folder.
    logged sandbox docker build --network none --build-arg "BASE=$BASE" --label "populora.content=$want" \
        --label "populora.files=$made_from" -t "$SANDBOX_IMAGE" "$ROOT/$SANDBOX_FOLDER" ||
        fail 1 "could not build $SANDBOX_IMAGE"
}
