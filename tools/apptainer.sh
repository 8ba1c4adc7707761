#!/usr/bin/env bash
# Unpacks the apptainer of Debian's development release into a folder, for tests: older releases have none.
#
#   tools/apptainer.sh FOLDER         afterwards: FOLDER/usr/bin/apptainer
#
# Its programs need newer libraries than this machine's. They get those of their own release, by path; nothing of the
# machine is changed.
set -euo pipefail
folder=$1
mkdir -p "$folder/.apt/lists/partial" "$folder/.apt/cache/archives/partial"
uri=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri sid main" > "$folder/.apt/sources.list"
own=(-o "Dir::Etc::sourcelist=$folder/.apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$folder/.apt/lists" -o "Dir::Cache=$folder/.apt/cache" -o APT::Sandbox::User=root)
apt-get "${own[@]}" -qq update
cd "$folder/.apt"
apt-get "${own[@]}" -qq download apptainer squashfuse libc6 libseccomp2 libsqlite3-0 libfuse3-4 libsquashfuse0 zlib1g \
    liblz4-1 liblzma5 libzstd1 liblzo2-2
for package in *.deb; do dpkg -x "$package" "$folder"; done
libraries=$(dirname "$(find "$folder/usr/lib" -name libc.so.6)")
loader=$(find "$libraries" -name 'ld-linux-*.so.*' | head -n 1)
for program in "$folder"/usr/bin/{apptainer,squashfuse,squashfuse_ll} "$libraries/apptainer/bin/starter"; do
    patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
done
for library in "$libraries"/lib{squashfuse,fuse3,lzo2,seccomp,sqlite3}*.so*; do
    [ -L "$library" ] || patchelf --force-rpath --set-rpath "$libraries" "$library"
done
# It looks for its configuration relative to where its programs lie.
for place in usr usr/lib; do
    ln -sfn "$(realpath --relative-to="$folder/$place" "$folder/etc")" "$folder/$place/etc"
    mkdir -p "$folder/$place/var/lib/apptainer/mnt/session"
done
rm -rf "$folder/.apt"
