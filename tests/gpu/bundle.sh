#!/usr/bin/env bash
# Prepares all that tests/gpu/run_all.sh needs on a bare machine without network: libraries with
# headers from Debian's packages (as scripts/setup installs them), wheels from PyPI of the Python
# there, and objects, compiled here with the PyTorch of PYTHON: there they are only linked.
#
#   tests/gpu/bundle.sh [FOLDER]     build/gpu-bundle; what was in it goes
#   PYTHON=python3                   one with PyTorch of the version that is there
#   BUNDLE_PYTHON=3.12               version of the Python on that machine
#   PYTHON_HEADERS=FOLDER            its headers (Python.h); default: of pythonVERSION here, and of the
#                                    python.cpython-....tar.gz that an earlier run's results have
#
# Then, there: BUNDLE=FOLDER tests/gpu/run_all.sh
# Writes FOLDER/{include,lib,wheels,data,objects,python} and FOLDER/bundle.json: versions, and what is
# missing, with the reason. Exit code: 0 done, 1 something that is needed is missing or it is larger
# than 48 MiB.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
case ${1:-} in
  -h | --help)
    sed -n '2,/^# than/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
folder=${1:-$root/build/gpu-bundle}
python_there=${BUNDLE_PYTHON:-3.12}
MOST_BYTES=$((48 << 20))
# Development packages, each with the shared libraries that it links.
PACKAGES=(libzmq3-dev libzmq5 cppzmq-dev nlohmann-json3-dev libspdlog-dev libspdlog1.10 libfmt-dev
  libfmt9 libcli11-dev libxxhash-dev libxxhash0 libgtest-dev libgmock-dev libbenchmark-dev
  libbenchmark1debian)
NEEDED_WHEELS=(pytest psutil pybind11 rich typer)
PEER_WHEELS=(torch-memory-saver kvcached)
DIGITS=sklearn/datasets/data/digits.csv.gz # of scikit-learn, all that the demo takes of it

die() {
  printf 'bundle: %s\n' "$*" >&2
  exit 1
}
command -v dpkg-query >/dev/null || die "no dpkg here: the libraries come from Debian's packages"
for package in "${PACKAGES[@]}"; do
  dpkg-query -W "$package" >/dev/null 2>&1 || die "package $package is not installed: ./scripts/setup"
done
rm -rf "$folder"
mkdir -p "$folder"/{include,lib,wheels}
folder=$(cd -- "$folder" && pwd)

libraries=$(dirname "$(dpkg -L libzmq5 | grep -m1 '/libzmq\.so')")
for package in "${PACKAGES[@]}"; do
  while IFS= read -r file; do
    case $file in
      /usr/include/*)
        target=$folder/include/${file#/usr/include/}
        # Headers of this machine's kind lie in a folder of its name; the compiler looks beside it.
        target=${target/"/include/$(basename "$libraries")/"/"/include/"}
        [ ! -f "$file" ] || { mkdir -p "$(dirname "$target")" && cp -L "$file" "$target"; }
        ;;
      "$libraries"/*.so | "$libraries"/*.so.* | "$libraries"/*.a)
        [ ! -f "$file" ] || cp -P "$file" "$folder/lib/"
        ;;
    esac
  done < <(dpkg -L "$package")
done
# What libzmq itself needs, but for what every machine has.
ldd "$libraries/libzmq.so.5" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' |
  grep -vE '^(libc|libm|libpthread|libresolv|libstdc\+\+|libgcc_s|libdl|librt)\.so' |
  while read -r name path; do cp -L "$path" "$folder/lib/$name"; done

# download NAME...: wheels for the Python there, from PyPI.
download() {
  "${PYTHON:-python3}" -m pip --disable-pip-version-check download --quiet --no-cache-dir \
    --only-binary=:all: --implementation cp --python-version "$python_there" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$folder/wheels" "$@"
}
download "${NEEDED_WHEELS[@]}" || die "no wheels of ${NEEDED_WHEELS[*]} for Python $python_there"
missing=()
mkdir "$folder/data"
if download --no-deps scikit-learn && wheel=$(echo "$folder"/wheels/scikit_learn-*.whl) &&
  "${PYTHON:-python3}" -c '
import sys, zipfile
sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' "$wheel" "$DIGITS" \
    >"$folder/data/digits.csv.gz"; then
  rm "$wheel"
else
  rm -rf "$folder/data" "$folder"/wheels/scikit_learn-*.whl
  missing+=("digits.csv.gz of scikit-learn: it cannot be had")
fi
for wheel in "${PEER_WHEELS[@]}"; do
  # A peer brings PyTorch along: that is there already.
  if ! why=$(download --no-deps "$wheel" 2>&1); then
    missing+=("$wheel: $(tail -n 1 <<<"$why")")
  fi
done

# The headers of the Python there.
suffix=.cpython-${python_there/./}-x86_64-linux-gnu.so
headers=${PYTHON_HEADERS:-}
brought_back=$(find "$root/build" -maxdepth 3 -name "python$suffix.tar.gz" -print -quit 2>/dev/null || true)
if [ -z "$headers" ]; then
  headers=$("python$python_there" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null || true)
fi
if [ -e "$headers/Python.h" ]; then
  cp -rL "$headers" "$folder/python"
elif [ -n "$brought_back" ]; then
  mkdir "$folder/python" && tar -C "$folder/python" -xzf "$brought_back"
else
  missing+=("headers of Python $python_there: PYTHON_HEADERS names none")
fi

# Objects, with what was collected; those of the last time stay where nothing has changed.
compiled=${BUILD:-$root/build/gpu-objects}
echo "bundle: compiling into $compiled, for minutes the first time"
if ! why=$(BUNDLE=$folder BUILD=$compiled PYTHON_SUFFIX=$suffix PYTHON_HEADERS=$folder/python \
  "${PYTHON:-python3}" "$here/stages/toolchain.py" "$here/stages.sh" objects 2>&1); then
  printf '%s\n' "$why" | tail -n 20
  missing+=("some objects, which are compiled there: $(tail -n 1 <<<"$why")")
fi
mkdir "$folder/objects"
find "$compiled" -mindepth 1 -maxdepth 1 -type d ! -name site -exec cp -r -t "$folder/objects" {} + || true

"${PYTHON:-python3}" - "$folder" "$python_there" "${#missing[@]}" "${missing[@]}" "${PACKAGES[@]}" <<'PY'
import json
import pathlib
import subprocess
import sys

folder, python, count, *rest = sys.argv[1:]
missing, packages = rest[: int(count)], rest[int(count) :]
asked = ["dpkg-query", "-W", "-f=${Package} ${Version}\n", *packages]
lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
told = {
    "schema": 1,
    "python": python,
    "packages": dict(line.split(" ", 1) for line in lines),
    "wheels": sorted(path.name for path in (pathlib.Path(folder) / "wheels").iterdir()),
    "missing": missing,
}
(pathlib.Path(folder) / "bundle.json").write_text(json.dumps(told, indent=1) + "\n")
PY
bytes=$(du -sb "$folder" | cut -f1)
printf 'bundle: %s, %s MiB, %s wheels\n' "$folder" "$((bytes >> 20))" "$(find "$folder/wheels" -name '*.whl' | wc -l)"
for line in "${missing[@]}"; do printf 'bundle: without %s\n' "$line"; done
[ "$bytes" -le "$MOST_BYTES" ] || die "$bytes bytes are more than the $MOST_BYTES that may travel"
