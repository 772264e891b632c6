#!/bin/sh
# build.sh FOLDER: makes FOLDER a GOPATH with the packages `teletensor` and `teletensor/wire` (the messages, made
# by protoc), and builds the examples into FOLDER/bin. Needs the packages of deploy/packages-go.txt, and no network.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$1/src/teletensor" "$1/bin"
out=$(cd "$1" && pwd)
cp -R "$here/." "$out/src/teletensor/"
protoc -I "$root/proto" --go_out="$out/src" teletensor/v1/program.proto teletensor/v1/session.proto
export GO111MODULE=off GOFLAGS='' GOPATH="$out:/usr/share/gocode"
go vet teletensor/...
go build -o "$out/bin/" teletensor/examples/...
go test -c -o "$out/bin/client_test" teletensor
