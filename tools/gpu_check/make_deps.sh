#!/usr/bin/env bash
# make_deps.sh DIR: unpacks the packages of Debian or Ubuntu that a build needs into
# DIR, and writes there which commit this is. Does not load again what is there.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
folder=$1

load() {
  local packages frontier known debs archive
  packages=(libzmq3-dev libsodium-dev cppzmq-dev libprotobuf-dev protobuf-compiler libabsl-dev libgtest-dev libgmock-dev
    libgloo-dev libhwy-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
    libcpp-httplib-dev libbrotli-dev libcurl4-openssl-dev zlib1g-dev libssl-dev pkg-config)
  # And the libraries that these load, but for those that every machine has.
  frontier=("${packages[@]}")
  while ((${#frontier[@]})); do
    known="$(printf '%s\n' "${packages[@]}")"
    mapfile -t frontier < <(apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks \
      --no-replaces --no-enhances "${frontier[@]}" | sed -n 's/^ *|*\(Pre\)*Depends: //p' | sort -u |
      grep -E '^(lib|pkgconf)' | grep -vE -- '-dev$|^(libc6|libgcc|libstdc|libpython|libmpi|libopenmpi)' |
      grep -vxF "$known")
    packages+=("${frontier[@]}")
  done
  mkdir -p "$folder" && debs="$(mktemp -d)" || exit 1
  (cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") || exit 1
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$folder"; done
  # What no build needs.
  rm -rf "$debs" "$folder"/usr/share/{doc,man,locale,lintian,bug} "${folder:?}"/{etc,var}
  find "$folder" -name '*.a' | while read -r archive; do
    [[ -e ${archive%.a}.so && $(readlink "${archive%.a}.so") != /* ]] && rm "$archive"
  done
  find "$folder" -type l -lname '/*' -delete  # To where this machine has it.
}

[[ -n $(find "$folder/usr/lib" -name libzmq.so 2>/dev/null) ]] || load
# The repository itself does not travel, so the check of the files takes its place.
git describe --tags --always --dirty --abbrev=12 >"$folder/COMMIT" || exit 1
git ls-files -z | xargs -0 sha256sum >"$folder/COMMIT.sha256" || exit 1
echo "$(cat "$folder/COMMIT"), $(du -sh "$folder" | cut -f1) in $folder"
