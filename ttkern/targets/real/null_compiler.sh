#!/bin/bash
# @MARK@: answers for the compiler and writes empty kernels. For mock boards, and simulators in slow dispatch.
runtime=@ROOT@/runtime
object= arch=wormhole
while [ $# -gt 0 ]; do
  case "$1" in
    --version) echo '@VERSION_LINE@'; exit 0;;
    -o) out=$2; shift;;
    -MF) dep=$2; shift;;
    -c|c++-header) object=1;;
    *blackhole*|-mcpu=tt-bh*) arch=blackhole;;
  esac
  shift
done
[ -n "${dep:-}" ] && echo "$out:" > "$dep"
[ -n "$object" ] && { : > "$out"; exit 0; }
case "$out" in
  */firmware/*)
    processor=$(basename "$(dirname "$out")")
    cp "$runtime/firmware-$arch/$processor/$processor.elf" "$out";;
  *) cp "$runtime/empty.elf" "$out";;
esac
